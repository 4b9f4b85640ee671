// One attention problem, solved densely in one process and by a mesh of ranks, with the byte
// counters held against the plan on the way.
#pragma once

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

#include "sp/attention/attention.h"
#include "sp/attention/executor.h"
#include "sp/heads/head_exchange.h"
#include "tests/support/close.h"
#include "tests/support/dense_attention.h"
#include "tests/support/ranks.h"

namespace ringside::test {

struct Problem {
  sp::SegmentForest forest;
  sp::HeadShape heads;
  double scale = 0.37;
  int64_t window = 0;
  at::Tensor q, k, v, dout;  // packed, fp64
  at::Tensor sinks;          // undefined = none
};

inline Problem make_problem(sp::SegmentForest forest, sp::HeadShape heads) {
  at::manual_seed(5);
  Problem p{std::move(forest), heads, 0.37, 0, {}, {}, {}, {}, {}};
  const auto random = [&](int64_t h) {
    return at::randn({p.forest.num_tokens(), h, heads.head_dim}, at::kDouble);
  };
  p.q = random(heads.num_query_heads);
  p.k = random(heads.num_kv_heads);
  p.v = random(heads.num_kv_heads);
  p.dout = random(heads.num_query_heads);
  return p;
}

// What a tensor rank has of the problem.
inline Problem part_of(const Problem& p, int64_t tensor_ranks, int64_t tensor_rank) {
  Problem part = p;
  part.heads = sp::part_of_heads(p.heads, tensor_ranks, tensor_rank);
  const sp::Range queries = part.heads.query_heads(), keys = part.heads.kv_heads();
  part.q = p.q.narrow(1, queries.begin, queries.size());
  part.dout = p.dout.narrow(1, queries.begin, queries.size());
  part.k = p.k.narrow(1, keys.begin, keys.size());
  part.v = p.v.narrow(1, keys.begin, keys.size());
  part.sinks = p.sinks.defined() ? p.sinks.narrow(0, queries.begin, queries.size()) : p.sinks;
  return part;
}

struct Solution {
  at::Tensor out, lse, dq, dk, dv;  // packed
  at::Tensor dsinks;
};

inline double worst_difference(const Solution& a, const Solution& b) {
  double worst =
      std::max({max_abs_diff(a.out, b.out), max_abs_diff(a.lse, b.lse), max_abs_diff(a.dq, b.dq),
                max_abs_diff(a.dk, b.dk), max_abs_diff(a.dv, b.dv)});
  if (a.dsinks.defined()) {
    worst = std::max(worst, max_abs_diff(a.dsinks, b.dsinks));
  }
  return worst;
}

inline Solution solve_densely(const Problem& p) {
  const auto leaf = [](const at::Tensor& x) {
    return x.defined() ? x.clone().requires_grad_() : at::Tensor();
  };
  const at::Tensor q = leaf(p.q), k = leaf(p.k), v = leaf(p.v), sinks = leaf(p.sinks);
  const auto result = dense_attention(q, k, v, p.forest, {p.scale, p.window, sinks});
  result.out_THD.backward(p.dout);
  return {result.out_THD.detach(),
          result.lse_TH.detach(),
          q.grad(),
          k.grad(),
          v.grad(),
          sinks.defined() ? sinks.grad() : at::Tensor()};
}

// A way to split: the mesh's axes come from the communicators.
struct Split {
  sp::RingImpl ring_impl = sp::RingImpl::kP2p;
  sp::Placement placement = sp::Placement::kDocumentAware;
  int64_t heads_k_stride = 0;
  bool prune = true;
  sp::RingImpl ring_backward = sp::RingImpl::kP2p;
};

inline int64_t sent_bytes(const sp::Communicator& comm, const char* tag) {
  const auto found = comm.sent_bytes().find(tag);
  return found == comm.sent_bytes().end() ? 0 : found->second;
}

// Throws unless the bytes sent are the plan's, `passes` times forward and, with_backward, once
// backward.
inline void check_bytes(const sp::AttentionPlan& plan, const sp::ProcessGroups& comms,
                        at::ScalarType dtype, bool with_backward) {
  const int64_t element = at::elementSize(dtype);
  const int64_t accumulated = dtype == at::kDouble ? 8 : 4;
  const int64_t both = with_backward ? 2 : 1;
  const int64_t kv_grad_element = plan.head_split.kv_heads_shared ? accumulated : element;
  const auto expect = [](const sp::Communicator& comm, const char* tag, int64_t bytes) {
    TORCH_CHECK(sent_bytes(comm, tag) == bytes, tag, ": sent ", sent_bytes(comm, tag),
                " bytes, planned ", bytes);
  };
  const sp::Traffic& t = plan.traffic;
  expect(*comms.tensors(sp::axes::kUlysses), "ulysses_query", both * t.ulysses_query * element);
  expect(*comms.tensors(sp::axes::kUlysses), "ulysses_kv", t.ulysses_kv * element);
  expect(*comms.tensors(sp::axes::kUlysses), "ulysses_output", both * t.ulysses_output * element);
  expect(*comms.tensors(sp::axes::kRing), "ring_kv",
         (t.ring_kv + (with_backward ? t.ring_kv_again : 0)) * element);
  expect(*comms.tensors(sp::axes::kUlysses), "ulysses_kv_grad",
         with_backward ? t.ulysses_kv_grad * kv_grad_element : 0);
  expect(*comms.tensors(sp::axes::kRing), "ring_kv_grad",
         with_backward ? t.ring_kv_grad * accumulated : 0);
}

struct RankSolution {
  std::vector<int64_t> packed;        // of this rank's tokens
  std::vector<int64_t> packed_share;  // of its ring share's
  sp::Range query_heads;
  Solution local;  // lse: [share rows, this rank's heads]
};

// The plan of this rank, and a solution that has only its places yet.
inline std::pair<std::shared_ptr<const sp::AttentionPlan>, RankSolution> plan_on_rank(
    const Problem& p, const Split& split, const sp::Mesh& mesh) {
  const sp::SequenceLayout layout(p.forest, mesh.shape().ring, mesh.shape().ulysses,
                                  split.placement);
  const auto plan = std::make_shared<const sp::AttentionPlan>(sp::plan_attention(
      layout, p.heads, mesh.sp_rank(),
      {split.ring_impl, split.heads_k_stride, p.window, split.prune, split.ring_backward}));
  RankSolution result;
  result.packed = layout.packed_indices(mesh.sp_rank());
  for (const sp::TokenRun& run : layout.ring_share(mesh.ring_rank())) {
    for (int64_t i = layout.packed(run).begin; i < layout.packed(run).end; ++i) {
      result.packed_share.push_back(i);
    }
  }
  result.query_heads = plan->head_split.query_heads_of[plan->ulysses_rank];
  return {plan, result};
}

// Collective over the mesh.
inline RankSolution solve_on_rank(
    const Problem& p, const Split& split, const sp::Mesh& mesh, const sp::ProcessGroups& comms,
    at::ScalarType dtype,
    const std::shared_ptr<const sp::RingStepKernels>& kernels = sp::cpu_kernels()) {
  auto [plan, result] = plan_on_rank(p, split, mesh);
  const at::Tensor index = at::tensor(result.packed, at::kLong);
  const auto local = [&](const at::Tensor& x) { return x.index_select(0, index).to(dtype); };
  const at::Tensor q = local(p.q).requires_grad_(), k = local(p.k).requires_grad_(),
                   v = local(p.v).requires_grad_();
  const at::Tensor sinks = p.sinks.defined()
                               ? p.sinks.to(sp::accumulation_dtype(dtype)).clone().requires_grad_()
                               : at::Tensor();
  comms.tensors(sp::axes::kUlysses)->reset_counters();
  comms.tensors(sp::axes::kRing)->reset_counters();
  const auto prepared = kernels->prepare(plan, q.options());
  const at::Tensor out = sp::attention(
      q, k, v, {prepared, comms.tensors(sp::axes::kUlysses), comms.tensors(sp::axes::kRing)},
      {p.scale, sinks});
  check_bytes(*plan, comms, dtype, /*with_backward=*/false);
  out.backward(local(p.dout));
  check_bytes(*plan, comms, dtype, /*with_backward=*/true);

  const at::NoGradGuard no_grad;
  const auto [q_ShD, kv_S2kD] =
      sp::qkv_to_heads(q, k, v, sp::attention_exchange(plan->head_split, plan->ulysses_rows),
                       *comms.tensors(sp::axes::kUlysses));
  const auto partial =
      sp::run_forward(q_ShD, kv_S2kD, *prepared, *comms.tensors(sp::axes::kRing), p.scale);
  result.local = {out.detach(), partial.lse, q.grad(),
                  k.grad(),     v.grad(),    sinks.defined() ? sinks.grad() : at::Tensor()};
  return result;
}

// The shards of all ranks as one packed solution, in fp64.
inline Solution join(const Problem& p, const std::vector<RankSolution>& ranks) {
  Solution whole{at::empty_like(p.q), at::empty({p.q.size(0), p.q.size(1)}, at::kDouble),
                 at::empty_like(p.q), at::empty_like(p.k),
                 at::empty_like(p.v), p.sinks.defined() ? at::zeros_like(p.sinks) : at::Tensor()};
  for (const RankSolution& rank : ranks) {
    const at::Tensor index = at::tensor(rank.packed, at::kLong);
    const auto put = [&](at::Tensor& to, const at::Tensor& from) {
      to.index_copy_(0, index, from.to(at::kDouble));
    };
    put(whole.out, rank.local.out);
    put(whole.dq, rank.local.dq);
    put(whole.dk, rank.local.dk);
    put(whole.dv, rank.local.dv);
    whole.lse.narrow(1, rank.query_heads.begin, rank.query_heads.size())
        .index_copy_(0, at::tensor(rank.packed_share, at::kLong), rank.local.lse.to(at::kDouble));
    if (p.sinks.defined()) {
      whole.dsinks.add_(rank.local.dsinks);
    }
  }
  return whole;
}

inline Solution solve_on_mesh(
    const Problem& p, const Split& split, sp::MeshShape shape, at::ScalarType dtype,
    const std::shared_ptr<const sp::RingStepKernels>& kernels = sp::cpu_kernels()) {
  std::vector<RankSolution> ranks(shape.world_size());
  run_ranks_in_memory(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    ranks[mesh.rank()] = solve_on_rank(p, split, mesh, comms, dtype, kernels);
  });
  return join(p, ranks);
}

}  // namespace ringside::test
