// Exchange of a layer that passes a state along each document with the other ranks of its ring, by
// its plan: rows before a piece, maps of the state. What the layer computes, and the exchange of
// channels for head groups (sp/heads), are the caller's. All functions are differentiable with
// exact adjoints.
//
// Shapes: S = rows of this rank's ring share, c = channels, n = runs that do not continue a run of
// this rank, m = mapped runs, h = this rank's value heads, K, V = dims of a state.
// Blocks: until this rank's result is there; on CUDA only the current stream waits.
// Throws: c10::Error on shapes that do not match the plan, before anything is sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sp/mesh/communicator.h"
#include "sp/plan/state_plan.h"

namespace ringside::sp {

// What the calls of a micro-batch share. The communicators are kept until the graph is freed.
struct StateContext {
  std::shared_ptr<const StatePlan> plan;
  at::Tensor sent_rows;  // sent_rows(*plan) on the rank's device; undefined: rows do not travel
  std::shared_ptr<Communicator> ulysses;  // exchanges channels for head groups
  std::shared_ptr<Communicator> ring;
};

// The rows of plan.send_rows, rank after rank.
std::vector<int64_t> sent_rows(const StatePlan& plan);

// The rows of other ranks that precede runs of this rank, in the order of plan.halo.
// Shapes: x_Sc with the rows of the ring share; returns [received rows, c], undefined when no ring
// rank sends rows.
// Collective over: the ring if something is sent in it, forward and backward; ranks that share no
// document exchange nothing. Every rank must use a defined result in its loss.
at::Tensor rows_of_other_ranks(const at::Tensor& x_Sc, const StateContext& context);

// The state that each run starts from, if it does not continue a run of this rank. The maps are
// those of plan.mapped_runs in the accumulation dtype: end = transition start + added.
// Shapes: added_mhKV, transition_mhKK; returns [n, h, K, V], undefined when no ring rank sends
// maps.
// Collective over: the ring if something is sent in it, forward and backward. Every rank must use a
// defined result in its loss.
at::Tensor start_states(const at::Tensor& added_mhKV, const at::Tensor& transition_mhKK,
                        const StateContext& context);

}  // namespace ringside::sp
