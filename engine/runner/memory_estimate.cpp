#include "engine/runner/memory_estimate.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

#include "engine/models/decoder.h"

namespace ringside::engine {
namespace {

int64_t elements(const std::vector<ParamSpec>& specs) {
  int64_t sum = 0;
  for (const ParamSpec& spec : specs) {
    sum += spec.numel();
  }
  return sum;
}

struct Widths {
  int64_t compute, master, sums;  // bytes of a number: activations, weights, statistics
  bool casts;                     // weights are cast for use
};

Widths widths_of(const ComputeContext& context) {
  const auto bytes = [](at::ScalarType dtype) {
    return static_cast<int64_t>(c10::elementSize(dtype));
  };
  return {bytes(context.compute), bytes(context.master),
          std::max<int64_t>(4, bytes(context.compute)), context.compute != context.master};
}

// What one layer saves: decoder_layer() and the operators that it calls, in their order.
int64_t layer_activations(const ModelConfig& c, const Widths& w, const PassShape& shape) {
  const int64_t s = shape.tokens, S = shape.share_tokens, d = c.head_dim;
  const int64_t heads = c.num_attention_heads, kv = c.num_key_value_heads;
  const bool exchanges = shape.query_heads < heads;
  const int64_t norms = 2 * s * (2 * c.hidden_size * w.compute + w.sums);
  const int64_t qkv = s * (heads + 2 * kv) * d * w.compute;
  const int64_t rotated = s * (heads + kv) * (d * w.compute + (c.qk_norm ? w.sums : 0));
  // Without an exchange the queries are a view of what was rotated; keys and values are joined.
  const int64_t attention =
      S * 2 * shape.kv_heads * d * w.compute + S * shape.query_heads * (d * w.compute + w.sums);
  const int64_t exchanged = exchanges
                                ? S * shape.query_heads * d * w.compute +
                                      s * heads * d * w.compute - s * (heads + kv) * d * w.compute
                                : 0;
  const int64_t mlp = 3 * s * c.intermediate_size * w.compute;
  const int64_t cast_weights = w.casts ? elements(decoder_layer_specs(c, 0)) * w.compute : 0;
  return norms + qkv + rotated + attention + exchanged + mlp + cast_weights;
}

// Bytes that the backward adds to the saved activations while the head's gradient is computed.
int64_t head_transient(const ModelConfig& c, const Widths& w, const PassShape& shape) {
  const int64_t rows = std::min(shape.logit_rows, shape.entries);
  const int64_t logits = rows * c.vocab_size * (w.sums + (w.casts ? w.compute : 0));
  return logits + c.vocab_size * c.hidden_size * w.sums + shape.entries * c.hidden_size * w.compute;
}

// The same in the MLP of the last layer, when what the head saved is gone.
int64_t mlp_transient(const ModelConfig& c, const Widths& w, const PassShape& shape) {
  const int64_t flowing = shape.tokens * (c.hidden_size + 2 * c.intermediate_size) * w.compute;
  return flowing + c.hidden_size * c.intermediate_size * w.compute;
}

}  // namespace

MemoryEstimate estimate_memory(const ModelConfig& config, const ComputeContext& context,
                               const PassShape& shape) {
  const Widths w = widths_of(context);
  const int64_t s = shape.tokens, e = config.hidden_size;
  const int64_t parameters = elements(decoder_specs(config));
  MemoryEstimate estimate;
  estimate.weights = parameters * w.master;
  const int64_t rope = shape.tokens * config.head_dim * w.compute;
  estimate.optimizer = 2 * parameters * w.master;
  estimate.gradients = shape.accumulates ? parameters * w.master : 0;
  const int64_t layer = layer_activations(config, w, shape);
  const int64_t layers = config.num_hidden_layers;
  estimate.activations =
      rope + (shape.recompute_activations ? layers * s * e * w.compute : layers * layer);
  // The final norm's input and output, the rows of the entries, and the head's cast weights.
  const int64_t tail = s * (2 * e * w.compute + w.sums) + shape.entries * (e * w.compute + 24) +
                       (w.casts ? config.vocab_size * e * w.compute : 0);
  const int64_t in_head = tail + head_transient(config, w, shape);
  const int64_t in_layer =
      mlp_transient(config, w, shape) + (shape.recompute_activations ? layer : 0);
  estimate.transient = std::max(in_head, in_layer);
  return estimate;
}

}  // namespace ringside::engine
