#include "engine/models/image_rows.h"

#include <ATen/ATen.h>

namespace ringside::engine {
namespace {

void check_images(const at::Tensor& hidden_sE, const ImageRows& images, const ModelConfig& config) {
  TORCH_CHECK(config.vision, "decoder: rows of images for a model without a vision tower");
  TORCH_CHECK(images.place_i.dim() == 1 && images.place_i.scalar_type() == at::kLong,
              "decoder: places of image rows must be int64 [i], got ", images.place_i.sizes(), " ",
              images.place_i.scalar_type());
  TORCH_CHECK(images.deepstack_iE.size() == config.vision->deepstack.size(),
              "decoder: ", images.deepstack_iE.size(), " tensors of deepstack rows, expected ",
              config.vision->deepstack.size());
  const auto check_rows = [&](const at::Tensor& rows_iE) {
    TORCH_CHECK(rows_iE.dim() == 2 && rows_iE.size(0) == images.place_i.size(0) &&
                    rows_iE.size(1) == hidden_sE.size(1) &&
                    rows_iE.scalar_type() == hidden_sE.scalar_type(),
                "decoder: rows of images ", rows_iE.sizes(), " ", rows_iE.scalar_type(),
                ", expected ", hidden_sE.scalar_type(), " [", images.place_i.size(0), ", ",
                hidden_sE.size(1), "]");
  };
  check_rows(images.rows_iE);
  for (const at::Tensor& rows_iE : images.deepstack_iE) {
    check_rows(rows_iE);
  }
}

}  // namespace

at::Tensor put_images(const at::Tensor& hidden_sE, const ImageRows& images,
                      const ModelConfig& config) {
  if (!images.any()) {
    return hidden_sE;
  }
  check_images(hidden_sE, images, config);
  return hidden_sE.index_copy(0, images.place_i, images.rows_iE);
}

at::Tensor add_deepstack(const at::Tensor& hidden_sE, const ImageRows& images, int64_t layer) {
  return layer < static_cast<int64_t>(images.deepstack_iE.size())
             ? hidden_sE.index_add(0, images.place_i, images.deepstack_iE[layer])
             : hidden_sE;
}

}  // namespace ringside::engine
