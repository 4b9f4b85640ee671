#include "engine/models/encode_images.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "engine/device/upload.h"

namespace ringside::engine {

EncodedImages encode_images(const Decoder& decoder,
                            std::span<const std::shared_ptr<const ProcessedImage>> images,
                            const ProcessorOptions& processor,
                            const std::optional<c10::Stream>& upload_stream) {
  const VisionTower* tower = decoder.parameters().tower();
  TORCH_CHECK(tower != nullptr, "images for a model without a vision tower");
  std::vector<PatchGrid> grids;
  std::vector<at::Tensor> patches{at::empty({0, processor.row_size()}, at::kFloat)};
  for (const auto& image : images) {
    grids.push_back(image->grid);
    patches.push_back(at::tensor(patch_rows(image->image, processor), at::kFloat)
                          .view({grids.back().patches(), processor.row_size()}));
  }
  const std::vector<at::Tensor> host{at::cat(patches)};
  const at::Tensor patches_pF = Upload(host, decoder.context().device, upload_stream).take()[0];
  return tower->encode(patches_pF.to(decoder.compute_dtype()), grids, decoder.activation_options());
}

at::Tensor join_levels(const EncodedImages& images) {
  std::vector<at::Tensor> levels{images.rows_iE};
  levels.insert(levels.end(), images.deepstack_iE.begin(), images.deepstack_iE.end());
  return levels.size() == 1 ? levels.front() : at::cat(levels, 1);
}

EncodedImages split_levels(const at::Tensor& joined, int64_t hidden_size) {
  EncodedImages images;
  const std::vector<at::Tensor> parts = joined.split(hidden_size, 1);
  images.rows_iE = parts.front().contiguous();
  for (std::size_t level = 1; level < parts.size(); ++level) {
    images.deepstack_iE.push_back(parts[level].contiguous());
  }
  return images;
}

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

std::vector<at::Tensor> encode_each(const Decoder& decoder, std::span<const sp::ImageId> ids,
                                    const ImageInput& input,
                                    const std::optional<c10::Stream>& upload_stream) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  std::vector<std::shared_ptr<const ProcessedImage>> missing;
  for (const sp::ImageId& id : ids) {
    rows.push_back(input.kept != nullptr ? input.kept->find(id) : at::Tensor());
    if (!rows.back().defined()) {
      missing.push_back(input.pixels(id));
    }
  }
  if (missing.empty()) {
    return rows;
  }
  const at::Tensor encoded =
      join_levels(encode_images(decoder, missing, input.processor, upload_stream));
  int64_t begin = 0;
  for (std::size_t i = 0, next = 0; i < ids.size(); ++i) {
    if (rows[i].defined()) {
      continue;
    }
    const int64_t tokens = missing[next++]->grid.tokens(input.processor.merge);
    // A copy, so that what is dropped frees its memory.
    rows[i] = encoded.narrow(0, begin, tokens).clone();
    begin += tokens;
    if (input.kept != nullptr) {
      input.kept->add(ids[i], rows[i]);
    }
  }
  return rows;
}

}  // namespace ringside::engine
