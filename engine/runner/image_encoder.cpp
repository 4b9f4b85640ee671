#include "engine/runner/image_encoder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "engine/device/side_stream.h"
#include "engine/device/upload.h"
#include "engine/nn/tensor_rows.h"
#include "engine/params/sharding.h"
#include "sp/images/row_exchange.h"

namespace ringside::engine {
namespace {

const VisionTower& tower_of(const Decoder& decoder) {
  TORCH_CHECK(decoder.parameters().tower() != nullptr,
              "image encoder: the model has no vision tower");
  return *decoder.parameters().tower();
}

PatchGrid grid_of(const sp::DocumentImage& image) {
  return {image.grid.frames, image.grid.height, image.grid.width};
}

// Indices of image rows whose token is one of this tensor rank's, and their places among its rows.
struct OwnRows {
  std::vector<int64_t> index, place;
};

OwnRows own_rows_of(const std::vector<int64_t>& places, const sp::Range& own) {
  OwnRows rows;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i] >= own.begin && places[i] < own.end) {
      rows.index.push_back(static_cast<int64_t>(i));
      rows.place.push_back(places[i] - own.begin);
    }
  }
  return rows;
}

}  // namespace

ImageEncoder::ImageEncoder(const Decoder& decoder, const sp::ProcessGroups& groups,
                           ImageInput input)
    : decoder_(decoder),
      groups_(groups),
      input_(std::move(input)),
      upload_stream_(make_side_stream(decoder.context().device)) {
  for (const auto& unit : tower_of(decoder).units()) {
    is_trained_ |= unit->flat().requires_grad();
    is_sharded_ |= unit->storage().is_gathered();
  }
}

ImageEncoder::Pixels ImageEncoder::pixels_of(const sp::DocumentImage& image) const {
  Pixels pixels = input_.pixels(image.id);
  TORCH_CHECK(pixels->grid == grid_of(image), "image encoder: an image has a grid of ",
              pixels->grid.height, " x ", pixels->grid.width, " patches, its document says ",
              image.grid.height, " x ", image.grid.width);
  return pixels;
}

at::Tensor ImageEncoder::encode(const Images& images) const {
  std::vector<Pixels> pixels;
  for (const sp::DocumentImage& image : images) {
    pixels.push_back(pixels_of(image));
  }
  return join_levels(encode_images(decoder_, pixels, input_.processor, upload_stream_));
}

at::Tensor ImageEncoder::encode_once(const Images& images) const {
  if (images.empty()) {
    const int64_t levels = 1 + std::ssize(decoder_.config().vision->deepstack);
    return at::empty({0, levels * decoder_.config().hidden_size},
                     decoder_.context().compute_options());
  }
  std::vector<sp::ImageId> ids;
  for (const sp::DocumentImage& image : images) {
    ids.push_back(image.id);
  }
  ImageInput checked = input_;
  checked.pixels = [&](const sp::ImageId& id) {
    return pixels_of(*std::ranges::find(images, id, &sp::DocumentImage::id));
  };
  return at::cat(encode_each(decoder_, ids, checked, upload_stream_));
}

ImageRows ImageEncoder::rows(const sp::MicroBatch& batch) const {
  if (batch.image_plan == nullptr && !is_trained_ && !is_sharded_) {
    return {};
  }
  Images own;
  if (batch.image_plan != nullptr) {
    for (const int64_t image : batch.image_plan->own_images()) {
      own.push_back(batch.images[image]);
    }
  }
  at::Tensor joined = is_trained_ || is_sharded_ ? encode(own) : encode_once(own);
  const c10::Device device = decoder_.context().device;
  const at::TensorOptions indices = at::TensorOptions().dtype(at::kLong).device(device);
  ImageRows rows;
  rows.place_i = at::empty({0}, indices);
  if (batch.image_plan != nullptr) {
    const auto exchange =
        std::make_shared<sp::RowExchange>(batch.image_plan, groups_.tensors(sp::axes::kSp), device);
    joined = sp::exchange_rows(joined, exchange);
    rows.place_i = exchange->place_i();
  }
  const RowParts parts = row_parts(decoder_.context(), batch.ids_s.size(0));
  if (parts.is_cut() && batch.image_plan != nullptr) {
    const OwnRows kept = own_rows_of(batch.image_plan->place_rows, parts.own());
    const std::vector<at::Tensor> host{at::tensor(kept.index, at::kLong),
                                       at::tensor(kept.place, at::kLong)};
    const std::vector<at::Tensor> sent = Upload(host, device, upload_stream_).take();
    // As a table of embeddings: on CUDA its backward has no atomics.
    joined = at::embedding(joined, sent[0]);
    rows.place_i = sent[1];
  }
  EncodedImages levels = split_levels(joined, decoder_.config().hidden_size);
  rows.rows_iE = std::move(levels.rows_iE);
  rows.deepstack_iE = std::move(levels.deepstack_iE);
  return rows;
}

}  // namespace ringside::engine
