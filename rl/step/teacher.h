// Teacher: a frozen language model that the policy is distilled from. It scores a step's loss
// tokens before the updates, as the reference does. For a divergence of whole distributions it also
// leaves what the loss needs of its own: its final hidden states, or its most likely tokens.
// Shapes: n = loss entries of this rank, F = hidden size of the teacher, K = most likely tokens.
#pragma once

#include <memory>
#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/config/config.h"
#include "rl/losses/figures.h"
#include "rl/step/column_tensors.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

class Teacher {
 public:
  // Loads algorithm.distillation.teacher as constants in the compute dtype, sharded and cut like
  // `policy`. Its weights are read, also where model.init is random; a teacher in model.path starts
  // as the policy does. config must outlive it. Not collective.
  // Throws: as load_starting_stages(); std::invalid_argument when it has fewer words than the
  // policy.
  Teacher(const Config& config, const engine::HeadedModel& policy, const sp::ProcessGroups& comms);

  const engine::ModelRunner& runner() const { return runner_; }
  engine::ModelRunner& runner() { return runner_; }

  // One pass over the step's tokens. The log-probs of the loss tokens become columns.teacher when
  // `outputs` are stored; what distillation_loss() reads becomes `said` of the mini-batches.
  // seen: the same mini-batches, collated for the teacher; its tokens are on the same ranks.
  // Collective over: as ModelRunner::evaluate.
  // Throws: c10::Error when the two have other loss entries.
  void score(StepColumns& columns, const std::vector<LocalBatch>& seen,
             std::vector<LocalBatch>& mini_batches, ColumnOutputs& outputs) const;

  // The loss of whole distributions: coef x the sum of weight x divergence (divergence.h),
  // differentiable towards the policy; a scalar, this rank's part. Figures: the sum of `loss`, and
  // the mean `divergence`. A rank of a pipeline without the head gets 0.
  // entries: weight, and what score() left.
  // Collective over: the shards of policy and teacher, the policy's also in the backward.
  at::Tensor distillation_loss(const engine::HeadedModel& policy, const engine::HeadOutput& output,
                               const engine::Columns& entries, Figures& figures) const;

 private:
  at::Tensor divergence(const engine::HeadedModel& policy, const engine::HeadOutput& output,
                        const engine::Columns& entries) const;

  const DistillationConfig& config_;
  int64_t words_;  // of the policy
  engine::ModelRunner runner_;
};

// The teacher that the configuration asks for, or nullptr. Not collective.
// Throws: as Teacher.
std::unique_ptr<Teacher> make_teacher(const Config& config, const engine::HeadedModel& policy,
                                      const sp::ProcessGroups& comms);

}  // namespace ringside::rl
