#include "rl/rollouts/rollout_admission.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <stdexcept>
#include <utility>

#include "rl/config/task.h"
#include "rl/data/greedy_rollouts.h"
#include "rl/data/held_out_prompts.h"
#include "rl/data/rollout_rewards.h"
#include "rl/rewards/reward.h"
#include "rl/rewards/weighted_rewards.h"
#include "rollout_bridge/protocol/branches.h"

namespace ringside::rl {
namespace {

using bridge::Error;
using bridge::Reason;
using bridge::Rollout;
using bridge::Status;
using bridge::Success;

Error refused(const Rollout& rollout, Reason reason, const std::string& what) {
  return {reason, "rollout '" + rollout.rollout_id + "': " + what};
}

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.7g", value);
  return text;
}

Status check_vocabulary(const Rollout& rollout, int64_t vocab_size) {
  const auto check = [&](const char* field, const std::vector<int64_t>& ids) -> Status {
    const auto bad = std::find_if(ids.begin(), ids.end(),
                                  [&](int64_t id) { return id < 0 || id >= vocab_size; });
    if (bad == ids.end()) {
      return Success{};
    }
    return refused(rollout, Reason::kVocabulary,
                   std::string(field) + "[" + std::to_string(bad - ids.begin()) +
                       "] = " + std::to_string(*bad) + " is outside the model's vocabulary of " +
                       std::to_string(vocab_size));
  };
  const Status prompt = check("prompt_ids", rollout.prompt_ids);
  return prompt ? check("completion_ids", rollout.completion_ids) : prompt;
}

Status check_positions(const Rollout& rollout, int64_t max_positions) {
  for (const bridge::BranchPath& path : bridge::branch_paths(rollout)) {
    auto tokens = static_cast<int64_t>(rollout.prompt_ids.size());
    for (const bridge::TokenRange& range : path.ranges) {
      tokens += range.end - range.begin;
    }
    if (tokens > max_positions) {
      return refused(rollout, Reason::kTooLong,
                     "prompt and completion have " + std::to_string(tokens) +
                         " tokens, the model has " + std::to_string(max_positions) + " positions");
    }
  }
  return Success{};
}

// Checks that each sampled token has a kept set of the model's ids.
Status check_kept_sets(const Rollout& rollout, int64_t vocab_size) {
  const bridge::KeptSets& kept = rollout.kept_sets;
  for (std::size_t i = 0; i < rollout.completion_ids.size() && !bridge::has_failed(rollout); ++i) {
    const bool sampled = rollout.loss_mask.empty() || rollout.loss_mask[i] != 0;
    if (sampled && (kept.empty() || kept.counts[i] == 0)) {
      return refused(rollout, Reason::kSampling,
                     "brings no kept set for completion token " + std::to_string(i) +
                         ", but algorithm.logprobs_over is kept; expected a worker that records "
                         "which tokens top_p and top_k left (rollout.server embedded)");
    }
  }
  const auto bad = std::ranges::find_if(kept.ids, [&](int32_t id) { return id >= vocab_size; });
  if (bad == kept.ids.end()) {
    return Success{};
  }
  return refused(rollout, Reason::kVocabulary,
                 "kept_ids[" + std::to_string(bad - kept.ids.begin()) +
                     "] = " + std::to_string(*bad) + " is outside the model's vocabulary of " +
                     std::to_string(vocab_size));
}

Status check_support(const Rollout& rollout, const Config& config, int64_t vocab_size) {
  if (config.algorithm.logprobs_over == "kept") {
    return check_kept_sets(rollout, vocab_size);
  }
  if (rollout.top_p == 1.0F && rollout.top_k == 0) {
    return Success{};
  }
  return refused(
      rollout, Reason::kSampling,
      "sampled with top_p " + text_of(rollout.top_p) + " and top_k " +
          std::to_string(rollout.top_k) +
          ", expected 1 and 0: the trainer does not know which tokens the sampler had left out; or "
          "algorithm.logprobs_over kept");
}

Status check_magnitudes(const Rollout& rollout) {
  const auto check = [&](const std::string& what, double value) -> Status {
    if (std::abs(value) <= kMaxReward) {  // false for NaN
      return Success{};
    }
    return refused(rollout, Reason::kRewards,
                   what + " is " + text_of(value) + ", expected -1e6 to 1e6");
  };
  for (const auto& [name, value] : rollout.rewards) {
    if (Status s = check("reward '" + name + "'", value); !s) {
      return s;
    }
  }
  for (std::size_t t = 0; t < rollout.turn_rewards.size(); ++t) {
    if (Status s = check("turn_rewards[" + std::to_string(t) + "]", rollout.turn_rewards[t]); !s) {
      return s;
    }
  }
  for (std::size_t i = 0; i < rollout.advantages.size(); ++i) {
    if (Status s = check("advantages[" + std::to_string(i) + "]", rollout.advantages[i]); !s) {
      return s;
    }
  }
  return Success{};
}

// Checks that total_reward() can add the rewards.
Status check_sum(const Rollout& rollout, const std::string& recipe) {
  std::set<std::string> names;
  for (const auto& [name, value] : rollout.rewards) {
    if (!names.insert(name).second) {
      return refused(rollout, Reason::kRewards, "reward '" + name + "' is there twice");
    }
  }
  std::string there, missing;
  for (const WeightedReward& part : parse_rewards(recipe)) {
    (names.contains(part.name) ? there : missing) = part.name;
  }
  if (!there.empty() && !missing.empty()) {
    return refused(rollout, Reason::kRewards,
                   "brings reward '" + there + "' and not '" + missing + "'; rollout.reward is \"" +
                       recipe + "\"");
  }
  return Success{};
}

Status check_judged(const Rollout& rollout, AdvantageEstimator estimator) {
  const bool rewarded = !rollout.rewards.empty() || !rollout.turn_rewards.empty();
  if (estimator == AdvantageEstimator::kGiven) {
    if (rollout.advantages.empty() && (rewarded || !bridge::has_failed(rollout))) {
      return refused(rollout, Reason::kRewards,
                     "brings no advantages, but algorithm.advantage.estimator is given");
    }
    return Success{};
  }
  if (rewarded || (bridge::has_failed(rollout) && rollout.advantages.empty())) {
    return Success{};
  }
  return refused(
      rollout, Reason::kRewards,
      rollout.advantages.empty()
          ? std::string("brings no reward")
          : "brings advantages and no reward; expected algorithm.advantage.estimator given, not " +
                std::string(to_string(estimator)));
}

std::string list_of(const auto& numbers) {
  std::string text;
  for (const auto number : numbers) {
    text += (text.empty() ? "" : ", ") + std::to_string(number);
  }
  return "[" + text + "]";
}

// Checks that the model can replay the rollout's routes.
Status check_routes(const Rollout& rollout, const ModelBounds& model) {
  const bridge::RoutedExperts& routed = rollout.routed_experts;
  if (routed.empty()) {
    if (bridge::has_failed(rollout)) {
      return Success{};
    }
    return refused(rollout, Reason::kRoutes,
                   "brings no routed experts, but algorithm.router_replay is rollout; expected a "
                   "worker that records them (a server started with "
                   "--enable-return-routed-experts), or router_replay none");
  }
  if (!std::ranges::equal(routed.layers, model.expert_layers) ||
      routed.per_token != model.experts_per_token) {
    return refused(rollout, Reason::kRoutes,
                   "brings " + std::to_string(routed.per_token) +
                       " experts a token for the layers " + list_of(routed.layers) +
                       ", the model uses " + std::to_string(model.experts_per_token) +
                       " in its layers " + list_of(model.expert_layers));
  }
  const std::size_t ids = routed.ids.size() / static_cast<std::size_t>(routed.id_bytes);
  for (std::size_t i = 0; i < ids; ++i) {
    if (routed.id(i) >= model.experts) {
      return refused(rollout, Reason::kRoutes,
                     "brings expert " + std::to_string(routed.id(i)) + " for token " +
                         std::to_string(i * routed.id_bytes / routed.row_bytes()) +
                         ", the model has " + std::to_string(model.experts));
    }
  }
  return Success{};
}

// The longest run of sampled tokens without a division (see LiveAdmission).
int64_t longest_turn(const Rollout& rollout) {
  std::vector<bool> starts(rollout.completion_ids.size(), false);
  for (const int32_t offset : rollout.turn_offsets) {
    starts[offset] = true;
  }
  for (const bridge::Branch& branch : rollout.branches) {
    starts[branch.begin] = true;
  }
  int64_t longest = 0, run = 0;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const bool sampled = rollout.loss_mask.empty() || rollout.loss_mask[i] != 0;
    run = sampled ? (starts[i] ? 1 : run + 1) : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

// The rules that hold for rollouts of held-out prompts too.
Status check_contents(const Rollout& rollout, const Config& config, const ModelBounds& model) {
  if (Status s = check_vocabulary(rollout, model.vocab_size); !s) {
    return s;
  }
  if (Status s = check_positions(rollout, model.max_positions); !s) {
    return s;
  }
  if (Status s = check_magnitudes(rollout); !s) {
    return s;
  }
  return check_sum(rollout, config.rollout.reward);
}

std::string size_text(engine::ImageSize size) {
  return std::to_string(size.height) + " x " + std::to_string(size.width);
}

// Checks that an image is as the model takes it, and on as many of its tokens.
Status check_image(const Rollout& rollout, const bridge::ConversationImage& image,
                   const ImageRules& rules) {
  const engine::ImageSize size{image.height, image.width};
  ImageTokens expected;
  try {
    expected = image_tokens(size, rules);
  } catch (const std::invalid_argument& error) {
    return refused(rollout, Reason::kImages, "image " + image.hash + ": " + error.what());
  }
  if (expected.resized.height != size.height || expected.resized.width != size.width) {
    return refused(rollout, Reason::kImages,
                   "image " + image.hash + " of " + size_text(size) +
                       " pixels is not resized; the model takes it as " +
                       size_text(expected.resized));
  }
  if (image.end - image.begin != expected.tokens) {
    return refused(rollout, Reason::kImages,
                   "image " + image.hash + " of " + size_text(size) + " pixels has " +
                       std::to_string(expected.tokens) + " tokens, the rollout says " +
                       std::to_string(image.end - image.begin));
  }
  const auto first = rollout.completion_ids.begin();
  const auto other = std::find_if(first + image.begin, first + image.end,
                                  [&](int64_t id) { return id != rules.image_token_id; });
  if (other != first + image.end) {
    return refused(rollout, Reason::kImages,
                   "completion_ids[" + std::to_string(other - first) +
                       "] = " + std::to_string(*other) + " is a token of image " + image.hash +
                       ", expected the placeholder " + std::to_string(rules.image_token_id));
  }
  return Success{};
}

std::vector<std::string> names_of(const std::string& recipe) {
  std::vector<std::string> names;
  for (const WeightedReward& part : parse_rewards(recipe)) {
    names.push_back(part.name);
  }
  return names;
}

}  // namespace

ModelBounds model_bounds(const engine::ModelConfig& model) {
  return {model.vocab_size, engine::num_positions(model), expert_layers(model), model.experts.count,
          model.experts.per_token};
}

Status check_recorded(const Rollout& rollout, const Config& config, const ModelBounds& model) {
  if (Status s = check_contents(rollout, config, model); !s) {
    return s;
  }
  if (is_greedy(rollout, config)) {
    return check_judged(rollout, config.algorithm.advantage.estimator);
  }
  if (Status s = check_support(rollout, config, model.vocab_size); !s) {
    return s;
  }
  if (config.algorithm.router_replay == RouterReplay::kRollout) {
    if (Status s = check_routes(rollout, model); !s) {
      return s;
    }
  }
  return check_judged(rollout, config.algorithm.advantage.estimator);
}

LiveAdmission::LiveAdmission(Config config, ModelBounds model,
                             std::unique_ptr<GrantedPrompts> prompts,
                             std::vector<std::vector<int64_t>> held_out,
                             std::optional<ImageRules> images)
    : config_(std::move(config)),
      model_(model),
      reward_names_(names_of(config_.rollout.reward)),
      prompts_(std::move(prompts)),
      held_out_(std::move(held_out)),
      images_(std::move(images)) {}

Status LiveAdmission::admit(const Rollout& rollout) {
  if (rollout.group_size != sampled_group_size(config_)) {
    return refused(rollout, Reason::kInvalidField,
                   "group_size " + std::to_string(rollout.group_size) + ", rollout.group_size is " +
                       std::to_string(config_.rollout.group_size) +
                       (has_greedy_sample(config_) ? " and one is greedy" : ""));
  }
  // Lengths first: the cost of the later checks grows with the number of tokens.
  if (Status s = check_lengths(rollout); !s) {
    return s;
  }
  if (Status s = check_recorded(rollout, config_, model_); !s) {
    return s;
  }
  if (Status s = check_sampling(rollout); !s) {
    return s;
  }
  if (Status s = check_names(rollout); !s) {
    return s;
  }
  if (Status s = check_images(rollout); !s) {
    return s;
  }
  return check_prompt(rollout);
}

Status LiveAdmission::admit_held_out(const Rollout& rollout, int64_t held_out) {
  if (Status s = check_lengths(rollout); !s) {
    return s;
  }
  if (Status s = check_contents(rollout, config_, model_); !s) {
    return s;
  }
  const StatedSampling expected = held_out_sampling(config_);
  if (rollout.temperature != static_cast<float>(expected.temperature) ||
      rollout.top_p != static_cast<float>(expected.top_p) || rollout.top_k != expected.top_k) {
    return refused(rollout, Reason::kSampling,
                   "sampled with temperature " + text_of(rollout.temperature) + ", top_p " +
                       text_of(rollout.top_p) + ", top_k " + std::to_string(rollout.top_k) +
                       "; evaluation expects " + text_of(expected.temperature) + ", " +
                       text_of(expected.top_p) + ", " + std::to_string(expected.top_k));
  }
  if (rollout.rewards.empty() && !bridge::has_failed(rollout)) {
    return refused(rollout, Reason::kRewards, "brings no reward by name");
  }
  if (Status s = check_names(rollout); !s) {
    return s;
  }
  const auto number = static_cast<std::size_t>(held_out);
  if (number < held_out_.size() && held_out_[number] != rollout.prompt_ids) {
    return refused(rollout, Reason::kPrompt,
                   "prompt_ids is not held-out prompt " + std::to_string(held_out));
  }
  return Success{};
}

Status LiveAdmission::check_lengths(const Rollout& rollout) const {
  const RolloutConfig& limits = config_.rollout;
  if (static_cast<int64_t>(rollout.prompt_ids.size()) > limits.max_prompt_tokens) {
    return refused(rollout, Reason::kTooLong,
                   "prompt_ids has " + std::to_string(rollout.prompt_ids.size()) +
                       " tokens, rollout.max_prompt_tokens is " +
                       std::to_string(limits.max_prompt_tokens));
  }
  if (const int64_t turn = longest_turn(rollout); turn > limits.max_completion_tokens) {
    return refused(rollout, Reason::kTooLong,
                   "a turn has " + std::to_string(turn) +
                       " sampled tokens, rollout.max_completion_tokens is " +
                       std::to_string(limits.max_completion_tokens));
  }
  return Success{};
}

Status LiveAdmission::check_sampling(const Rollout& rollout) const {
  const bool greedy = is_greedy(rollout, config_);
  const StatedSampling expected = greedy ? kGreedySampling : stated_sampling(config_);
  const std::string whose = greedy ? "a greedy sample has " : "the recipe has ";
  const auto temperature = static_cast<float>(expected.temperature);
  if (rollout.temperature != temperature) {
    return refused(rollout, Reason::kSampling,
                   "sampled at temperature " + text_of(rollout.temperature) + ", " +
                       (greedy ? whose : "rollout.temperature is ") + text_of(temperature));
  }
  if (rollout.top_p != static_cast<float>(expected.top_p) || rollout.top_k != expected.top_k) {
    return refused(rollout, Reason::kSampling,
                   "sampled with top_p " + text_of(rollout.top_p) + " and top_k " +
                       std::to_string(rollout.top_k) + ", " + whose + "top_p " +
                       text_of(expected.top_p) + " and top_k " + std::to_string(expected.top_k));
  }
  return Success{};
}

Status LiveAdmission::check_names(const Rollout& rollout) const {
  if (reward_names_.empty()) {
    return Success{};
  }
  for (const auto& [name, value] : rollout.rewards) {
    if (std::find(reward_names_.begin(), reward_names_.end(), name) == reward_names_.end()) {
      return refused(rollout, Reason::kRewards,
                     "brings reward '" + name + "', rollout.reward is \"" + config_.rollout.reward +
                         "\"; set it to worker where workers have rewards of their own");
    }
  }
  return Success{};
}

Status LiveAdmission::check_prompt(const Rollout& rollout) {
  const std::vector<int64_t>* expected = prompts_ ? prompts_->of(rollout.group_id) : nullptr;
  if (expected == nullptr || *expected == rollout.prompt_ids) {
    return Success{};
  }
  const auto [theirs, ours] = std::mismatch(rollout.prompt_ids.begin(), rollout.prompt_ids.end(),
                                            expected->begin(), expected->end());
  return refused(rollout, Reason::kPrompt,
                 "prompt_ids is not the prompt of group " + std::to_string(rollout.group_id) +
                     " in data.train: " + std::to_string(rollout.prompt_ids.size()) +
                     " tokens, expected " + std::to_string(expected->size()) +
                     ", the first difference is at " +
                     std::to_string(theirs - rollout.prompt_ids.begin()));
}

Status LiveAdmission::check_images(const Rollout& rollout) const {
  if (!rollout.images.empty() && !images_) {
    return refused(rollout, Reason::kImages,
                   "brings images of its conversation, but data.image_key is not set: the model is "
                   "trained without its vision tower");
  }
  for (const bridge::ConversationImage& image : rollout.images) {
    if (Status s = check_image(rollout, image, *images_); !s) {
      return s;
    }
  }
  return Success{};
}

}  // namespace ringside::rl
