#include "sp/plan/method_choice.h"

#include <algorithm>
#include <cstdio>
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

double rank_seconds(const RankWork& work, const MethodQuery& query, int64_t kv_heads) {
  const Traffic& t = work.traffic;
  const auto element = query.element_bytes;
  const int64_t accumulated = std::max<int64_t>(4, element);
  const double bytes_per_s = query.speed.bytes_per_s;
  const auto flops =
      static_cast<double>(4 * work.attended_pairs * work.query_heads * query.heads.head_dim);
  const double compute = flops / query.speed.flops_per_s;
  const auto ring_forward = static_cast<double>(element * t.ring_kv);
  const auto ring_backward =
      static_cast<double>(element * t.ring_kv_again + accumulated * t.ring_kv_grad);
  const double all_to_all = static_cast<double>(forward_bytes(t, element)) +
                            static_cast<double>(backward_bytes(t, element, accumulated)) -
                            ring_forward - ring_backward;
  const bool gathers = query.options.ring_impl == RingImpl::kAllGather;
  const bool gathers_back = gathers || query.options.ring_backward == RingImpl::kAllGather;
  const int64_t stride = query.options.heads_k_stride;
  const auto parts =
      static_cast<double>(gathers && stride > 0 ? (kv_heads + stride - 1) / stride : 1);
  return all_to_all / bytes_per_s +
         overlapped(compute, ring_forward / bytes_per_s, gathers, parts) +
         overlapped(kBackwardFlops * compute, ring_backward / bytes_per_s, gathers_back, parts);
}

MethodCost cost_of(const MethodQuery& query, int64_t ulysses) {
  const int64_t ring = query.num_ranks / ulysses;
  const SequenceLayout layout(SegmentForest::of_documents(query.document_lengths), ring, ulysses,
                              query.placement);
  const HeadSplit split = split_heads(query.heads, ulysses);
  const int64_t accumulated = std::max<int64_t>(4, query.element_bytes);
  MethodCost cost{ulysses, ring};
  const std::vector<RankWork> ranks = work_of_ranks(layout, query.heads, query.options);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Traffic& traffic = ranks[rank].traffic;
    const int64_t kv_heads = split.kv_heads_of[rank % ulysses].size();
    cost.bytes =
        std::max(cost.bytes, forward_bytes(traffic, query.element_bytes) +
                                 backward_bytes(traffic, query.element_bytes, accumulated));
    cost.seconds = std::max(cost.seconds, rank_seconds(ranks[rank], query, kv_heads));
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
