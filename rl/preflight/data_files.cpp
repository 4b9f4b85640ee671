#include "rl/preflight/data_files.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "engine/images/image_decoder.h"
#include "rl/config/eval_sets.h"
#include "rl/config/record_choices.h"
#include "rl/config/task.h"
#include "rl/data/preference_file.h"
#include "rl/data/prompt_set.h"
#include "rl/data/prompt_tokens.h"
#include "rl/data/record_set.h"
#include "rl/data/rollout_file.h"
#include "rl/data/sft_file.h"
#include "rl/preflight/unusual_values.h"
#include "rl/rewards/answer_check.h"
#include "rl/rewards/code_tests.h"
#include "rl/rewards/http_reward.h"
#include "rl/rewards/judge_reward.h"
#include "rl/rewards/python_reward.h"
#include "rl/rewards/reward.h"
#include "rl/rewards/weighted_rewards.h"
#include "rl/rollouts/rollout_admission.h"
#include "rl/sampling/prompt_scorer.h"

namespace ringside::rl {
namespace {

constexpr std::size_t kParsedTests = 1000;  // test codes that are parsed
constexpr std::size_t kListed = 10;         // reported lines per file
constexpr double kPatienceSeconds = 5;      // for a reward server
// Of a file of documents, which may be larger than memory. Later lines are checked when they are
// used.
constexpr int64_t kCheckedBytes = int64_t{256} << 20;

void add_problems(const std::string& key, const std::string& file,
                  const std::vector<std::string>& problems, PreflightReport& report) {
  for (std::size_t i = 0; i < std::min(problems.size(), kListed); ++i) {
    report.mistakes.push_back({key, problems[i]});
  }
  if (problems.size() > kListed) {
    report.mistakes.push_back({key, file + ": " + std::to_string(problems.size() - kListed) +
                                        " more lines cannot be used"});
  }
}

// Answers that a reward of the recipe cannot parse.
std::vector<std::string> answer_problems(const std::vector<Prompt>& prompts, const Config& config) {
  const RewardOptions options = reward_options(config.rollout, {});
  std::vector<std::string> problems;
  for (const Prompt& prompt : prompts) {
    for (const WeightedReward& reward : parse_rewards(config.rollout.reward)) {
      if (reward.is_python()) {
        continue;
      }
      std::string problem = answer_problem(reward.name, prompt.answer, options);
      if (problem.empty()) {
        problem = unmatched_answer(reward.name, prompt.answer, prompt.answer_kind, options);
      }
      if (!problem.empty()) {
        problems.push_back(prompt.place + ": \"" + config.data.answer_key +
                           "\" (data.answer_key) " + problem + ", for reward " + reward.name);
      }
    }
  }
  return problems;
}

// Whether the report says already that a reward cannot be used: said once, not for every file.
bool has_unusable_reward(const PreflightReport& report) {
  return std::any_of(report.mistakes.begin(), report.mistakes.end(),
                     [](const Mistake& mistake) { return mistake.key == "rollout.reward"; });
}

bool has_mistake(const PreflightReport& report, const std::string& text) {
  return std::any_of(report.mistakes.begin(), report.mistakes.end(),
                     [&](const Mistake& mistake) { return mistake.text == text; });
}

// Tests of code_tests that Python cannot parse, among the first ones.
std::vector<std::string> test_code_problems(const std::vector<Prompt>& prompts,
                                            const Config& config, const PreflightReport& report) {
  std::vector<std::string> problems;
  if (has_unusable_reward(report)) {
    return problems;
  }
  for (const WeightedReward& reward : parse_rewards(config.rollout.reward)) {
    if (reward.name != "code_tests" || reward.is_python()) {
      continue;
    }
    std::vector<std::string_view> answers;
    for (const Prompt& prompt : prompts) {
      if (answers.size() < kParsedTests) {
        answers.push_back(prompt.answer);
      }
    }
    const auto found = code_tests_syntax(answers, reward_options(config.rollout, {}));
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!found[i].empty()) {
        problems.push_back(
            prompts[i].place + ": \"" + config.data.answer_key +
            "\" (data.answer_key) is no Python code, for reward code_tests: " + found[i]);
      }
    }
  }
  return problems;
}

