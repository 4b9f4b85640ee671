#include "engine/layers/layer_work.h"

#include <vector>

namespace ringside::engine {
namespace {

double elements(const std::vector<ParamSpec>& specs) {
  double sum = 0.0;
  for (const ParamSpec& spec : specs) {
    sum += static_cast<double>(spec.numel());
  }
  return sum;
}

}  // namespace

LayerWork work_of(const DecoderLayer& layer, const ModelConfig& config) {
  double weights = elements(layer.specs());
  const Routing routing = layer.channel_mixer().routing();
  for (const auto& specs : layer.experts_specs()) {
    weights += elements(specs) * static_cast<double>(routing.per_token) /
               static_cast<double>(routing.experts);
  }
  LayerWork work{.token = 2.0 * weights, .window = {}, .pair = 0.0};
  if (const TokenFlow flow = layer.token_mixer().flow(); flow.keys) {
    work.window = flow.window;
    // Two products for each element of a head.
    work.pair = 4.0 * static_cast<double>(flow.heads * config.head_dim);
  }
  return work;
}

}  // namespace ringside::engine
