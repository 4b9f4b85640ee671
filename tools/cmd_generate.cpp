#include "tools/cmd_generate.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "rl/data/data_order.h"
#include "rl/data/prompt_set.h"
#include "rl/report/log.h"
#include "rl/sampling/prompt_sampler.h"
#include "rl/setup/model_device.h"
#include "rl/setup/model_setup.h"

namespace ringside::tools {
namespace {

struct GenerateOptions {
  std::filesystem::path model;
  std::filesystem::path input;
  std::filesystem::path output;
  std::vector<std::string> words;
};

// Prompts sampled as one batch.
constexpr std::size_t kBatch = 256;

nlohmann::ordered_json output_line(const rl::Prompt& prompt, const rl::ScoredCompletion& scored) {
  nlohmann::ordered_json line{{"id", prompt.id},
                              {"prompt", prompt.prompt},
                              {"completion", scored.text},
                              {"completion_ids", scored.completion.ids},
                              {"logprobs", scored.completion.logprobs},
                              {"reward", nullptr}};
  if (scored.scores.failure.empty()) {
    line["reward"] = scored.scores.total;
    line["rewards"] = nlohmann::ordered_json::object();
    for (const auto& [name, value] : scored.scores.raw) {
      line["rewards"][name] = value;
    }
  } else {
    line["reward_error"] = scored.scores.failure;
  }
  return line;
}

void generate_file(const GenerateOptions& options, const rl::Config& config) {
  const auto decoder = rl::load_starting_model(
      config, config.model.path, rl::compute_context(config, rl::model_device(config, 0)));
  const rl::PromptSampler sampler(config, decoder->config());
  const rl::PromptSet set = rl::load_prompt_set(options.input, config, sampler.tokenizer());
  const std::vector<rl::Prompt>& prompts = set.prompts;
  if (set.overlong > 0) {
    rl::log::warn(options.input.string() + ": " +
                  rl::describe_overlong(set, rl::prompt_limit(config)));
  }
  std::ofstream output;
  if (!options.output.empty()) {
    output.open(options.output, std::ios::trunc);
  }
  double reward = 0.0;
  std::size_t unscored = 0;
  for (std::size_t begin = 0; begin < prompts.size(); begin += kBatch) {
    const std::size_t end = std::min(prompts.size(), begin + kBatch);
    const std::vector<rl::Prompt> batch(prompts.begin() + begin, prompts.begin() + end);
    std::vector<uint64_t> seeds;
    for (std::size_t i = begin; i < end; ++i) {
      seeds.push_back(rl::mix_seed({static_cast<uint64_t>(config.seed), i}));
    }
    const auto scored = sampler.sample(*decoder, batch, seeds, config.eval.temperature);
    for (std::size_t i = 0; i < scored.size(); ++i) {
      reward += scored[i].scores.total;  // 0 without a score
      unscored += scored[i].scores.failure.empty() ? 0 : 1;
      if (output.is_open()) {
        output << output_line(batch[i], scored[i]).dump() << '\n';
      }
    }
  }
  if (output.is_open() && !output.flush()) {
    throw std::runtime_error("cannot write " + options.output.string());
  }
  nlohmann::ordered_json summary{
      {"prompts", prompts.size()}, {"reward", config.rollout.reward}, {"mean", nullptr}};
  if (unscored < prompts.size()) {
    summary["mean"] = reward / static_cast<double>(prompts.size() - unscored);
  }
  if (unscored > 0) {
    summary["unscored"] = unscored;
  }
  std::cout << summary.dump() << "\n";
}

int generate(const GenerateOptions& options) {
  ConfigInputs inputs = split_inputs(options.words);
  inputs.overrides.push_back("model.path=" + options.model.string());
  inputs.overrides.push_back("model.init=pretrained");
  const auto loaded = load_or_print_errors(inputs);
  if (!loaded) return kExitUsage;
  if (!options.output.empty() && !check_writable("--output", options.output)) return kExitUsage;
  if (loaded->config.train.threads > 0) {
    at::set_num_threads(static_cast<int>(loaded->config.train.threads));
  }
  generate_file(options, loaded->config);
  return kExitOk;
}

}  // namespace

void add_generate_command(CommandContext& context) {
  const auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = context.app.add_subcommand(
      "generate", "Sample completions of prompts, score them, and print the mean reward");
  command->add_option("--model", options->model, "Hugging Face directory with a tokenizer.json")
      ->required();
  command->add_option("--input", options->input, "JSONL of {\"prompt\", \"answer\"}")->required();
  command->add_option("--output", options->output, "JSONL of completions, log-probs and rewards");
  command->add_option(
      "inputs", options->words,
      "recipes (YAML) for rollout.*, and key.sub=value overrides; eval.temperature=0 is greedy");
  command->callback([options, &context] { context.exit_code = generate(*options); });
}

}  // namespace ringside::tools
