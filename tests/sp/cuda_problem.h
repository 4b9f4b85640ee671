// An attention problem (attention_problem.h) solved by a mesh of ranks with kernels of any device;
// ranks that share a device exchange through the host.
#pragma once

#include <memory>
#include <vector>

#include "sp/attention/cuda/varlen_group_ops.h"
#include "tests/sp/attention_problem.h"
#include "tests/support/host_staged_communicator.h"

namespace ringside::test {

struct Target {
  std::shared_ptr<const sp::RingStepKernels> kernels;
  at::ScalarType dtype;

  at::Tensor place(const at::Tensor& x) const { return x.to(dtype).to(kernels->device()); }
};

// attention() forward and backward without autograd, which runs the backward of a device's tensors
// in one thread for the process: ranks that are threads would wait for each other in it forever.
// Collective over the mesh. The solution lies on the CPU.
inline RankSolution solve_on_rank_with(const Problem& p, const Split& split, const sp::Mesh& mesh,
                                       const sp::ProcessGroups& comms, const Target& target) {
  auto [plan, result] = plan_on_rank(p, split, mesh);
  const at::Tensor index = at::tensor(result.packed, at::kLong);
  const auto local = [&](const at::Tensor& x) { return target.place(x.index_select(0, index)); };
  const at::Tensor q = local(p.q), k = local(p.k), v = local(p.v);
  comms.tensors(sp::axes::kUlysses)->reset_counters();
  comms.tensors(sp::axes::kRing)->reset_counters();
  const auto ulysses = comms.tensors(sp::axes::kUlysses);
  const auto exchange = sp::attention_exchange(plan->head_split, plan->ulysses_rows);
  const auto [q_ShD, kv_S2kD] = sp::qkv_to_heads(q, k, v, exchange, *ulysses);
  const auto prepared = target.kernels->prepare(plan, q.options());
  const auto whole =
      sp::run_forward(q_ShD, kv_S2kD, *prepared, *comms.tensors(sp::axes::kRing), p.scale);
  const at::Tensor out_ShD = whole.out.to(target.dtype);
  const at::Tensor out = sp::to_sequence(out_ShD, exchange.query, *ulysses, "ulysses_output");
  check_bytes(*plan, comms, target.dtype, /*with_backward=*/false);

  const at::Tensor dout_ShD =
      sp::to_heads(local(p.dout), exchange.query, *ulysses, "ulysses_query");
  const auto grads = sp::run_backward({dout_ShD, q_ShD, out_ShD, whole.lse}, kv_S2kD, *prepared,
                                      *comms.tensors(sp::axes::kRing), p.scale);
  const auto kv_wire =
      plan->head_split.kv_heads_shared ? sp::accumulation_dtype(target.dtype) : target.dtype;
  const auto [dq, dk, dv] = sp::qkv_gradients_to_sequence(
      grads.dq_ShD.to(target.dtype), grads.dkv_S2kD.to(kv_wire), exchange, *ulysses);
  check_bytes(*plan, comms, target.dtype, /*with_backward=*/true);
  result.local = {
      out.cpu(), whole.lse.cpu(), dq.cpu(), dk.to(target.dtype).cpu(), dv.to(target.dtype).cpu(),
      {}};
  return result;
}

inline Solution solve_on_mesh_with(const Problem& p, const Split& split, sp::MeshShape shape,
                                   const Target& target) {
  std::vector<RankSolution> ranks(shape.world_size());
  run_ranks_in_memory(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    ranks[mesh.rank()] = solve_on_rank_with(p, split, mesh, host_staged(mesh, comms), target);
  });
  return join(p, ranks);
}

// |a - b| / |b|, of all elements together: what rounding to a narrow dtype changes hardly depends
// on how the work is split.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  return ((a.cpu().to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

// Of out, dq, dk and dv.
inline std::vector<double> relative_errors(const Solution& a, const Solution& b) {
  return {relative_error(a.out, b.out), relative_error(a.dq, b.dq), relative_error(a.dk, b.dk),
          relative_error(a.dv, b.dv)};
}

// Rounds a problem's inputs to dtype, so that the oracle sees what the kernels see.
inline Problem rounded(Problem p, at::ScalarType dtype) {
  for (at::Tensor* x : {&p.q, &p.k, &p.v, &p.dout}) {
    *x = x->to(dtype).to(at::kDouble);
  }
  return p;
}

// The problem's documents as they come, in one call of the kernels: what the rounding of the kernel
// alone does. The forest's segments must be documents. lse is left out.
inline Solution solve_in_one_call(const Problem& p, const sp::VarlenGroupOps& ops,
                                  at::ScalarType dtype) {
  std::vector<sp::Range> documents;
  for (int64_t s = 0; s < p.forest.num_segments(); ++s) {
    TORCH_CHECK(p.forest.parent(s) == -1, "segment ", s, " is no document");
    documents.push_back(p.forest.packed(s));
  }
  const at::Device device = ops.device();
  const auto call = sp::make_varlen_call(documents, documents, {-1, 0}, device);
  const auto place = [&](const at::Tensor& x) { return x.to(dtype).to(device); };
  const at::Tensor q = place(p.q), k = place(p.k), v = place(p.v);
  const auto [out, lse] = ops.attend(q, k, v, call, p.scale);
  const auto [dq, dk, dv] = ops.attend_backward(place(p.dout), q, k, v, out, lse, call, p.scale);
  return {out.cpu(), {}, dq.cpu(), dk.cpu(), dv.cpu(), {}};
}

}  // namespace ringside::test