// What a user may not expect of the prompts of a file.
void note_prompts(const std::string& key, const PromptSet& set, const Config& config,
                  PreflightReport& report) {
  const auto count = static_cast<int64_t>(set.prompts.size());
  const int64_t chats = std::count_if(set.prompts.begin(), set.prompts.end(),
                                      [](const Prompt& prompt) { return prompt.is_chat; });
  if (chats < count && config.data.chat_template != ChatTemplate::kNone) {
    report.notes.push_back(key + ": " + std::to_string(count - chats) + " of " +
                           std::to_string(count) +
                           " prompts are text, which goes to the model without the chat template; "
                           "data.text_prompts user makes messages of them");
  }
  std::unordered_set<std::string> ids;
  for (const Prompt& prompt : set.prompts) {
    ids.insert(prompt.id);
  }
  if (static_cast<int64_t>(ids.size()) < count) {
    report.notes.push_back(key + ": " + std::to_string(count - static_cast<int64_t>(ids.size())) +
                           " prompts have the \"id\" of another; it only names them in logs");
  }
}

void check_positions(const std::string& key, int64_t longest, const Config& config,
                     const ModelFiles& files, PreflightReport& report) {
  const int64_t completion = config.rollout.max_completion_tokens;
  if (!files.model) {
    return;
  }
  engine::ModelConfig model = *files.model;
  model.max_document_tokens = config.model.max_document_tokens;
  const int64_t positions = engine::num_positions(model);
  if (longest + completion > positions) {
    report.mistakes.push_back(
        {"rollout.max_completion_tokens",
         "is " + std::to_string(completion) + ", and the longest prompt of " + key + " has " +
             std::to_string(longest) +
             " tokens: together more than the model's positions (max_position_embeddings in "
             "config.json, rope scaling, model.max_document_tokens), " +
             std::to_string(positions) + "; expected at most " +
             std::to_string(std::max<int64_t>(0, positions - longest))});
  }
}

// The beginning of the first prompt as the model gets it, on one line.
std::string first_prompt(const std::string& key, const PromptSet& set, const Config& config,
                         const engine::Tokenizer& tokenizer) {
  constexpr std::size_t kShown = 400;
  const Prompt& first = set.prompts.front();
  const auto special =
      first.is_chat
          ? 0
          : text_prompt_tokens(first.prompt, config.data.add_special_tokens, tokenizer).special;
  const std::string text =
      (special > 0 ? tokenizer.decode(tokenizer.special_tokens().before, false) : "") +
      first.prompt;
  std::size_t end = std::min(text.size(), kShown);
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end;  // not in the middle of a character
  }
  return key + ": the first prompt is " + nlohmann::json(text.substr(0, end)).dump() +
         (end < text.size() ? " and " + std::to_string(text.size() - end) + " more bytes" : "");
}

