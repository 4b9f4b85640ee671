#include "engine/models/encode_images.h"

#include <ATen/ATen.h>

#include <vector>

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
  return tower->encode(patches_pF.to(decoder.compute_dtype()), grids,
                       decoder.activation_options());
}

}  // namespace ringside::engine
