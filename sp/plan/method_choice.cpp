#include "sp/plan/method_choice.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

namespace ringside::sp {
namespace {

constexpr double kBackwardFlops = 2.5;  // times the forward's: five matrix products instead of two

double rank_seconds(const AttentionPlan& plan, int64_t element, const RankSpeed& speed) {
  const Traffic& t = plan.traffic;
  const int64_t accumulated = std::max<int64_t>(4, element);
  const auto forward_flops = static_cast<double>(plan.forward_flops());
  const auto ring_forward = static_cast<double>(element * t.ring_kv);
  const auto ring_backward = ring_forward + static_cast<double>(accumulated * t.ring_kv_grad);
  const double all_to_all = static_cast<double>(forward_bytes(plan, element)) +
                            static_cast<double>(backward_bytes(plan, element, accumulated)) -
                            ring_forward - ring_backward;
  const double forward =
      std::max(forward_flops / speed.flops_per_s, ring_forward / speed.bytes_per_s);
  const double backward = std::max(kBackwardFlops * forward_flops / speed.flops_per_s,
                                   ring_backward / speed.bytes_per_s);
  return all_to_all / speed.bytes_per_s + forward + backward;
}

MethodCost cost_of(const MethodQuery& query, int64_t ulysses) {
  const int64_t ring = query.num_ranks / ulysses;
  const SequenceLayout layout(SegmentForest::of_documents(query.document_lengths), ring, ulysses,
                              query.placement);
  MethodCost cost{ulysses, ring};
  for (int64_t rank = 0; rank < query.num_ranks; ++rank) {
    const AttentionPlan plan = plan_attention(layout, query.heads, rank, query.options);
    cost.bytes = std::max(
        cost.bytes,
        forward_bytes(plan, query.element_bytes) +
            backward_bytes(plan, query.element_bytes, std::max<int64_t>(4, query.element_bytes)));
    cost.seconds = std::max(cost.seconds, rank_seconds(plan, query.element_bytes, query.speed));
  }
  return cost;
}

}  // namespace

std::vector<MethodCost> rank_methods(const MethodQuery& query) {
  if (query.num_ranks < 1) {
    throw std::invalid_argument("rank_methods: " + std::to_string(query.num_ranks) + " ranks");
  }
  std::vector<MethodCost> costs;
  for (int64_t ulysses = query.num_ranks; ulysses >= 1; --ulysses) {
    if (query.num_ranks % ulysses == 0 && ulysses <= query.heads.num_query_heads) {
      costs.push_back(cost_of(query, ulysses));
    }
  }
  std::stable_sort(costs.begin(), costs.end(),
                   [](const MethodCost& a, const MethodCost& b) { return a.seconds < b.seconds; });
  return costs;
}

std::string describe(const MethodCost& cost) {
  char text[160];
  std::snprintf(text, sizeof text,
                "ulysses %ld x ring %ld: %.2f MiB a layer and rank, %.3f ms predicted",
                static_cast<long>(cost.ulysses), static_cast<long>(cost.ring),
                static_cast<double>(cost.bytes) / (1 << 20), 1e3 * cost.seconds);
  return text;
}

}  // namespace ringside::sp
