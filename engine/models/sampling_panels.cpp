#include "engine/models/sampling_panels.h"

#include <memory>

#include "engine/layers/decoder_layer.h"
#include "engine/ops/panels.h"

namespace ringside::engine {
namespace {

bool packs(const ComputeContext& context, int64_t inputs) {
  return context.products.packs_for_sampling && context.device.is_cpu() &&
         Panels::can_hold(context.compute, inputs);
}

}  // namespace

void pack_for_sampling(Weight& weight, const ComputeContext& context) {
  if (weight.value.defined() && weight.value.scalar_type() == context.compute &&
      packs(context, weight.value.size(1))) {
    weight.panels = std::make_shared<const Panels>(Panels::of_rows(weight.value));
  }
}

int64_t sampling_panel_bytes(const ModelConfig& config, const ComputeContext& context) {
  const auto bytes = [&](int64_t outputs, int64_t inputs) {
    return packs(context, inputs) ? Panels::bytes(outputs, inputs, context.compute) : 0;
  };
  int64_t total = bytes(config.vocab_size, config.hidden_size);
  for (const DecoderLayer& layer : make_layers(config)) {
    for (const LinearSpec& linear : layer.table().linears()) {
      total += bytes(layer.table().weights()[linear.weight].shape[0], linear.inputs);
    }
  }
  return total;
}

}  // namespace ringside::engine
