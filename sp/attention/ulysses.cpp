#include "sp/attention/ulysses.h"

#include <ATen/ATen.h>

#include <utility>

#include "sp/mesh/head_packing.h"

namespace ringside::sp {
namespace {

HeadExchange query_exchange(const AttentionPlan& plan) {
  return {plan.ulysses_rows, {plan.head_split.query_heads_of}};
}

HeadExchange kv_exchange(const AttentionPlan& plan) {
  return {plan.ulysses_rows, {plan.head_split.kv_heads_of, plan.head_split.kv_heads_of}};
}

}  // namespace

at::Tensor sequence_to_heads(const at::Tensor& q_sHD, const AttentionPlan& plan,
                             Communicator& ulysses) {
  if (plan.ulysses_size() == 1) {
    return q_sHD;
  }
  const auto exchange = query_exchange(plan);
  return finish_joined_to_heads(start_to_heads({q_sHD}, exchange, ulysses, "ulysses_query"),
                                exchange, ulysses);
}

at::Tensor heads_to_sequence(const at::Tensor& out_ShD, const AttentionPlan& plan,
                             Communicator& ulysses) {
  if (plan.ulysses_size() == 1) {
    return out_ShD;
  }
  const auto exchange = query_exchange(plan);
  return finish_to_sequence(start_joined_to_sequence(out_ShD, exchange, ulysses, "ulysses_output"),
                            exchange, ulysses)[0];
}

HeadShard qkv_to_heads(const at::Tensor& q_sHD, const at::Tensor& k_sKD, const at::Tensor& v_sKD,
                       const AttentionPlan& plan, Communicator& ulysses) {
  if (plan.ulysses_size() == 1) {
    return {q_sHD, at::cat({k_sKD, v_sKD}, /*dim=*/1)};
  }
  const auto query = query_exchange(plan);
  const auto kv = kv_exchange(plan);
  auto query_started = start_to_heads({q_sHD}, query, ulysses, "ulysses_query");
  auto kv_started = start_to_heads({k_sKD, v_sKD}, kv, ulysses, "ulysses_kv");
  at::Tensor q_ShD = finish_joined_to_heads(std::move(query_started), query, ulysses);
  return {std::move(q_ShD), finish_joined_to_heads(std::move(kv_started), kv, ulysses)};
}

SequenceGradients gradients_to_sequence(const at::Tensor& dq_ShD, const at::Tensor& dkv_S2kD,
                                        const AttentionPlan& plan, Communicator& ulysses) {
  if (plan.ulysses_size() == 1) {
    const int64_t k = plan.local_kv_heads();
    return {dq_ShD, dkv_S2kD.narrow(1, 0, k), dkv_S2kD.narrow(1, k, k)};
  }
  const auto query = query_exchange(plan);
  const auto kv = kv_exchange(plan);
  auto query_started = start_joined_to_sequence(dq_ShD, query, ulysses, "ulysses_output");
  auto kv_started = start_joined_to_sequence(dkv_S2kD, kv, ulysses, "ulysses_kv_grad");
  auto dq = finish_to_sequence(std::move(query_started), query, ulysses);
  auto dkv = finish_to_sequence(std::move(kv_started), kv, ulysses);
  return {std::move(dq[0]), std::move(dkv[0]), std::move(dkv[1])};
}

}  // namespace ringside::sp
