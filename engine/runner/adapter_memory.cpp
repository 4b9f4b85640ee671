#include "engine/runner/adapter_memory.h"

#include "engine/layers/decoder_layer.h"

namespace ringside::engine {

int64_t elements(const std::vector<ParamSpec>& specs) {
  int64_t sum = 0;
  for (const ParamSpec& spec : specs) {
    sum += spec.numel();
  }
  return sum;
}

int64_t share(int64_t whole, int64_t ranks) { return (whole + ranks - 1) / ranks; }

int64_t packed_layer_bytes(const std::vector<ParamSpec>& specs, QuantisedFormat format,
                           int64_t compute) {
  int64_t bytes = 0;
  for (const ParamSpec& spec : specs) {
    bytes += spec.shape.size() == 2
                 ? QuantisedMatrix::packed_bytes(spec.shape[0], spec.shape[1], format)
                 : spec.numel() * compute;
  }
  return bytes;
}

AdapterMemory adapter_memory(const ModelConfig& config, const AdapterShape& shape, int64_t tokens,
                             int64_t compute, int64_t master) {
  const std::vector<ParamSpec> factors = Adapters::factors(config, shape.options);
  const int64_t layers = config.num_hidden_layers;
  int64_t columns = 0;
  for (const ParamSpec& spec : factors) {
    columns += spec.name.ends_with("lora_A.weight") ? spec.shape[0] : 0;
  }
  const int64_t casts = compute != master ? elements(factors) * compute / layers : 0;
  AdapterMemory memory{elements(factors) * master, columns / layers * tokens * compute + casts};
  if (shape.base) {
    memory.packed_layers = 0;
    for (const DecoderLayer& layer : make_layers(config)) {
      *memory.packed_layers += packed_layer_bytes(layer.specs(), *shape.base, compute);
    }
  }
  return memory;
}

}  // namespace ringside::engine
