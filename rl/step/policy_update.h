// One optimizer step of the policy over the micro-batches of a mini-batch. Every algorithm uses it
// and passes its own loss function.
// Shapes: n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/step/update_loss.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

// The loss over the entries of one input, a differentiable scalar, and its figures. columns: the
// input's, on the device.
using LossFunction = std::function<at::Tensor(const engine::HeadOutput& output,
                                              const engine::Columns& columns, Figures& figures)>;

// Figures of sequence parallelism in one update, over all ranks.
struct SequenceFigures {
  double prefix_saving = 1.0;    // tokens of the documents / tokens computed
  double pair_saving = 1.0;      // query-key pairs of the documents / pairs computed
  double predicted_bytes = 0.0;  // bytes that attention sends according to the plans
  double sent_bytes = 0.0;       // bytes that attention sent
  double balance_tokens = 1.0;   // fullest ring rank / mean, in the worst micro-batch
  double balance_pairs = 1.0;
};

// Replayed routes in one update, over all ranks.
struct RouteFigures {
  double replayed = 0.0;  // ids: tokens x layers with experts x experts a token
  double changed = 0.0;   // of them, those that the router would not have chosen
};

// How the experts of a model were used in one update, over all ranks.
struct ExpertFigures {
  bool present = false;   // the model has experts
  double load_max = 0.0;  // rows of the fullest expert / mean of its layer, in the worst layer
  double unused = 0.0;    // share of all experts that got no row
  std::optional<double> aux_loss = {};  // StepResult::balance_loss
};

struct UpdateResult {
  StepFigures figures;  // of the loss function, over all ranks
  SequenceFigures sequence;
  RouteFigures routes;
  ExpertFigures experts;
  std::optional<double> further_loss = {};  // StepResult::further_loss
  double grad_norm = 0.0;  // of the summed gradient, before the clip; 0 for a skipped step
  double learning_rate = 0.0;
  double loss_scale = 0.0;  // of float16; 0 without
  bool skipped = false;     // because the gradients overflowed under that scale
  // Of each input in order, on the device: log-probs of the weights before the optimizer step, as
  // its forward pass computed them; none of a reward model. Shapes: [n].
  std::vector<at::Tensor> logprobs = {};
};

// The figures of all updates together.
StepFigures merged_figures(std::span<const UpdateResult> updates);

struct StepSize {
  double learning_rate = 0.0;
  double max_grad_norm = 0.0;  // 0 = no clipping
};

// Accumulates gradients over all inputs and takes one optimizer step. The result is the same on
// every rank; its learning_rate is left to the caller.
// Collective over: the world.
// Throws: as ModelRunner::step.
UpdateResult update_policy(engine::ModelRunner& policy, std::span<const engine::ModelInput> inputs,
                           const LossFunction& loss, StepSize size, sp::Communicator& control);

}  // namespace ringside::rl
