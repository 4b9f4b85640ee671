#include "engine/layers/cost.h"

#include <algorithm>

#include "engine/nn/delta_rule.h"

namespace ringside::engine {
namespace {

// What attention's node saves beyond its inputs in this rank's own layout.
int64_t attention_results(const sp::HeadShape& heads, const MixerShape& shape) {
  return shape.share_tokens * shape.query_heads * (heads.head_dim * shape.compute + shape.sums);
}

// Other ranks' keys and values, and their gradients, where most of them exist: all of them when
// they are gathered. Otherwise those of the step and of the next one, and the gradients of the
// step, of the step before, which are being sent, and those that arrive. Short rings end before.
int64_t key_value_buffers(const sp::HeadShape& heads, const MixerShape& shape) {
  const int64_t ranks = shape.ring_ranks;
  if (ranks == 1) {
    return 0;
  }
  const int64_t values = shape.gathers_kv ? ranks : ranks > 3 ? 2 : 1;
  const int64_t gradients = shape.gathers_kv ? ranks : ranks > 2 ? 3 : 1;
  return shape.share_tokens * 2 * shape.kv_heads * heads.head_dim *
         (values * shape.compute + gradients * shape.sums);
}

}  // namespace

DeltaShape delta_shape(const sp::StatePlan& plan) {
  DeltaShape shape;
  shape.groups = plan.own_groups().size();
  shape.runs = static_cast<int64_t>(plan.runs.size());
  const auto chunks_of = [](const sp::StatePlan::Run& run) {
    return std::max<int64_t>(1, (run.rows.size() + ChunkTables::kChunk - 1) / ChunkTables::kChunk);
  };
  for (const sp::StatePlan::Run& run : plan.runs) {
    shape.chunks += chunks_of(run);
  }
  if (plan.maps_travel) {
    shape.mapped_runs = static_cast<int64_t>(plan.mapped_runs.size());
    for (const int64_t run : plan.mapped_runs) {
      shape.mapped_rows += plan.runs[run].rows.size();
      shape.mapped_chunks += chunks_of(plan.runs[run]);
    }
  }
  return shape;
}

double tensor_sent(const TensorWidths& widths, const RankGrid& grid) {
  const double forwards = grid.recompute == Recompute::kNone ? 1 : 2;
  const auto ranks = static_cast<double>(grid.tensor);
  const double rows = grid.tokens / static_cast<double>(grid.ring * grid.ulysses);
  return (forwards + 1) * (ranks - 1) / ranks * rows *
         static_cast<double>(widths.gathered + widths.summed) * grid.element;
}

int64_t tensor_buffers(const TensorWidths& widths, const MixerShape& shape) {
  return shape.tensor_ranks == 1
             ? 0
             : shape.tokens * std::max(widths.summed, widths.gathered) * shape.compute;
}

bool exchanges(const sp::HeadShape& heads, const MixerShape& shape) {
  return shape.query_heads < heads.query_heads().size();
}

int64_t exchanged_inputs(const sp::HeadShape& heads, const MixerShape& shape) {
  return shape.share_tokens * (shape.query_heads + 2 * shape.kv_heads) * heads.head_dim *
         shape.compute;
}

int64_t exchanged_output(const sp::HeadShape& heads, const MixerShape& shape) {
  return shape.tokens * heads.query_heads().size() * heads.head_dim * shape.compute;
}

Cost attention_cost(const sp::HeadShape& heads, const MixerShape& shape, int64_t saved) {
  const int64_t share = shape.share_tokens, d = heads.head_dim;
  Cost cost;
  cost.saved = saved + attention_results(heads, shape);
  cost.kept =
      attention_results(heads, shape) +
      (exchanges(heads, shape) ? exchanged_inputs(heads, shape) + exchanged_output(heads, shape)
                               : 0);
  cost.flowing = share * shape.query_heads * d * (shape.compute + shape.sums) +
                 share * 2 * shape.kv_heads * d * shape.sums;
  cost.buffers = key_value_buffers(heads, shape);
  return cost;
}

MixerWork attention_work(const sp::HeadShape& heads, int64_t window, const RankGrid& grid) {
  const auto u = static_cast<double>(grid.ulysses), r = static_cast<double>(grid.ring);
  const auto w = static_cast<double>(window);
  const double share = grid.tokens / r;
  const auto q = static_cast<double>(heads.query_heads().size() * heads.head_dim);
  const auto kv = static_cast<double>(2 * heads.kv_heads().size() * heads.head_dim);
  const double forwards = grid.recompute == Recompute::kFull ? 2 : 1;
  const double exchanged = share / u * (u - 1) / u * (2 * q + kv) * grid.element;
  const double passed = (r - 1) * (window > 0 ? std::min(share, 2.0 * w) : share) * kv / u;
  double pairs = 0.0;  // of a query and a key
  for (const int64_t document : grid.documents) {
    const auto n = static_cast<double>(document);
    const double reach = window > 0 ? std::min(w, n) : n;
    pairs += n * reach - 0.5 * reach * reach;
  }
  MixerWork work;
  work.attention = 4.0 * pairs / (r * u) * q;
  work.sent = (forwards + 1) * exchanged +
              passed * ((forwards + 1) * grid.element + std::max(4.0, grid.element));
  return work;
}

}  // namespace ringside::engine
