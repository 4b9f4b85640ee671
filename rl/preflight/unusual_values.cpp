#include "rl/preflight/unusual_values.h"

#include <algorithm>

#include "rl/config/batch_arithmetic.h"
#include "rl/config/checks.h"
#include "rl/config/eval_sets.h"
#include "rl/config/task.h"

namespace ringside::rl {
namespace {

std::string warning(const std::string& key, const std::string& text) {
  return "warning: " + key + " " + text;
}

}  // namespace

std::vector<std::string> unusual_values(const Config& config, int64_t cores) {
  std::vector<std::string> notes;
  const std::string cores_here = "this machine's " + std::to_string(cores) + " cores";
  const int64_t workers = samples_completions(config) ? config.rollout.num_workers : 0;
  if (workers * config.rollout.worker_threads > cores) {
    notes.push_back(
        warning("rollout.num_workers", "x rollout.worker_threads is " + std::to_string(workers) +
                                           " x " + std::to_string(config.rollout.worker_threads) +
                                           " threads, more than " + cores_here +
                                           ", on which `ringside run` starts them all"));
  }
  const int64_t steps = batch_arithmetic(config).optimizer_steps;
  if (config.optimizer.warmup_steps >= steps) {
    notes.push_back(
        warning("optimizer.warmup_steps", "is " + std::to_string(config.optimizer.warmup_steps) +
                                              " of " + std::to_string(steps) +
                                              " optimizer steps: the rate never reaches "
                                              "optimizer.learning_rate"));
  }
  if (config.optimizer.learning_rate == 0) {
    notes.push_back(warning("optimizer.learning_rate", "is 0: the weights do not change"));
  }
  const NamedFiles trained = training_files(config);
  for (const EvalSet& set : eval_sets(config)) {
    if (config.eval.every > 0 && set.files == trained.files) {
      notes.push_back(warning(set.key, "names the files of " + std::string(trained.key) +
                                           ": the evaluation sees what is trained on"));
    }
  }
  return notes;
}

std::vector<std::string> unusual_prompts(const std::string& key, const PromptSet& set,
                                         const Config& config) {
  std::vector<std::string> notes;
  const auto count = static_cast<int64_t>(set.prompts.size());
  if (key == "data.train" && count > 0 && count < config.rollout.prompts_per_step) {
    notes.push_back(warning(
        key, "has " + std::to_string(count) + (count == 1 ? " prompt" : " prompts") +
                 ", fewer than rollout.prompts_per_step " +
                 std::to_string(config.rollout.prompts_per_step) + ": a step repeats prompts"));
  }
  const bool equal = std::all_of(set.prompts.begin(), set.prompts.end(), [&](const Prompt& prompt) {
    return prompt.prompt == set.prompts.front().prompt;
  });
  if (count > 1 && equal) {
    notes.push_back(warning(key, "has " + std::to_string(count) +
                                     " prompts of one text; does data.chat_template show the "
                                     "messages?"));
  }
  return notes;
}

}  // namespace ringside::rl
