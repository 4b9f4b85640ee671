// Rows of images among the tokens of a decoder's pass.
//
// Tokens of images are known by their indices, never by their ids: a placeholder's id that a policy
// samples is text, with the embedding of its own.
//
// Shapes: i = tokens of images, s = this rank's rows of the residual stream, E = hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/layers/model_config.h"

namespace ringside::engine {

// In the compute dtype, on the model's device; rows that require a gradient get it. They may come
// from another rank.
struct ImageRows {
  at::Tensor place_i;  // int64, the row of each among s, each once; undefined: none
  at::Tensor rows_iE;  // in place of embeddings
  std::vector<at::Tensor> deepstack_iE;  // added behind layers 0, 1, ...

  bool any() const { return place_i.defined(); }
};

// Hidden states before the first layer with the images' rows in their places. They are not scaled
// as embeddings may be. Without images it returns `hidden_sE` itself.
// Throws: c10::Error on shapes and dtypes that do not fit the model or each other, and on images in
// a model without a vision tower.
at::Tensor put_images(const at::Tensor& hidden_sE, const ImageRows& images,
                      const ModelConfig& config);

// Hidden states behind a layer with its deepstack rows, if it has any.
at::Tensor add_deepstack(const at::Tensor& hidden_sE, const ImageRows& images, int64_t layer);

}  // namespace ringside::engine
