// Elements of a model's layers that one token is multiplied with, by the tables of their mixers:
// what predictions of time count products of matrices with.
#pragma once

#include <vector>

#include "engine/layers/decoder_layer.h"

namespace ringside::rl {

// Of one layer, or the mean over some. Experts count as often as a token is sent to one.
struct LayerElements {
  double token_mixer = 0.0;
  double others = 0.0;  // of the channel mixer and norms
  double all() const { return token_mixer + others; }
};

// The mean over all layers of the model. layers: make_layers(model).
LayerElements mean_layer_elements(const engine::ModelConfig& model,
                                  const std::vector<engine::DecoderLayer>& layers);

}  // namespace ringside::rl
