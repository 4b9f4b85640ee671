// Teachers: what the policy is distilled from, one model for all completions or one for those of
// each source. A model of the trainer's own is frozen and scores a step's loss tokens before the
// updates, as the reference does; a server has been asked before. For a divergence of whole
// distributions they also leave what the loss needs: a model's final hidden states, or the most
// likely tokens.
// Shapes: n = loss entries of this rank, F = hidden size of a teacher, K = most likely tokens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/models/teacher_divergence.h"
#include "engine/runner/model_runner.h"
#include "rl/config/config.h"
#include "rl/config/teacher.h"
#include "rl/losses/figures.h"
#include "rl/step/column_tensors.h"
#include "rl/step/served_teachers.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

// A teacher whose model the trainer has.
class Teacher {
 public:
  // Loads teachers_of()[place] as constants in the compute dtype, sharded and cut like `policy`.
  // Its weights are read, also where model.init is random; a teacher in model.path starts as the
  // policy does. config must outlive it. Not collective.
  // Throws: as load_starting_stages(); std::invalid_argument when it has fewer words than the
  // policy.
  Teacher(const Config& config, int64_t place, const engine::HeadedModel& policy,
          const sp::ProcessGroups& comms);

  const engine::ModelRunner& runner() const { return runner_; }
  engine::ModelRunner& runner() { return runner_; }
  const TeacherEntry& entry() const { return entry_; }

  // One pass over the step's tokens that it is to judge. The log-probs of the loss tokens become
  // columns.teacher when `outputs` are stored; what divergence() reads becomes `said` of the
  // mini-batches.
  // seen: the same mini-batches, collated for the teacher; its tokens are on the same ranks.
  // Collective over: as ModelRunner::evaluate.
  // Throws: c10::Error when the two have other loss entries.
  void score(StepColumns& columns, const std::vector<LocalBatch>& seen,
             std::vector<LocalBatch>& mini_batches, ColumnOutputs& outputs) const;

  // Whether these are entries that it left its hidden states for.
  bool has_hidden(const engine::Columns& entries) const { return entries.has(hidden_name_); }
  // Their divergence over the vocabulary, [n]. As Teachers::distillation_loss().
  at::Tensor vocabulary_divergence(const engine::HeadedModel& policy,
                                   const engine::ScoredEntries& scored,
                                   const engine::Columns& entries,
                                   const engine::Divergence& divergence) const;

 private:
  // Keeps what the loss needs of a micro-batch's output.
  void keep(const engine::ModelInput& input, const engine::HeadOutput& output,
            engine::Columns& said, HostCopies& copies) const;

  const Config& config_;
  int64_t place_;
  TeacherEntry entry_;
  std::string hidden_name_;  // of its column of hidden states
  int64_t words_;            // of the policy
  engine::ModelRunner runner_;
};

class Teachers {
 public:
  // All teachers_of(): every model is loaded and stays. config must outlive it. Not collective.
  // Throws: as Teacher and ServedTeachers.
  Teachers(const Config& config, const engine::HeadedModel& policy, const sp::ProcessGroups& comms);

  // Those whose models the trainer has.
  std::vector<std::unique_ptr<Teacher>>& models() { return models_; }
  const std::vector<std::unique_ptr<Teacher>>& models() const { return models_; }
  const ServedTeachers& servers() const { return servers_; }

  // Fills columns.teacher of this rank's loss tokens and `said` of the mini-batches, each
  // micro-batch by the teacher of its kind.
  // seen: for each of models() the mini-batches, collated for it. served: as servers() answered.
  // scores: whether this rank has the policy's head.
  // Collective, throws: as Teacher::score().
  void score(StepColumns& columns, const std::vector<std::vector<LocalBatch>>& seen,
             const ServedColumns& served, bool scores, std::vector<LocalBatch>& mini_batches,
             ColumnOutputs& outputs) const;

  // The loss of whole distributions: coef x the sum of weight x divergence (divergence.h),
  // differentiable towards the policy; a scalar, this rank's part. Figures: the sum of `loss`, and
  // the mean `divergence`. A rank of a pipeline without the head gets 0.
  // entries: weight, and what score() left.
  // Collective over: the tensor-parallel ranks; the shards of policy and teacher, the policy's also
  // in the backward.
  at::Tensor distillation_loss(const engine::HeadedModel& policy, const engine::HeadOutput& output,
                               const engine::Columns& entries, Figures& figures) const;

 private:
  void put_served(StepColumns& columns, const ServedColumns& served, LocalBatch& local) const;
  at::Tensor divergence(const engine::HeadedModel& policy, const engine::HeadOutput& output,
                        const engine::Columns& entries) const;

  const Config& config_;
  std::vector<std::unique_ptr<Teacher>> models_;
  ServedTeachers servers_;
  at::ScalarType dtype_;  // of columns
};

// The teachers that the configuration asks for, or nullptr. Not collective.
// Throws: as Teachers.
std::unique_ptr<Teachers> make_teachers(const Config& config, const engine::HeadedModel& policy,
                                        const sp::ProcessGroups& comms);

}  // namespace ringside::rl