// The images of the first prompt: sizes and tokens. Decodes them.
// Throws: std::runtime_error "PLACE: ..." for an image that cannot be decoded.
std::string first_images(const std::string& key, const std::string& files, const PromptSet& set,
                         const Config& config) {
  const Prompt& first = set.prompts.front();
  RecordSet records(files);
  std::string text = key + ": the first prompt has " + std::to_string(first.images.size()) +
                     (first.images.size() == 1 ? " image" : " images");
  try {
    for (const EncodedImage& image : prompt_images(records, first.record, config.data)) {
      const engine::RgbImage pixels = engine::decode_image(image.bytes);
      const ImageTokens in_model = image_tokens({pixels.height, pixels.width}, *set.images);
      text += "; " + image.name + ": " + std::to_string(pixels.height) + " rows of " +
              std::to_string(pixels.width) + " pixels, resized to " +
              std::to_string(in_model.resized.height) + " x " +
              std::to_string(in_model.resized.width) + ", " + std::to_string(in_model.tokens) +
              " tokens";
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(first.place + ": " + error.what());
  }
  return text;
}

// The first two prompts with their answers as completions; one prompt twice if there are no more.
std::vector<RewardInput> trial_inputs(const PromptSet& set, const Config& config) {
  std::vector<RewardInput> inputs;
  for (const Prompt* prompt :
       {&set.prompts.front(), &set.prompts[set.prompts.size() > 1 ? 1 : 0]}) {
    RewardInput input;
    input.prompt = prompt->prompt;
    input.completion = prompt->answer;
    input.answer = prompt->answer;
    input.completion_tokens = 1;
    input.max_completion_tokens = config.rollout.max_completion_tokens;
    input.columns = prompt->columns;
    inputs.push_back(input);
  }
  return inputs;
}

// Calls each Python function once, with two completions: one would not show a list of wrong length.
void try_python_rewards(const PromptSet& set, const Config& config, PreflightReport& report) {
  if (has_unusable_reward(report)) {
    return;
  }
  const std::vector<RewardInput> inputs = trial_inputs(set, config);
  for (const WeightedReward& reward : parse_rewards(config.rollout.reward)) {
    if (!reward.is_python()) {
      continue;
    }
    RewardOptions options = reward_options(config.rollout, {});
    options.python_processes = 1;  // both completions in one call
    for (const auto& score : PythonReward(reward, options).score(inputs)) {
      if (!score.failure.empty() && !score.is_declined) {
        report.mistakes.push_back(
            {"rollout.reward",
             "a trial call with " + set.prompts.front().place +
                 " and the record after it, whose answers were the completions, failed: " +
                 score.failure});
        break;
      }
    }
  }
}

// Asks the servers of the rewards http and judge once. They may start later, so a problem is no
// mistake.
void try_reward_servers(const PromptSet& set, const Config& config, PreflightReport& report) {
  for (const WeightedReward& reward : parse_rewards(config.rollout.reward)) {
    const bool judge = reward.name == "judge";
    if ((reward.name != "http" && !judge) || reward.is_python()) {
      continue;
    }
    RewardOptions options = reward_options(config.rollout, {});
    options.http_timeout_s = std::min(options.http_timeout_s, kPatienceSeconds);
    options.judge_timeout_s = std::min(options.judge_timeout_s, kPatienceSeconds);
    try {
      const RewardInput input = trial_inputs(set, config).front();
      const std::string problem =
          judge ? judge_reward_problem(options, input) : http_reward_problem(options, input);
      if (!problem.empty()) {
        report.notes.push_back(
            "WARNING: no reward for " + set.prompts.front().place +
            " from rollout.reward_options." +
            (judge ? "judge_url " + options.judge_url : "http_url " + options.http_url) + ": " +
            problem + "; without it samples have no score");
      }
    } catch (const std::invalid_argument&) {
      // check_rewards() reports options that make no reward.
    }
  }
}

void check_prompt_file(const std::string& key, const std::string& path, const Config& config,
                       const ModelFiles& files, PreflightReport& report) {
  if (path.empty()) {
    report.mistakes.push_back(
        {key, "is not set; expected a JSONL, JSON or Parquet file of {\"" + config.data.prompt_key +
                  "\", \"" + config.data.answer_key + "\"} objects" +
                  (uses_own_workers(config) ? "; with rollout.reward worker and workers of your "
                                              "own, which need none, use `ringside train`"
                                            : "")});
    return;
  }
  try {
    if (!files.tokenizer) {  // reported already; lines and answers can still be read
      auto data = scan_prompts(path, config);
      auto more = answer_problems(data.items, config);
      data.problems.insert(data.problems.end(), more.begin(), more.end());
      add_problems(key, path, data.problems, report);
      return;
    }
    PromptSet set = scan_prompt_set(path, config, *files.tokenizer);
    for (const auto& more :
         {answer_problems(set.prompts, config), test_code_problems(set.prompts, config, report)}) {
      set.problems.insert(set.problems.end(), more.begin(), more.end());
    }
    add_problems(key, path, set.problems, report);
    report.notes.push_back(key + ": " + std::to_string(set.lines) +
                           (set.lines == 1 ? " prompt" : " prompts") + ", at most " +
                           std::to_string(set.longest) + " tokens (" + path + ")");
    for (std::string& note : unusual_prompts(key, set, config)) {
      report.notes.push_back(std::move(note));
    }
    if (!set.prompts.empty()) {
      report.notes.push_back(first_prompt(key, set, config, *files.tokenizer));
      if (!set.prompts.front().images.empty()) {
        report.notes.push_back(first_images(key, path, set, config));
      }
      note_prompts(key, set, config, report);
      try_python_rewards(set, config, report);
      if (key == "data.train") {
        try_reward_servers(set, config, report);
      }
    }
    if (set.overlong > 0 && config.data.on_overlong != OnOverlong::kError) {
      report.notes.push_back(key + ": " + describe_overlong(set, prompt_rules(config)));
    }
    check_positions(key, set.longest, config, files, report);
  } catch (const std::exception& error) {
    // Of all files of prompts: a chat template that cannot be used.
    if (!has_mistake(report, error.what())) {
      report.mistakes.push_back({key, error.what()});
    }
  }
}

// Lines of a file of documents that cannot be parsed, among the first bytes of the file.
std::vector<std::string> unreadable_lines(const std::string& path, const Config& config) {
  RecordSet records(path);
  std::vector<std::string> problems;
  for (int64_t i = 0; i < records.size() && records.offset(i) < kCheckedBytes; ++i) {
    try {
      if (learns_preferences(config)) {
        parse_preference(records.record(i), records.place(i), config.data);
      } else {
        parse_sft_example(records.record(i), records.place(i), config.data);
      }
    } catch (const std::exception& error) {
      problems.emplace_back(error.what());
    }
  }
  return problems;
}

std::string describe_documents(const DocumentSummary& summary, const std::string& noun,
                               const std::string& path) {
  return std::to_string(summary.documents) + " " + noun + (summary.documents == 1 ? "" : "s") +
         " (" + path + ")" +
         (summary.checked < summary.documents
              ? "; the first " + std::to_string(summary.checked) +
                    " were checked, the others will be when they are used"
              : "");
}

// The first bytes of a file with the tokenizer.
template <class File>
DocumentSummary look_at(const std::string& path, const Config& config, const ModelFiles& files) {
  File file(path, config, *files.tokenizer, files.model->eos_token_ids);
  return summarize(file, kCheckedBytes);
}

// Checks a file of documents or pairs.
void check_documents(const std::string& key, const std::string& path, const Config& config,
                     const ModelFiles& files, PreflightReport& report) {
  if (path.empty()) {
    report.mistakes.push_back(
        {key, std::string("is not set; expected a JSONL, JSON or Parquet file of ") +
                  (learns_preferences(config)
                       ? "{\"prompt\", \"chosen\", \"rejected\"} objects"
                       : "{\"prompt\", \"completion\"} or {\"messages\"} objects")});
    return;
  }
  const std::string noun = learns_preferences(config) ? "pair" : "document";
  try {
    if (!files.tokenizer || !files.model) {  // reported already; lines can still be read
      add_problems(key, path, unreadable_lines(path, config), report);
      return;
    }
    DocumentSummary summary = learns_preferences(config)
                                  ? look_at<PreferenceFile>(path, config, files)
                                  : look_at<SftFile>(path, config, files);
    const std::string overlong = describe_overlong(summary, config);
    if (summary.usable == 0 && summary.checked == summary.documents && summary.problems.empty()) {
      summary.problems.push_back(path + ": no " + noun + " is left: " + overlong);
    }
    add_problems(key, path, summary.problems, report);
    report.notes.push_back(key + ": " + describe_documents(summary, noun, path));
    if (!overlong.empty() && config.data.on_overlong != OnOverlong::kError) {
      report.notes.push_back(key + ": " + overlong);
    }
  } catch (const std::exception& error) {
    report.mistakes.push_back({key, error.what()});
  }
}

// Held-out files that eval.every 0 leaves alone. A name that is wrong is wrong now.
void open_unused(const EvalSet& set, PreflightReport& report) {
  try {
    RecordSet(set.files);
  } catch (const std::exception& error) {
    report.mistakes.push_back({set.key, error.what()});
  }
}

}  // namespace

