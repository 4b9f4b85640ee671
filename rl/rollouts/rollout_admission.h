// Rules that a rollout must keep before the trainer takes it.
//
// They go beyond bridge::validate(), which knows neither the model nor the recipe. A rollout that
// breaks one would end the run (a token id that the model does not have), or would be trained on as
// something it is not. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/models/model_config.h"
#include "rl/config/config.h"
#include "rl/rollouts/granted_prompts.h"
#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/trainer/admission.h"

namespace ringside::rl {

// What a model takes.
struct ModelBounds {
  int64_t vocab_size = 0;     // token ids are below it
  int64_t max_positions = 0;  // tokens of one sequence, prompt included
};

ModelBounds model_bounds(const engine::ModelConfig& model);

// The largest magnitude of a reward, a turn's reward or an advantage: far above any use, and its
// square sums without overflow.
inline constexpr double kMaxReward = 1e6;

// What holds wherever rollouts come from. The rollout must have passed bridge::validate(). Reasons:
//   vocabulary  a token id is not below vocab_size
//   too_long    prompt and completion (of each branch) exceed max_positions
//   sampling    top_p or top_k cut the distribution: log-probs cannot be recomputed
//   rewards     a name twice; a magnitude above kMaxReward; some of the names in rollout.reward but
//   not all; neither reward nor
//               advantages for a completion that did not fail; advantages missing for estimator
//               given, or alone for another
// Pure, thread-safe.
bridge::Status check_recorded(const bridge::Rollout& rollout, const Config& config,
                              const ModelBounds& model);

// The rules for live workers, which sample what the trainer asks of them. Beside check_recorded():
//   invalid_field  group_size is not rollout.group_size
//   too_long       the prompt exceeds rollout.max_prompt_tokens, or a turn
//   rollout.max_completion_tokens. A turn is a run of
//                  sampled tokens (loss_mask 1) that no turn_offset, branch or masked token
//                  divides: what one request to a server returned. A conversation of many turns is
//                  bounded by the model's positions alone.
//   sampling       temperature is not rollout.temperature
//   rewards        the names are not those of rollout.reward; any names where it is "worker"
//   prompt         prompt_ids is not the prompt that the group stands for
//   stale          a version of this trainer start below the group's min_version
class LiveAdmission final : public bridge::AdmissionPolicy {
 public:
  // prompts: null where this trainer does not have them; prompts are then judged by their length
  // alone.
  LiveAdmission(Config config, ModelBounds model, int64_t trainer_term,
                std::unique_ptr<GrantedPrompts> prompts);

  bridge::Status admit(const bridge::Rollout& rollout) override;

 private:
  bridge::Status check_lengths(const bridge::Rollout& rollout) const;
  bridge::Status check_names(const bridge::Rollout& rollout) const;
  bridge::Status check_prompt(const bridge::Rollout& rollout);
  bridge::Status check_versions(const bridge::Rollout& rollout) const;

  Config config_;
  ModelBounds model_;
  int64_t trainer_term_;
  std::vector<std::string> reward_names_;  // empty: the worker's own
  std::unique_ptr<GrantedPrompts> prompts_;
};

}  // namespace ringside::rl
