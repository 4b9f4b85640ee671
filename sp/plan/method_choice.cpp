#include "sp/plan/method_choice.h"

#include <algorithm>
#include <stdexcept>

namespace ringside::sp {
namespace {

constexpr double kBackwardFlops = 2.5;  // times the forward's: five matrix products instead of two

// Seconds of a pass whose ring transfers overlap its compute; of gathered keys the first part, 1 of
// `parts`, comes before any compute.
double overlapped(double compute, double transfer, bool gathers, double parts) {
  const double exposed = gathers ? transfer / parts : 0.0;
  return exposed + std::max(compute, transfer - exposed);
}

// Seconds of one rank's layer, forward and backward. `cost` names the axes and their bandwidths.
MethodCost rank_cost(const RankWork& work, const MethodQuery& query, MethodCost cost,
                     int64_t kv_heads) {
  const Traffic& t = work.traffic;
  const RankSpeed& speed = query.speed;
  const auto bandwidth = [&](bool crosses) {
    return crosses ? speed.node_bytes_per_s : speed.bytes_per_s;
  };
  const int64_t element = query.element_bytes;
  const int64_t accumulated = std::max<int64_t>(4, element);
  const auto flops =
      static_cast<double>(4 * work.attended_pairs * work.query_heads * query.heads.head_dim);
  const double compute = flops / speed.flops_per_s;
  const int64_t ring_forward = element * t.ring_kv;
  const int64_t ring_backward = element * t.ring_kv_again + accumulated * t.ring_kv_grad;
  cost.bytes = forward_bytes(t, element) + backward_bytes(t, element, accumulated);
  cost.compute_seconds = (1 + kBackwardFlops) * compute;
  const auto transfer = [&](int64_t bytes, bool crosses, int64_t launches) {
    return bytes == 0 ? 0.0
                      : static_cast<double>(bytes) / bandwidth(crosses) +
                            static_cast<double>(launches) * speed.transfer_seconds;
  };
  const int64_t hops = cost.ring - 1;
  const double forward = transfer(ring_forward, cost.ring_crosses_nodes, hops);
  const double backward = transfer(ring_backward, cost.ring_crosses_nodes, 2 * hops);
  cost.ring_seconds = forward + backward;
  // q, keys with values, the output; the same for the gradients.
  cost.ulysses_seconds =
      transfer(cost.bytes - ring_forward - ring_backward, cost.ulysses_crosses_nodes, 6);
  const bool gathers = query.options.ring_impl == RingImpl::kAllGather;
  const bool gathers_back = gathers || query.options.ring_backward == RingImpl::kAllGather;
  const int64_t stride = query.options.heads_k_stride;
  const auto parts =
      static_cast<double>(gathers && stride > 0 ? (kv_heads + stride - 1) / stride : 1);
  cost.seconds = cost.ulysses_seconds + overlapped(compute, forward, gathers, parts) +
                 overlapped(kBackwardFlops * compute, backward, gathers_back, parts);
  return cost;
}

MethodCost cost_of(const MethodQuery& query, int64_t ulysses) {
  const int64_t ring = query.num_ranks / ulysses;
  const SequenceLayout layout(SegmentForest::of_documents(query.document_lengths), ring, ulysses,
                              query.placement);
  const HeadSplit split = split_over_ulysses(query.heads, ulysses);
  const int64_t here = query.speed.ranks_per_node;
  MethodCost axes{ulysses, ring};
  axes.ulysses_crosses_nodes = here > 0 && ulysses > here;
  axes.ring_crosses_nodes = here > 0 && ring > 1 && ulysses * ring > here;
  MethodCost slowest = axes;
  int64_t most_bytes = 0;
  const std::vector<RankWork> ranks = work_of_ranks(layout, query.heads, query.options);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const MethodCost cost =
        rank_cost(ranks[rank], query, axes, split.kv_heads_of[rank % ulysses].size());
    most_bytes = std::max(most_bytes, cost.bytes);
    if (cost.seconds > slowest.seconds) {
      slowest = cost;
    }
  }
  slowest.bytes = most_bytes;
  return slowest;
}

}  // namespace

std::vector<MethodCost> rank_methods(const MethodQuery& query) {
  if (query.num_ranks < 1) {
    throw std::invalid_argument("rank_methods: " + std::to_string(query.num_ranks) + " ranks");
  }
  const int64_t heads = query.heads.query_heads().size();
  const int64_t most = query.most_ulysses > 0 ? std::min(query.most_ulysses, heads) : heads;
  std::vector<MethodCost> costs;
  for (int64_t ulysses = query.num_ranks; ulysses >= 1; --ulysses) {
    if (query.num_ranks % ulysses == 0 && ulysses <= most) {
      costs.push_back(cost_of(query, ulysses));
    }
  }
  std::stable_sort(costs.begin(), costs.end(),
                   [](const MethodCost& a, const MethodCost& b) { return a.seconds < b.seconds; });
  return costs;
}

}  // namespace ringside::sp