void check_train_lengths(const Config& config, const ModelFiles& files, PreflightReport& report) {
  const std::string& path = config.data.train;
  // check_model_files() does not open it for a trainer alone, which can do without.
  const auto tokenizer = std::filesystem::path(config.model.path) / "tokenizer.json";
  if (!files.model || !std::filesystem::exists(tokenizer) || !data_files_exist(path)) {
    return;
  }
  try {
    const PromptSet set = scan_prompt_set(path, config, engine::Tokenizer::load(tokenizer));
    check_positions("data.train", set.longest, config, files, report);
  } catch (const std::exception& error) {
    report.mistakes.push_back({"data.train", error.what()});
  }
}

void check_prompt_files(const Config& config, const PreflightScope& scope, const ModelFiles& files,
                        PreflightReport& report) {
  if (scope.workers_here) {
    check_prompt_file("data.train", config.data.train, config, files, report);
  }
  for (const EvalSet& set : eval_sets(config)) {
    if (config.eval.every > 0) {
      check_prompt_file(set.key, set.files, config, files, report);
    } else {
      open_unused(set, report);
    }
  }
}

void check_document_files(const Config& config, const ModelFiles& files, PreflightReport& report) {
  const NamedFiles trained = training_files(config);
  check_documents(trained.key, trained.files, config, files, report);
  for (const EvalSet& set : eval_sets(config)) {
    if (config.eval.every > 0) {
      check_documents(set.key, set.files, config, files, report);
    } else {
      open_unused(set, report);
    }
  }
}

void check_rollout_file(const Config& config, const PreflightScope& scope, const ModelFiles& files,
                        PreflightReport& report) {
  if (scope.rollouts.empty()) {
    return;
  }
  try {
    const auto admit = [&](const bridge::Rollout& rollout) {
      return files.model ? check_recorded(rollout, config, model_bounds(*files.model))
                         : bridge::Status(bridge::Success{});
    };
    read_rollout_file(scope.rollouts, sampled_group_size(config), admit);
    if (!record_choices(config).empty()) {
      recorded_kinds(scope.rollouts, config);
    }
  } catch (const std::exception& error) {
    report.mistakes.push_back({"--rollouts", error.what()});
  }
}

}  // namespace ringside::rl
