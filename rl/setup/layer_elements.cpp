#include "rl/setup/layer_elements.h"

#include "engine/runner/layers_memory.h"

namespace ringside::rl {
namespace {

double of_layer(const engine::DecoderLayer& layer) {
  auto active = static_cast<double>(engine::elements(layer.specs()));
  const engine::Routing routing = layer.channel_mixer().routing();
  for (const auto& specs : layer.experts_specs()) {
    active += static_cast<double>(engine::elements(specs) / routing.experts * routing.per_token);
  }
  return active;
}

// A table in which the layer's token mixer alone has entered its weights.
double of_token_mixer(const engine::ModelConfig& model, int64_t layer) {
  engine::ParamTable table;
  const auto mixer = engine::make_token_mixer(model, layer, table);
  int64_t elements = 0;
  for (const engine::WeightSpec& weight : table.weights()) {
    elements += engine::elements(weight.params);
  }
  return static_cast<double>(elements);
}

}  // namespace

LayerElements mean_layer_elements(const engine::ModelConfig& model,
                                  const std::vector<engine::DecoderLayer>& layers) {
  LayerElements sum;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double mixer = of_token_mixer(model, static_cast<int64_t>(i));
    sum.token_mixer += mixer;
    sum.others += of_layer(layers[i]) - mixer;
  }
  const auto count = static_cast<double>(layers.size());
  return {sum.token_mixer / count, sum.others / count};
}

}  // namespace ringside::rl
