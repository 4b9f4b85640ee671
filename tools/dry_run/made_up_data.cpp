#include "tools/dry_run/made_up_data.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "rl/config/adapter_names.h"
#include "rl/config/enums.h"
#include "rl/config/eval_sets.h"
#include "rl/config/task.h"
#include "rl/data/record_set.h"
#include "rl/data/text_data.h"
#include "rl/rewards/python_reward.h"
#include "rl/rewards/reward.h"
#include "rl/rewards/weighted_rewards.h"
#include "rl/sampling/prompt_scorer.h"

namespace ringside::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void write_lines(const fs::path& file, const std::vector<std::string>& lines) {
  std::ofstream out(file);
  for (const std::string& line : lines) {
    out << line << "\n";
  }
  if (!out.flush()) {
    throw std::runtime_error(file.string() + ": cannot be written");
  }
}

std::vector<std::string> first_lines(const fs::path& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  std::string line;
  while (static_cast<int64_t>(lines.size()) < kDryRunLines && std::getline(in, line)) {
    lines.push_back(line);
  }
  return lines;
}

// One reward of rollout.reward, as it is written there.
struct RewardPart {
  std::string text;
  std::string name;
  std::string problem;  // why a dry run leaves it out; "" when it does not
};

// Why a user's function cannot score the data of the dry run: it is called once, with the first
// prompt and its answer as the completion.
std::string function_problem(const rl::WeightedReward& reward, const rl::Config& config) {
  if (!rl::data_files_exist(config.data.train)) {
    return "there is no data to call it with";
  }
  try {
    const std::vector<rl::Prompt> prompts = rl::read_prompts(config.data.train, config);
    const rl::Prompt& prompt = prompts.front();
    rl::RewardInput input;
    input.prompt = prompt.prompt;
    input.completion = prompt.answer;
    input.answer = prompt.answer;
    input.columns = prompt.columns;
    const auto score = rl::PythonReward(reward, rl::reward_options(config.rollout, {}))
                           .score(std::span(&input, 1))
                           .front();
    return score.is_declined ? "" : score.failure;
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Why a reward cannot be computed here; a server is not called.
std::string problem_of(const rl::WeightedReward& reward, const rl::Config& config) {
  if (reward.is_python()) {
    return function_problem(reward, config);
  }
  if (reward.name == "http") {
    return "a dry run calls no servers";
  }
  try {
    rl::make_reward(reward.name, rl::reward_options(config.rollout, {}));
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// The rewards of rollout.reward; none for "worker", which stands for rewards from elsewhere.
std::vector<RewardPart> rewards_of(const rl::Config& config) {
  std::vector<RewardPart> rewards;
  for (const std::string_view part : rl::reward_parts(config.rollout.reward)) {
    for (const rl::WeightedReward& reward : rl::parse_rewards(part)) {
      rewards.push_back({std::string(part), reward.name, problem_of(reward, config)});
    }
  }
  return rewards;
}

// Those that can be computed here.
std::vector<RewardPart> usable_rewards(const rl::Config& config) {
  std::vector<RewardPart> rewards = rewards_of(config);
  std::erase_if(rewards, [](const RewardPart& reward) { return !reward.problem.empty(); });
  return rewards;
}

// An answer that every reward of the configuration accepts; "4" if there is none.
std::string made_up_answer(const rl::Config& config) {
  const rl::RewardOptions options = rl::reward_options(config.rollout, {});
  for (const char* answer : {"4", "A", "assert True", R"({"type": "object"})"}) {
    const auto rewards = usable_rewards(config);
    if (std::all_of(rewards.begin(), rewards.end(), [&](const RewardPart& reward) {
          return rl::answer_problem(reward.name, answer, options).empty();
        })) {
      return answer;
    }
  }
  return "4";
}

// A PNG of 32 x 32 red pixels.
constexpr const char* kRedImage =
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAKklEQVR42mO4o6FBU8"
    "QwasGoBaMWjFowasGoBaMWjFowasGoBaMWDBULAIahsD0l4r5QAAAAAElFTkSuQmCC";

json question(const rl::Config& config, int64_t line) {
  std::string text = "What is " + std::to_string(line % 7) + " + " + std::to_string(line % 5) +
                     "? Answer with a number.";
  const bool images = !config.data.image_key.empty();
  if (config.data.chat_template == rl::ChatTemplate::kNone) {
    return images ? "<|vision_start|><|image_pad|><|vision_end|>" + text : text;
  }
  json content = text;
  if (images) {
    content = json::array({{{"type", "image"}}, {{"type", "text"}, {"text", text}}});
  }
  return json::array({{{"role", "user"}, {"content", content}}});
}

// A record with the image of its question, if it has one.
std::string line_of(json record, const rl::Config& config) {
  if (!config.data.image_key.empty()) {
    record[config.data.image_key] = kRedImage;
  }
  return record.dump();
}

std::vector<std::string> made_up_prompts(const rl::Config& config) {
  const std::string answer = made_up_answer(config);
  const std::vector<std::string> adapters = rl::adapter_names(config.lora);
  std::vector<std::string> lines;
  for (int64_t line = 0; line < kDryRunLines; ++line) {
    json record{{config.data.prompt_key, question(config, line)}, {config.data.answer_key, answer}};
    if (!adapters.empty()) {
      record[config.data.adapter_key] = adapters[static_cast<std::size_t>(line) % adapters.size()];
    }
    lines.push_back(line_of(std::move(record), config));
  }
  return lines;
}

std::vector<std::string> made_up_documents(const rl::Config& config) {
  std::vector<std::string> lines;
  for (int64_t line = 0; line < kDryRunLines; ++line) {
    json prompt = question(config, line);
    const std::string answer = "It is " + std::to_string(line % 7 + line % 5) + ".";
    if (prompt.is_string()) {
      lines.push_back(line_of(
          {{config.data.prompt_key, prompt}, {config.data.completion_key, answer}}, config));
    } else {
      prompt.push_back({{"role", "assistant"}, {"content", answer}});
      lines.push_back(line_of({{config.data.messages_key, prompt}}, config));
    }
  }
  return lines;
}

std::vector<std::string> made_up_pairs(const rl::Config& config) {
  std::vector<std::string> lines;
  for (int64_t line = 0; line < kDryRunLines; ++line) {
    const json prompt = question(config, line);
    const auto side = [&](int64_t error) -> json {
      const std::string text = "It is " + std::to_string(line % 7 + line % 5 + error) + ".";
      return prompt.is_string() ? json(text)
                                : json::array({{{"role", "assistant"}, {"content", text}}});
    };
    lines.push_back(json{
        {config.data.prompt_key, prompt},
        {config.data.chosen_key, side(0)},
        {config.data.rejected_key,
         side(1)}}.dump());
  }
  return lines;
}

using MakeLines = std::function<std::vector<std::string>(const rl::Config&)>;

void use_small_file(std::string& path, const rl::Config& config, const MakeLines& make_lines,
                    const fs::path& file) {
  const bool exists = fs::is_regular_file(path);
  // Images are found by paths relative to the file.
  if (exists && (fs::path(path).extension() != ".jsonl" || !config.data.image_key.empty())) {
    return;
  }
  write_lines(file, exists ? first_lines(path) : make_lines(config));
  path = file.string();
}

}  // namespace

std::string small_rewards(const rl::Config& config) {
  std::string text;
  bool by_length = false;
  for (const RewardPart& reward : usable_rewards(config)) {
    text += (text.empty() ? "" : ", ") + reward.text;
    by_length = by_length || reward.name == "length";
  }
  return by_length ? text : text + (text.empty() ? "length" : ", length");
}

std::vector<std::string> left_out_rewards(const rl::Config& config) {
  std::vector<std::string> lines;
  for (const RewardPart& reward : rewards_of(config)) {
    if (!reward.problem.empty()) {
      lines.push_back("rollout.reward: " + reward.text + " is left out: " + reward.problem);
    }
  }
  return lines;
}

namespace {

// The same for each of eval.sets.
void use_small_sets(rl::Config& config, const MakeLines& make_lines, const fs::path& dir) {
  nlohmann::ordered_json sets = nlohmann::ordered_json::object();
  for (const rl::EvalSet& set : rl::eval_sets(config)) {
    if (!set.name.empty()) {
      std::string path = set.files;
      use_small_file(path, config, make_lines, dir / ("eval_" + set.name + ".jsonl"));
      sets[set.name] = path;
    }
  }
  config.eval.sets = sets.empty() ? "" : sets.dump();
}

}  // namespace

void use_small_data(rl::Config& config, const fs::path& dir) {
  rl::DataConfig& data = config.data;
  if (config.algorithm.task == rl::Task::kSft) {
    use_small_file(data.sft, config, made_up_documents, dir / "sft.jsonl");
    if (!data.sft_eval.empty()) {
      use_small_file(data.sft_eval, config, made_up_documents, dir / "sft_eval.jsonl");
    }
    use_small_sets(config, made_up_documents, dir);
    return;
  }
  if (rl::learns_preferences(config)) {
    use_small_file(data.preferences, config, made_up_pairs, dir / "preferences.jsonl");
    if (!data.preferences_eval.empty()) {
      use_small_file(data.preferences_eval, config, made_up_pairs, dir / "preferences_eval.jsonl");
    }
    use_small_sets(config, made_up_pairs, dir);
    return;
  }
  use_small_sets(config, made_up_prompts, dir);
  use_small_file(data.train, config, made_up_prompts, dir / "train.jsonl");
  if (!data.eval.empty()) {
    use_small_file(data.eval, config, made_up_prompts, dir / "eval.jsonl");
  }
}

void write_made_up_rollouts(const rl::Config& config, int64_t vocab_size, int64_t steps,
                            const fs::path& file) {
  std::mt19937_64 random(static_cast<uint64_t>(config.seed));
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
  };
  const auto ids = [&](int64_t count) {
    std::vector<int64_t> drawn;
    for (int64_t i = 0; i < count; ++i) {
      drawn.push_back(below(vocab_size));
    }
    return drawn;
  };
  std::vector<std::string> lines;
  for (int64_t group = 0; group < steps * config.rollout.prompts_per_step; ++group) {
    const auto prompt = ids(1 + below(config.rollout.max_prompt_tokens));
    for (int64_t sample = 0; sample < rl::sampled_group_size(config); ++sample) {
      const auto completion = ids(1 + below(config.rollout.max_completion_tokens));
      const double logprob = -std::log(static_cast<double>(vocab_size));
      const double reward = static_cast<double>(sample % 2);
      json line = {{"group_id", std::string("g").append(std::to_string(group))},
                   {"prompt_ids", prompt},
                   {"completion_ids", completion},
                   {"logprobs", std::vector<double>(completion.size(), logprob)},
                   {"temperature", config.rollout.temperature}};
      if (config.algorithm.advantage.estimator == rl::AdvantageEstimator::kGiven) {
        line["advantages"] = std::vector<double>(completion.size(), reward - 0.5);
      } else {
        line["reward"] = reward;
      }
      lines.push_back(line.dump());
    }
  }
  write_lines(file, lines);
}

}  // namespace ringside::tools
