// Gradient sync: sums every unit's gradient over the ranks, starting when its backward has ended.
//
// A whole unit's gradient is summed over all ranks, tensor-parallel ones included. A sharded unit's
// is summed over the shard, where each rank receives its own range, and the range then over the
// replicas. A part's gradient (experts', or of matrices that tensor-parallel ranks divide) has the
// tokens of all ranks whose parts make up the unit, so it is summed over the ranks with the same
// part alone. The sum over a shard adds the ranks in the order of their
// numbers, so that its bits depend on nothing else; the others are the communicator's all-reduces.
#pragma once

#include <memory>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/params/param_unit.h"
#include "sp/mesh/communicator.h"

namespace ringside::engine {

// Sums start in the order of the backward, which is the same on every rank. One object a model.
// Collective over: the world.
// Thread safety: none; backward passes must run in the calling thread (RankThread).
class GradientSync {
 public:
  // The units must outlive the object. It hooks into their gradients. world: all ranks whose losses
  // are summed. context: of the model. Sends nothing.
  GradientSync(const std::vector<ParamUnit*>& units, std::shared_ptr<sp::Communicator> world,
               const ComputeContext& context);
  ~GradientSync();
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  // The next backward is the last one of its pass for all units that it reaches, as that of a
  // stage's last input: each unit's sum starts when its gradient is complete.
  void expect_last_backward();

  // Ends a backward: waits for sums over shards that it started.
  // Blocks: as finish().
  void end_backward();

  // Starts the sums that no backward started, in the order of the units, and waits for all of them.
  // Blocks: until the sums are there; on CUDA only the current stream waits, unless gradients live
  // in host memory.
  void finish();

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace ringside::engine
