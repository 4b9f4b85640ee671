#include "tools/init/new_recipe.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "engine/io/model_config_json.h"
#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"
#include "rl/data/prompt_set.h"

namespace ringside::tools {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShortestPromptLimit = 64;
constexpr int64_t kLongestPromptLimit = 8192;
constexpr int64_t kLongAnswer = 1024;  // with working before the answer
constexpr int64_t kShortAnswer = 256;
constexpr int64_t kMicroBatchTokens = 8192;

struct Lengths {
  int64_t prompt = 0;
  int64_t completion = 0;
};

int64_t next_power_of_two(int64_t value) {
  int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

std::string chat_template(const engine::Tokenizer& tokenizer) {
  return tokenizer.token_id("<|start_header_id|>") ? "llama3" : "chatml";
}

rl::Config scan_config(const DataSample& sample, const std::string& chat) {
  rl::Config config;
  config.data.prompt_key = sample.prompt_key;
  config.data.answer_key = sample.answer_key;
  config.data.on_overlong = rl::OnOverlong::kDrop;
  config.rollout.max_prompt_tokens = kLongestPromptLimit;
  if (sample.messages) {
    config.data.chat_template =
        chat == "llama3" ? rl::ChatTemplate::kLlama3 : rl::ChatTemplate::kChatml;
  }
  return config;
}

Lengths lengths_of(const RecipeAnswers& answers, const DataSample& sample,
                   const engine::Tokenizer& tokenizer) {
  const int64_t positions = engine::num_positions(engine::load_model_config(answers.model));
  const rl::Config config = scan_config(sample, chat_template(tokenizer));
  const int64_t longest = rl::scan_prompt_set(answers.data, config, tokenizer).longest;
  const bool reasons = answers.task != "exact_match" && answers.task != "multiple_choice";
  Lengths lengths;
  lengths.prompt = std::min(std::max(kShortestPromptLimit, next_power_of_two(longest)),
                            std::max<int64_t>(longest, positions / 2));
  lengths.completion = std::max<int64_t>(
      1, std::min(reasons ? kLongAnswer : kShortAnswer, positions - lengths.prompt));
  return lengths;
}

// A scalar that YAML reads back as this text.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

void write_data(std::ostream& out, const RecipeAnswers& answers, const DataSample& sample,
                const engine::Tokenizer& tokenizer) {
  const std::string file = quoted(fs::absolute(answers.data).lexically_normal().string());
  out << "data:\n  " << (answers.task == "sft" ? "sft: " : "train: ") << file << "\n";
  if (sample.messages) {
    out << "  chat_template: " << chat_template(tokenizer) << "\n";
  }
  if (answers.task != "sft" && sample.prompt_key != "prompt") {
    out << "  prompt_key: " << quoted(sample.prompt_key) << "\n";
  }
  if (answers.task != "sft" && sample.answer_key != "answer") {
    out << "  answer_key: " << quoted(sample.answer_key) << "\n";
  }
  out << "  on_overlong: drop                # leave out what is longer than the limits\n";
}

void write_task(std::ostream& out, const RecipeAnswers& answers, const Lengths& lengths) {
  if (answers.task == "sft") {
    out << "algorithm:\n  task: sft\ntrain:\n  epochs: 1\n  batch_size: 32\n"
        << "  tokens_per_micro_batch: " << kMicroBatchTokens << "\n"
        << "optimizer:\n  learning_rate: 1.0e-5\n";
    return;
  }
  out << "rollout:\n  reward: " << quoted(answers.task)
      << "\n  prompts_per_step: 8              # x group_size = rollouts a step\n"
      << "  group_size: 8\n  max_prompt_tokens: " << lengths.prompt
      << "\n  max_completion_tokens: " << lengths.completion << "\ntrain:\n  steps: 100\n"
      << "  tokens_per_micro_batch: "
      << std::max(kMicroBatchTokens, lengths.prompt + lengths.completion)
      << "     # lower it if memory runs out\n"
      << "optimizer:\n  learning_rate: 1.0e-6            # try up to 1e-4 with small models\n";
}

}  // namespace

std::string new_recipe(const RecipeAnswers& answers, const DataSample& sample) {
  const engine::Tokenizer tokenizer = engine::Tokenizer::load(answers.model);
  const std::string model = fs::absolute(answers.model).lexically_normal().string();
  std::ostringstream out;
  out << "# Written by `ringside init`. It lists only what differs from the defaults;\n"
      << "# `ringside check --defaults` explains every key.\n"
      << "model:\n  path: " << quoted(model) << "\n";
  if (answers.gpus > 0) {
    out << "  dtype: bfloat16\n";
  }
  write_data(out, answers, sample, tokenizer);
  write_task(out, answers,
             answers.task == "sft" ? Lengths{} : lengths_of(answers, sample, tokenizer));
  if (answers.gpus > 1) {
    out << "parallel:\n  data_parallel_shard_size: " << answers.gpus
        << "        # one copy of the model over all GPUs\n";
  }
  return out.str();
}

}  // namespace ringside::tools
