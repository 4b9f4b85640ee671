#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rl/config/environment_choice.h"
#include "rl/config/losses_in_words.h"
#include "rl/config/presets.h"
#include "rl/config/sections.h"
#include "rl/config/task.h"
#include "rl/config/teacher.h"
#include "rl/rewards/weighted_rewards.h"

namespace ringside::rl {
namespace {

// Requirements of estimators that compare a sample with its group.
bool uses_groups(AdvantageEstimator estimator) {
  return estimator != AdvantageEstimator::kReinforce && estimator != AdvantageEstimator::kGae &&
         estimator != AdvantageEstimator::kGiven && estimator != AdvantageEstimator::kRemax;
}

template <class E>
std::string word(E value) {
  return std::string(to_string(value));
}

void check_estimator(const AlgorithmConfig& a, int64_t group_size, std::vector<Mistake>& mistakes) {
  const AdvantageEstimator estimator = a.advantage.estimator;
  if (uses_groups(estimator) && group_size < 2) {
    mistakes.push_back(
        {"rollout.group_size", "is 1, but algorithm.advantage.estimator " + word(estimator) +
                                   " measures each sample against its group; expected at least 2"});
  }
  if (!uses_groups(estimator) && a.dynamic_sampling != DynamicSampling::kNone) {
    mistakes.push_back({"algorithm.dynamic_sampling",
                        "is " + word(a.dynamic_sampling) +
                            ", which looks at groups, but algorithm.advantage.estimator " +
                            word(estimator) + " has none; expected none"});
  }
  const bool divided =
      estimator == AdvantageEstimator::kGroupMean || estimator == AdvantageEstimator::kRloo;
  const bool plain =
      a.advantage.std == AdvantageStd::kGroup || a.advantage.std == AdvantageStd::kNone;
  if (!divided && !plain) {
    mistakes.push_back(
        {"algorithm.advantage.std",
         "is " + word(a.advantage.std) + ", but estimator " + word(estimator) +
             " does not use it; expected estimator group_mean or rloo, or std group"});
  }
  if (estimator == AdvantageEstimator::kOptimalTokenBaseline &&
      a.old_logprobs == OldLogprobs::kRollout) {
    mistakes.push_back({"algorithm.old_logprobs",
                        "is rollout, but estimator optimal_token_baseline needs the old policy's "
                        "distributions, not the sampled tokens alone; expected recompute"});
  }
  if (estimator == AdvantageEstimator::kGdpo && a.reward.clip > 0) {
    mistakes.push_back({"algorithm.reward.clip",
                        "is " + text_of(a.reward.clip) +
                            ", but estimator gdpo adds up the rewards one by one, so there is no "
                            "total to clip; expected 0"});
  }
}

// Advantages that come with the rollouts are not computed from rewards here, so keys that shape
// rewards would have no effect.
void check_given(const AlgorithmConfig& a, std::vector<Mistake>& mistakes) {
  if (a.advantage.estimator != AdvantageEstimator::kGiven) {
    return;
  }
  const std::string why =
      ", but algorithm.advantage.estimator given takes advantages as they come, not rewards; "
      "expected ";
  if (a.reward.scale != 1) {
    mistakes.push_back({"algorithm.reward.scale", "is " + text_of(a.reward.scale) + why + "1"});
  }
  if (a.reward.clip > 0) {
    mistakes.push_back({"algorithm.reward.clip", "is " + text_of(a.reward.clip) + why + "0"});
  }
  if (a.reward.overlong_buffer_tokens > 0) {
    mistakes.push_back({"algorithm.reward.overlong_buffer_tokens",
                        "is " + std::to_string(a.reward.overlong_buffer_tokens) + why + "0"});
  }
  if (a.kl_coef > 0 && a.kl_in == KlIn::kReward) {
    mistakes.push_back({"algorithm.kl_in", "is reward" + why + "loss or advantage"});
  }
}

// The preset's text for the key; "" without one.
std::string text_of_preset(const AlgorithmConfig& a, std::string_view key) {
  std::string text;
  for (const PresetValue& value : preset_values(a.preset)) {
    text = value.key == key ? std::string(value.value) : text;
  }
  return text;
}

void check_kl(const AlgorithmConfig& a, std::vector<Mistake>& mistakes) {
  const bool term = a.kl_coef > 0;
  if (a.kl_target > 0 && !term) {
    mistakes.push_back(
        {"algorithm.kl_target",
         "is " + text_of(a.kl_target) +
             ", but algorithm.kl_coef is 0; expected a positive kl_coef to start from"});
  }
  const bool of_preset = text_of_preset(a, "algorithm.kl_average") == word(a.kl_average);
  if (a.kl_average == KlAverage::kSamples && a.kl_in == KlIn::kLoss &&
      (a.kl_target > 0 || !of_preset)) {
    mistakes.push_back({"algorithm.kl_average",
                        "is samples, but algorithm.kl_in loss sums the KL over tokens; expected "
                        "kl_in reward or advantage, or kl_average tokens"});
  }
  if (a.reference_update_every > 0 && a.task == Task::kRl &&
      (!term || a.kl_to != KlTo::kReference)) {
    mistakes.push_back(
        {"algorithm.reference_update_every", "is " + std::to_string(a.reference_update_every) +
                                                 ", but there is no reference policy; expected "
                                                 "kl_coef above 0 and kl_to reference, or 0"});
  }
  if (a.entropy_target > 0 && a.entropy_step == 0) {
    mistakes.push_back({"algorithm.entropy_target",
                        "is " + text_of(a.entropy_target) +
                            ", but algorithm.entropy_step is 0, so the bonus could not move; "
                            "expected a positive entropy_step"});
  }
}

// Of correction.ratio_of current, which the loss computes by itself.
void check_current_correction(const AlgorithmConfig& a, std::vector<Mistake>& mistakes) {
  const CorrectionConfig& c = a.correction;
  const auto refuse = [&](const std::string& key, const std::string& why) {
    mistakes.push_back({"algorithm." + key, why});
  };
  if (a.old_logprobs != OldLogprobs::kRollout && a.loss != "reinforce") {
    refuse("old_logprobs",
           "is recompute, but algorithm.correction.ratio_of current compares the current policy "
           "with the rollout's, without an old one between; expected rollout, or loss reinforce, "
           "which has no ratio");
  }
  const bool weighs = c.mode == CorrectionMode::kTis || c.mode == CorrectionMode::kIcepop ||
                      c.mode == CorrectionMode::kSeqMaskTis;
  if (weighs && a.loss != "reinforce") {
    refuse("correction.mode", "is " + word(c.mode) + ", but the ratio of algorithm.loss " + a.loss +
                                  " is the same one, so that it would count twice; expected loss "
                                  "reinforce, or mode none or mask");
  }
  if (c.normalize) {
    refuse("correction.normalize",
           "is true, which divides by a mean over the step; expected false with ratio_of current");
  }
  if (c.drop_rejected) {
    refuse("correction.drop_rejected",
           "is true, but with ratio_of current tokens are rejected when the denominators are "
           "fixed; expected false");
  }
}

void check_correction(const AlgorithmConfig& a, std::vector<Mistake>& mistakes) {
  const CorrectionConfig& c = a.correction;
  const bool of_old = c.ratio_of == "old";
  if (!of_old) {
    check_current_correction(a, mistakes);
  }
  if (of_old && !c.reject.empty() && a.old_logprobs == OldLogprobs::kRollout) {
    mistakes.push_back({"algorithm.correction.reject",
                        "is set, but algorithm.old_logprobs rollout takes the rollout's log-probs "
                        "for the old ones, so that nothing differs; expected \"\", or "
                        "algorithm.correction.ratio_of current"});
  }
  if (of_old && c.mode != CorrectionMode::kNone && a.old_logprobs == OldLogprobs::kRollout) {
    mistakes.push_back({"algorithm.correction.mode",
                        "is " + word(c.mode) +
                            ", but algorithm.old_logprobs rollout takes the rollout's log-probs "
                            "for the old ones, so there is nothing to correct; expected none, or "
                            "algorithm.correction.ratio_of current"});
  }
  if (c.mode == CorrectionMode::kSeqMaskTis && c.level != CorrectionLevel::kToken) {
    mistakes.push_back({"algorithm.correction.level",
                        "is " + word(c.level) +
                            ", but mode seq_mask_tis uses both the token's ratio and its "
                            "sequence's geometric mean; expected token"});
  }
  if (c.token_high > 0 && c.mode != CorrectionMode::kSeqMaskTis) {
    mistakes.push_back({"algorithm.correction.token_high",
                        "is " + text_of(c.token_high) + ", but algorithm.correction.mode " +
                            word(c.mode) + " does not use it; expected 0, or mode seq_mask_tis"});
  }
  if (c.low > c.high) {
    mistakes.push_back(
        {"algorithm.correction.low", "is " + text_of(c.low) + ", above algorithm.correction.high " +
                                         text_of(c.high) + "; expected at most that"});
  }
}

// Combinations that the other mini-batches of a pass exclude.
void check_passes(const Config& c, std::vector<Mistake>& mistakes) {
  const AlgorithmConfig& a = c.algorithm;
  const bool critic = a.advantage.estimator == AdvantageEstimator::kGae;
  const int64_t of_critic = a.critic.num_mini_batches;
  const bool resamples = a.resampling.method != "none";
  if (c.train.shuffle_mini_batches && c.train.num_mini_batches == 1 &&
      (!critic || of_critic <= 1)) {
    mistakes.push_back({"train.shuffle_mini_batches",
                        "is true, but train.num_mini_batches is 1: every sample is in the same "
                        "optimizer step in any order; expected false, or num_mini_batches above "
                        "1"});
  }
  if (resamples && a.advantage.estimator == AdvantageEstimator::kGiven) {
    mistakes.push_back({"algorithm.resampling.method",
                        "is " + a.resampling.method +
                            ", which draws by rewards, but algorithm.advantage.estimator given "
                            "takes advantages as they come, not rewards; expected none"});
  }
  if ((c.train.shuffle_mini_batches || resamples) && a.router_replay == RouterReplay::kRecompute) {
    mistakes.push_back({"algorithm.router_replay",
                        "is recompute, but train.shuffle_mini_batches or algorithm.resampling "
                        "divides the samples otherwise than the pass of the old policy that "
                        "records the routes; expected router_replay rollout or none"});
  }
  if ((c.train.shuffle_mini_batches || resamples) && distils_distributions(a)) {
    mistakes.push_back({"algorithm.distillation.over",
                        "is " + word(a.distillation.over) +
                            ", but train.shuffle_mini_batches or algorithm.resampling divides the "
                            "samples otherwise than the teacher's pass, whose distributions are "
                            "kept; expected over sampled_token"});
  }
  const int64_t samples = c.rollout.prompts_per_step * c.rollout.group_size;
  if (critic && of_critic > samples) {
    mistakes.push_back({"algorithm.critic.num_mini_batches",
                        "is " + std::to_string(of_critic) + ", but a step has " +
                            std::to_string(samples) + " samples; expected at most that"});
  }
}

void check_router_replay(const Config& c, std::vector<Mistake>& mistakes) {
  const RouterReplay replay = c.algorithm.router_replay;
  if (replay == RouterReplay::kNone) {
    return;
  }
  const auto refuse = [&](const std::string& why) {
    mistakes.push_back({"algorithm.router_replay", "is " + word(replay) + ", but " + why});
  };
  if (!samples_completions(c)) {
    refuse("algorithm.task " + word(c.algorithm.task) +
           " has neither rollouts nor an old policy; expected none");
    return;
  }
  const RolloutServer server = c.rollout.server;
  if (replay == RouterReplay::kRollout &&
      (server == RolloutServer::kLlamaCpp || server == RolloutServer::kPython)) {
    refuse("rollout.server " + word(server) +
           " does not say which experts a token used; expected server embedded, vllm or sglang, "
           "or router_replay none");
  }
  if (replay == RouterReplay::kRecompute && c.algorithm.old_logprobs == OldLogprobs::kRollout) {
    refuse(
        "algorithm.old_logprobs rollout has no pass of the old policy, whose routes could be "
        "replayed; expected old_logprobs recompute, or router_replay rollout or none");
  } else if (replay == RouterReplay::kRecompute &&
             c.train.num_mini_batches * c.algorithm.num_iterations == 1) {
    refuse(
        "a step has one optimizer step, in which the policy is the old policy and chooses the same "
        "experts; expected train.num_mini_batches or algorithm.num_iterations above 1, or "
        "router_replay rollout or none");
  }
}

// Log-probs over kept sets need a sampler that records them, and nobody who reads the policy's
// log-probs over the whole vocabulary before the updates.
void check_kept_sets(const Config& c, std::vector<Mistake>& mistakes) {
  const AlgorithmConfig& a = c.algorithm;
  if (a.logprobs_over != "kept") {
    return;
  }
  const auto refuse = [&](const std::string& key, const std::string& why) {
    mistakes.push_back({key, why});
  };
  if (!samples_completions(c) || (c.rollout.top_p == 1 && c.rollout.top_k == 0)) {
    refuse(
        "algorithm.logprobs_over",
        "is kept, but nothing is left out: rollout.top_p is 1 and rollout.top_k 0, or nothing is "
        "sampled; expected vocabulary, or top_p below 1 or top_k above 0");
  }
  if (c.rollout.server != RolloutServer::kEmbedded || has_sessions(c.rollout)) {
    refuse("algorithm.logprobs_over",
           "is kept, but " +
               (has_sessions(c.rollout) ? "samples of " + sessions_key(c.rollout) + " do"
                                        : "rollout.server " + word(c.rollout.server) + " does") +
               " not say which tokens top_p and top_k left; expected server embedded without "
               "sessions, or rollout.top_p 1, top_k 0 and logprobs_over vocabulary");
  }
  if (a.kl_coef > 0 && a.kl_in != KlIn::kLoss && a.kl_to == KlTo::kReference) {
    refuse("algorithm.kl_in",
           "is " + word(a.kl_in) +
               ", but with algorithm.logprobs_over kept the old log-probs are not over the whole "
               "vocabulary, as the reference's are; expected loss, or kl_to rollout");
  }
  if (has_teacher(a)) {
    refuse("algorithm.distillation.teacher",
           "is set, but with algorithm.logprobs_over kept the policy's log-probs are not over the "
           "whole vocabulary, as the teacher's are; expected \"\"");
  }
}

void check_loss(const Config& c, std::vector<Mistake>& mistakes) {
  const AlgorithmConfig& a = c.algorithm;
  for (const PolicyLoss* loss : policy_losses()) {
    const auto wrong = loss->check == nullptr ? std::nullopt : loss->check(loss_options(a, *loss));
    if (wrong) {
      const std::string name = std::string(loss->block()).append(".").append(wrong->key);
      mistakes.push_back(
          {"algorithm." + name, "is " + text_of(a.loss_keys.at(name)) + wrong->problem});
    }
  }
  if (a.importance_level == ImportanceLevel::kSequence &&
      !policy_loss(a.loss).takes_sequence_ratio) {
    mistakes.push_back(
        {"algorithm.importance_level",
         "is sequence, but algorithm.loss " + a.loss +
             " has its own form of the ratio; expected token, or loss " +
             in_words(losses_that([](const PolicyLoss& l) { return l.takes_sequence_ratio; }),
                      " or ")});
  }
}

// What a server does not say of its model.
void check_server_teacher(const Config& c, std::vector<Mistake>& mistakes) {
  const DistillationConfig& distillation = c.algorithm.distillation;
  if (!has_server_teacher(distillation)) {
    return;
  }
  if (distillation.over == DistillationOver::kVocabulary) {
    mistakes.push_back({"algorithm.distillation.over",
                        "is vocabulary, but a teacher is on a server, which sends log-probs of "
                        "some tokens alone; expected sampled_token or top_k"});
  }
  if (c.rollout.temperature != 1.0) {
    mistakes.push_back({"rollout.temperature",
                        "is " + text_of(c.rollout.temperature) +
                            ", but a teacher is on a server, whose log-probs are at temperature 1; "
                            "expected 1"});
  }
  if (!c.data.image_key.empty()) {
    mistakes.push_back({"data.image_key", "is " + c.data.image_key +
                                              ", but a teacher is on a server, which gets token "
                                              "ids alone; expected \"\""});
  }
}

void check_distillation(const Config& c, std::vector<Mistake>& mistakes) {
  const DistillationConfig& distillation = c.algorithm.distillation;
  if (!distillation.teacher.empty() && !distillation.teachers.empty()) {
    mistakes.push_back({"algorithm.distillation.teachers",
                        "is set, and so is algorithm.distillation.teacher; expected one of them"});
  }
  check_server_teacher(c, mistakes);
  if (learns_from_teacher_alone(c) && c.algorithm.dynamic_sampling != DynamicSampling::kNone) {
    mistakes.push_back({"algorithm.dynamic_sampling",
                        "is " + word(c.algorithm.dynamic_sampling) +
                            ", which looks for groups of different rewards, but rewards do not "
                            "count here; expected none"});
  }
}

// Groups are compared by a reward that there is.
void check_filter(const AlgorithmConfig& a, const std::vector<WeightedReward>& rewards,
                  std::vector<Mistake>& mistakes) {
  const std::string& by = a.dynamic_sampling_by;
  const bool named = by != "total" && by != "shaped" && !rewards.empty();
  if (named && std::none_of(rewards.begin(), rewards.end(),
                            [&](const auto& reward) { return reward.name == by; })) {
    mistakes.push_back({"algorithm.dynamic_sampling_by",
                        "is " + by +
                            ", which is no reward of rollout.reward; expected total, "
                            "shaped or one of these"});
  }
}

void check_reward(const Config& c, std::vector<Mistake>& mistakes) {
  try {
    const auto rewards = parse_rewards(c.rollout.reward);
    check_filter(c.algorithm, rewards, mistakes);
    const auto is_none = [](const auto& reward) { return reward.name == kNoReward; };
    if (rewards.size() > 1 && std::any_of(rewards.begin(), rewards.end(), is_none)) {
      mistakes.push_back({"rollout.reward", "is " + c.rollout.reward +
                                                "; expected none alone, or rewards without it"});
    }
    const bool counts = std::any_of(rewards.begin(), rewards.end(),
                                    [](const auto& reward) { return reward.weight != 0; });
    if (!rewards.empty() && !counts) {
      mistakes.push_back({"rollout.reward", "is " + c.rollout.reward +
                                                ", where every weight is 0: nothing is learned; "
                                                "expected a weight that is not 0"});
    }
  } catch (const std::invalid_argument& error) {
    mistakes.push_back({"rollout.reward", error.what()});
  }
}

}  // namespace

std::string text_of(double value) {
  std::string text = std::to_string(value);
  return text.substr(0, text.find_last_not_of('0') + 2);
}

void check_algorithm_section(const Config& c, std::vector<Mistake>& mistakes) {
  const bool rl = samples_completions(c);
  if (rl) {
    check_estimator(c.algorithm, c.rollout.group_size, mistakes);
    check_given(c.algorithm, mistakes);
  }
  if (!rl && c.algorithm.preset != "none") {
    mistakes.push_back({"algorithm.preset", "is " + c.algorithm.preset +
                                                ", but algorithm.task is " +
                                                word(c.algorithm.task) + "; expected none"});
  }
  check_reward(c, mistakes);
  check_loss(c, mistakes);
  check_kl(c.algorithm, mistakes);
  check_correction(c.algorithm, mistakes);
  check_distillation(c, mistakes);
  check_router_replay(c, mistakes);
  check_kept_sets(c, mistakes);
  if (rl) {
    check_passes(c, mistakes);
  }
  if (c.algorithm.reward.overlong_buffer_tokens > c.rollout.max_completion_tokens) {
    mistakes.push_back({"algorithm.reward.overlong_buffer_tokens",
                        "is " + std::to_string(c.algorithm.reward.overlong_buffer_tokens) +
                            ", more than rollout.max_completion_tokens " +
                            std::to_string(c.rollout.max_completion_tokens) +
                            "; expected at most that"});
  }
  const auto samples = rl ? c.rollout.prompts_per_step * c.rollout.group_size : c.train.batch_size;
  if (c.train.num_mini_batches > samples) {
    mistakes.push_back({"train.num_mini_batches",
                        "is " + std::to_string(c.train.num_mini_batches) + ", but a step has " +
                            std::to_string(samples) + " samples; expected at most that"});
  }
}

}  // namespace ringside::rl
