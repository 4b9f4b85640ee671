#include "engine/layers/delta_net_cost.h"

#include <algorithm>

#include "engine/nn/delta_rule.h"

namespace ringside::engine {
namespace {

// Tensors of one layer. Bytes.
struct DeltaNetMemory {
  const DeltaNetConfig& net;
  const MixerShape& pass;
  const sp::StateShape& shape = net.shape;
  const DeltaShape& d = pass.delta;
  int64_t share = pass.share_tokens;
  int64_t heads = d.groups * shape.values_per_group();  // value heads of this rank
  int64_t k = shape.key_dim, v = shape.value_dim;
  int64_t compute = pass.compute, sums = pass.sums;
  bool is_wide = compute == sums;
  int64_t out = pass.tokens * shape.value_heads * v;  // elements
  int64_t conv_in = share * d.groups * shape.conv_channels() * compute;
  int64_t gate_gradient = out * compute;

  // The convolution's result, or q and k of it cast for their lengths; inverse lengths; gates.
  int64_t of_rows() const {
    const bool keeps_result = is_wide || d.groups == 1;
    return (keeps_result ? conv_in : 0) + share * d.groups * ((is_wide ? 0 : 2 * k) + 4) * sums +
           2 * share * heads * sums;
  }

  // The rule's inputs, and the states at the starts of chunks. The same again for the maps, whose
  // values are as wide as the state and its transition.
  int64_t of_rule() const {
    const int64_t values = d.groups > 1 ? share * heads * v * compute : 0;
    const int64_t rule = 2 * share * d.groups * k * compute + values + 2 * share * heads * sums +
                         d.chunks * heads * k * v * sums;
    const bool all_mapped = d.mapped_rows == share;
    const int64_t copies =
        all_mapped ? 0 : d.mapped_rows * (d.groups * k * compute + 2 * heads * sums);
    const int64_t maps = d.mapped_rows * heads * (v + k) * compute + copies +
                         d.mapped_chunks * heads * k * (v + k) * sums;
    return rule + maps;
  }

  // The rule's result, its norm, the gate before and after SiLU, and their product. The gate before
  // SiLU is a view of the whole projection, unless it is copied or cast.
  int64_t after_rule() const {
    const bool is_view = is_wide && !net.grouped_projections;
    const int64_t beside = is_view ? pass.tokens * shape.key_heads * shape.channels() * compute : 0;
    return out * (3 * compute + 2 * sums) + pass.tokens * shape.value_heads * sums + beside;
  }

  // Matrices of the chunks that are computed together, with their gradients.
  int64_t block() const {
    constexpr int64_t c = ChunkTables::kChunk;
    const int64_t chunks = std::min(d.chunks, delta_chunks_at_once(heads, k, v, pass.device));
    return chunks * heads * (12 * c * k + 6 * c * v + 10 * c * c + 2 * k * v) * sums;
  }

  // What the backward of the rule has beside what the forward saved and is not freed by then.
  int64_t rule_backward() const {
    const int64_t row_gradients =
        share * (2 * d.groups * k + 2 * heads * v) * compute + share * 2 * heads * sums;
    return gate_gradient + row_gradients + 3 * d.runs * heads * k * v * sums + block() -
           after_rule();
  }

  // The same of the convolution.
  int64_t conv_backward() const {
    const int64_t convolution =
        share * d.groups * shape.conv_channels() * (6 * sums + (compute < sums ? compute : 0));
    return gate_gradient + share * d.groups * shape.channels() * compute + convolution - of_rows() -
           of_rule() - after_rule();
  }

  // Index tables of the micro-batch.
  int64_t tables() const {
    const int64_t slots = (d.chunks + d.mapped_chunks) * ChunkTables::kChunk;
    return slots * 9 + (share + d.mapped_rows) * 16 + share * 8;
  }
};

}  // namespace

Cost delta_net_cost(const DeltaNetConfig& net, const MixerShape& shape) {
  const DeltaNetMemory memory{net, shape};
  Cost cost;
  cost.saved = memory.conv_in + memory.of_rows() + memory.of_rule() + memory.after_rule();
  cost.flowing = std::max(memory.rule_backward(), memory.conv_backward());
  cost.tables = memory.tables();
  return cost;
}

MixerWork delta_net_work(const sp::StateShape& net, const RankGrid& grid) {
  constexpr double chunk = ChunkTables::kChunk;
  const auto k = static_cast<double>(net.key_dim), v = static_cast<double>(net.value_dim);
  const auto heads = static_cast<double>(net.value_heads);
  const auto u = static_cast<double>(grid.ulysses);
  const double tokens = grid.tokens / (static_cast<double>(grid.ring) * u);
  const double forwards = grid.recompute == Recompute::kNone ? 1 : 2;
  const auto channels = static_cast<double>(net.key_heads * (net.channels() + net.out_channels()));
  MixerWork work;
  // Of the rule: products of chunks, and of each with the state.
  work.products = tokens * (2.0 * heads * (chunk * (2.5 * k + 1.5 * v) + 3.0 * k * v));
  work.sent = (forwards + 1) * tokens * channels * (u - 1) / u * grid.element;
  return work;
}

}  // namespace ringside::engine
