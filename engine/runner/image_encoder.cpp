#include "engine/runner/image_encoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "engine/device/side_stream.h"
#include "engine/device/upload.h"
#include "engine/models/encode_images.h"
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

// The rows and the deepstack levels, which stand side by side in `joined`.
void split_levels(const at::Tensor& joined, int64_t width, ImageRows& rows) {
  const std::vector<at::Tensor> parts = joined.split(width, 1);
  rows.rows_iE = parts.front().contiguous();
  for (std::size_t level = 1; level < parts.size(); ++level) {
    rows.deepstack_iE.push_back(parts[level].contiguous());
  }
}

}  // namespace

at::Tensor KeptRows::find(const sp::ImageId& id) {
  const auto found = place_of_.find(id);
  if (found == place_of_.end()) {
    return {};
  }
  kept_.splice(kept_.begin(), kept_, found->second);
  return kept_.front().rows;
}

void KeptRows::add(const sp::ImageId& id, const at::Tensor& rows) {
  const auto bytes = static_cast<int64_t>(rows.nbytes());
  if (bytes > max_bytes_ || place_of_.contains(id)) {
    return;
  }
  while (bytes_ + bytes > max_bytes_) {
    bytes_ -= static_cast<int64_t>(kept_.back().rows.nbytes());
    place_of_.erase(kept_.back().id);
    kept_.pop_back();
  }
  kept_.push_front({id, rows});
  place_of_[id] = kept_.begin();
  bytes_ += bytes;
}

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

at::Tensor ImageEncoder::encode(const Images& images) const {
  std::vector<std::shared_ptr<const ProcessedImage>> pixels;
  for (const sp::DocumentImage& image : images) {
    pixels.push_back(input_.pixels(image.id));
    TORCH_CHECK(pixels.back()->grid == grid_of(image), "image encoder: an image has a grid of ",
                pixels.back()->grid.height, " x ", pixels.back()->grid.width,
                " patches, its document says ", image.grid.height, " x ", image.grid.width);
  }
  const EncodedImages encoded =
      encode_images(decoder_, pixels, input_.processor, upload_stream_);
  std::vector<at::Tensor> levels{encoded.rows_iE};
  levels.insert(levels.end(), encoded.deepstack_iE.begin(), encoded.deepstack_iE.end());
  return levels.size() == 1 ? levels.front() : at::cat(levels, 1);
}

at::Tensor ImageEncoder::encode_once(const Images& images) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  Images missing;
  for (const sp::DocumentImage& image : images) {
    rows.push_back(input_.kept != nullptr ? input_.kept->find(image.id) : at::Tensor());
    if (!rows.back().defined()) {
      missing.push_back(image);
    }
  }
  if (!missing.empty()) {
    const at::Tensor encoded = encode(missing);
    int64_t next = 0;
    for (std::size_t i = 0; i < images.size(); ++i) {
      if (!rows[i].defined()) {
        // A copy, so that what is dropped frees its memory.
        rows[i] = encoded.narrow(0, next, images[i].tokens).clone();
        if (input_.kept != nullptr) {
          input_.kept->add(images[i].id, rows[i]);
        }
        next += images[i].tokens;
      }
    }
  }
  const int64_t levels = 1 + std::ssize(decoder_.config().vision->deepstack);
  return rows.empty() ? at::empty({0, levels * decoder_.config().hidden_size},
                                  decoder_.context().compute_options())
                      : at::cat(rows);
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
    const auto exchange = std::make_shared<sp::RowExchange>(
        batch.image_plan, groups_.tensors(sp::axes::kSp), device);
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
  split_levels(joined, decoder_.config().hidden_size, rows);
  return rows;
}

}  // namespace ringside::engine
