// Admission rules for rollouts: what the trainer checks before it accepts one.
//
// The rules go beyond bridge::validate(), which knows neither the model nor the recipe. A rollout
// that breaks a rule would end the run (for example a token id that the model does not have) or
// would be trained on with a wrong meaning. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/layers/model_config.h"
#include "rl/config/config.h"
#include "rl/data/image_prompts.h"
#include "rl/rollouts/granted_prompts.h"
#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/trainer/admission.h"

namespace ringside::rl {

// Limits of a model's inputs.
struct ModelBounds {
  int64_t vocab_size = 0;     // token ids are below it
  int64_t max_positions = 0;  // tokens of one sequence, prompt included
  // Of a model with experts: the layers that have them, how many there are, how many a token uses.
  std::vector<int64_t> expert_layers = {};
  int64_t experts = 0;
  int64_t experts_per_token = 0;
};

// Of the model that is trained.
ModelBounds model_bounds(const engine::ModelConfig& model);

// Rules for rollouts of every source. The rollout must have passed bridge::validate(). Reasons:
//   vocabulary  a token id, or one of a kept set, is not below vocab_size
//   too_long    prompt and completion (of each branch) exceed max_positions
//   sampling    top_p or top_k truncates the distribution: log-probs cannot be recomputed. With
//               algorithm.logprobs_over kept: a sampled token of a completion that did not fail has
//               no kept set
//   rewards     a name occurs twice; a magnitude exceeds kMaxReward; only some of the names in
//               rollout.reward are there; a completion that did not fail has neither reward nor
//               advantages; advantages are missing for estimator given; there are only advantages
//               for another estimator
//   routes      with algorithm.router_replay rollout: a completion that did not fail has no routed
//               experts, or there are some of other layers, another number a token, or with an id
//               that the model does not have
// Of the greedy sample of a group (estimator remax) those on vocabulary, lengths and rewards.
// Thread safety: pure function.
bridge::Status check_recorded(const bridge::Rollout& rollout, const Config& config,
                              const ModelBounds& model);

// Rules for live workers, which sample the prompts that the trainer grants. In addition to
// check_recorded():
//   invalid_field  group_size is not rollout.group_size, with estimator remax one more
//   too_long       the prompt exceeds rollout.max_prompt_tokens, or a turn exceeds
//                  rollout.max_completion_tokens. A turn is a run of sampled tokens (loss_mask 1)
//                  not divided by a turn_offset, a branch or a masked token: the result of one
//                  request to a server. A conversation of several turns is limited only by the
//                  model's positions.
//   sampling       temperature, top_p or top_k is not that of the recipe
//   rewards        the names are not those of rollout.reward (any names if that is "worker")
//   prompt         prompt_ids is not the prompt of the group
//   images         the conversation has images although the model takes none; or one of a size that
//                  the processor would change, or on other tokens than its own
// How old a rollout's weights may be is step_policy()'s to say.
class LiveAdmission final : public bridge::AdmissionPolicy {
 public:
  // prompts: nullptr if this trainer does not have them; then only the prompt's length is checked.
  // held_out: token ids of the held-out prompts that workers make samples of. images: of a model
  // that takes images.
  LiveAdmission(Config config, ModelBounds model, std::unique_ptr<GrantedPrompts> prompts,
                std::vector<std::vector<int64_t>> held_out = {},
                std::optional<ImageRules> images = {});

  bridge::Status admit(const bridge::Rollout& rollout) override;
  // Of the rules above those on vocabulary, lengths, rewards and prompt. Reason sampling: the
  // settings are not held_out_sampling().
  bridge::Status admit_held_out(const bridge::Rollout& rollout, int64_t held_out) override;

 private:
  bridge::Status check_lengths(const bridge::Rollout& rollout) const;
  bridge::Status check_sampling(const bridge::Rollout& rollout) const;
  bridge::Status check_names(const bridge::Rollout& rollout) const;
  bridge::Status check_prompt(const bridge::Rollout& rollout);
  bridge::Status check_images(const bridge::Rollout& rollout) const;

  Config config_;
  ModelBounds model_;
  std::vector<std::string> reward_names_;  // empty: rollout.reward is "worker"
  std::unique_ptr<GrantedPrompts> prompts_;
  std::vector<std::vector<int64_t>> held_out_;
  std::optional<ImageRules> images_;
};

}  // namespace ringside::rl
