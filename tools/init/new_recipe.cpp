#include "tools/init/new_recipe.h"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <stdexcept>

#include "engine/io/model_config_json.h"
#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"
#include "rl/config/enums.h"
#include "rl/data/chat_format.h"
#include "rl/data/prompt_set.h"

namespace ringside::tools {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShortestPromptLimit = 64;
constexpr int64_t kLongestPromptLimit = 8192;
constexpr int64_t kLongAnswer = 1024;  // with working before the answer
constexpr int64_t kShortAnswer = 256;
constexpr int64_t kMicroBatchTokens = 8192;
constexpr int64_t kBoxTokens = 32;  // at most, of the sentence that asks for a box

struct Lengths {
  int64_t prompt = 0;
  int64_t completion = 0;
};

int64_t next_power_of_two(int64_t value) {
  int64_t power = 1;
  while (power < value) {
    power *= 2;
  }
  return power;
}

constexpr const char* kBoxSuffix = "\\nPut the final answer in \\\\boxed{}.";  // as YAML has it

// How prompts become text.
struct ChatChoice {
  rl::ChatTemplate chat_template = rl::ChatTemplate::kNone;
  bool wraps_text = false;  // prompts are text, which becomes a user's message
};

bool has_template(const std::string& model) {
  try {
    rl::model_chat_templates(model);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

ChatChoice chat_choice(const RecipeAnswers& answers, const DataSample& sample,
                       const engine::Tokenizer& tokenizer) {
  if (has_template(answers.model)) {
    const bool wraps = !sample.messages && answers.task != "sft";
    return sample.messages || wraps ? ChatChoice{rl::ChatTemplate::kModel, wraps} : ChatChoice{};
  }
  if (!sample.messages) {
    return {};
  }
  if (tokenizer.token_id("<|start_header_id|>")) {
    return {rl::ChatTemplate::kLlama3};
  }
  if (tokenizer.token_id("<|im_start|>")) {
    return {rl::ChatTemplate::kChatml};
  }
  throw std::runtime_error(
      answers.data + " has chat messages, but " + answers.model +
      " has no chat template, and its tokenizer has neither <|im_start|> nor <|start_header_id|>; "
      "expected the files of an instruct model, or prompts that are text");
}

rl::Config scan_config(const RecipeAnswers& answers, const DataSample& sample,
                       const ChatChoice& chat) {
  rl::Config config;
  config.model.path = answers.model;
  config.data.prompt_key = sample.prompt_key;
  config.data.answer_key = sample.answer_key;
  config.data.on_overlong = rl::OnOverlong::kDrop;
  config.rollout.max_prompt_tokens = kLongestPromptLimit;
  config.data.chat_template = chat.chat_template;
  config.data.text_prompts = chat.wraps_text ? rl::TextPrompts::kUser : rl::TextPrompts::kRaw;
  return config;
}

// Whether the recipe asks for the final answer in a box, where math_answer finds it best.
bool asks_for_box(const RecipeAnswers& answers, const DataSample& sample, const ChatChoice& chat) {
  return answers.task == "math_answer" && chat.chat_template == rl::ChatTemplate::kModel &&
         !sample.asks_for_box;
}

Lengths lengths_of(const RecipeAnswers& answers, const DataSample& sample, const ChatChoice& chat,
                   const engine::Tokenizer& tokenizer) {
  const int64_t positions = engine::num_positions(engine::load_model_config(answers.model));
  const rl::Config config = scan_config(answers, sample, chat);
  const int64_t box = asks_for_box(answers, sample, chat) ? kBoxTokens : 0;
  const int64_t longest = rl::scan_prompt_set(answers.data, config, tokenizer).longest + box;
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
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += c;
  }
  return out + "\"";
}

// A path as the recipe names it: relative to its folder if it is below that.
std::string recipe_path(const std::string& path, const std::string& folder) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  const fs::path rest = whole.lexically_relative(fs::absolute(folder).lexically_normal());
  return !rest.empty() && *rest.begin() != ".." ? rest.string() : whole.string();
}

void write_data(std::ostream& out, const RecipeAnswers& answers, const DataSample& sample,
                const ChatChoice& chat) {
  const std::string file = quoted(recipe_path(answers.data, answers.folder));
  out << "data:\n  " << (answers.task == "sft" ? "sft: " : "train: ") << file << "\n";
  if (chat.chat_template != rl::ChatTemplate::kNone) {
    out << "  chat_template: " << rl::to_string(chat.chat_template) << "\n";
  }
  if (chat.wraps_text) {
    out << "  text_prompts: user               # each prompt is a user's message\n";
  }
  if (asks_for_box(answers, sample, chat)) {
    out << "  prompt_suffix: \"" << kBoxSuffix << "\"\n";
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
  const ChatChoice chat = chat_choice(answers, sample, tokenizer);
  const std::string model = recipe_path(answers.model, answers.folder);
  std::ostringstream out;
  out << "# Written by `ringside init`. It lists only what differs from the defaults;\n"
      << "# `ringside check --defaults` explains every key.\n"
      << "model:\n  path: " << quoted(model) << "\n";
  if (answers.gpus > 0) {
    out << "  dtype: bfloat16\n";
  }
  write_data(out, answers, sample, chat);
  write_task(out, answers,
             answers.task == "sft" ? Lengths{} : lengths_of(answers, sample, chat, tokenizer));
  if (answers.gpus > 1) {
    out << "parallel:\n  data_parallel_shard_size: " << answers.gpus
        << "        # one copy of the model over all GPUs\n";
  }
  return out.str();
}

}  // namespace ringside::tools
