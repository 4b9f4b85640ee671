// Execution of a pipeline's plan by one rank: the runs of its stages in the plan's order, and the
// messages between them and the stages of other ranks.
//
// A message starts where the plan has it, which is directly behind the run that makes it, on both
// ranks. It is waited for where a run needs it. So its receiver posts it before it is used, and no
// transport can deadlock: every rank waits only for events that stand earlier in the plan's order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sp/mesh/communicator.h"
#include "sp/plan/pipeline_plan.h"

namespace ringside::engine {

// The tag by which messages between stages are counted.
inline constexpr const char* kPipelineTag = "pipeline";

// What the stages of a rank compute.
// Thread safety: none.
class StageWork {
 public:
  virtual ~StageWork() = default;

  // Memory for the hidden states of an input between two stages, or their gradient. Both ends of a
  // message give the same shape and dtype; without elements it is not sent.
  virtual at::Tensor message(int64_t input) = 0;

  // The stage's forward. received: hidden states of the stage before; undefined for the first.
  // Returns those for the next stage, contiguous, outside autograd; undefined from the last one.
  virtual at::Tensor forward(int64_t stage, int64_t input, const at::Tensor& received) = 0;

  // The backward of such a forward: gradients of the stage's input and weights. gradient: of what
  // forward() returned; undefined for the last stage. Returns that of what it received, contiguous;
  // undefined from the first.
  virtual at::Tensor backward(int64_t stage, int64_t input, const at::Tensor& gradient) = 0;

  // backward() in two parts: without, and then the rest of, the gradients of weights.
  virtual at::Tensor input_gradient(int64_t stage, int64_t input, const at::Tensor& gradient) = 0;
  virtual void weight_gradient(int64_t stage, int64_t input) = 0;
};

// Executes this rank's part of the plan. line: the ranks of the plan, in its order.
// Collective over: `line`, with the same plan.
// Blocks: until all runs are done and all messages have left; on CUDA only streams wait.
// Throws: what `work` throws; std::exception when a message does not come within the group's
// timeout.
void run_pipeline(const sp::PipelinePlan& plan, const sp::PipelineShape& shape,
                  sp::Communicator& line, StageWork& work);

}  // namespace ringside::engine
