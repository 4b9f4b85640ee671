// Gradient sync: sums every unit's gradient over the ranks, starting when its backward has ended.
#pragma once

#include <memory>
#include <vector>

#include "engine/params/param_unit.h"
#include "sp/mesh/communicator.h"

namespace ringside::engine {

// Sums start in the order of the backward, which is the same on every rank. One object a model.
// Collective over: the group.
// Thread safety: none; backward passes must run in the calling thread (RankThread).
class GradientSync {
 public:
  // The units must outlive the object. It hooks into their gradients.
  GradientSync(const std::vector<ParamUnit*>& units, std::shared_ptr<sp::Communicator> group);
  ~GradientSync();
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  // The next backward is the last one of its pass: each unit's sum starts when its gradient is
  // complete.
  void expect_last_backward();

  // Starts the sums that no backward started, in the order of the units, and waits for all of them.
  // Blocks: until the sums are there; on CUDA only the current stream waits.
  void finish();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ringside::engine
