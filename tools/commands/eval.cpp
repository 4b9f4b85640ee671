// `ringside eval`.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "rl/report/log.h"
#include "rl/sampling/prompt_evaluation.h"
#include "rl/setup/model_device.h"
#include "rl/setup/model_setup.h"
#include "tools/commands/commands.h"

namespace ringside::tools {
namespace {

struct EvalOptions {
  std::filesystem::path model;
  std::filesystem::path data;
  std::filesystem::path output;
  std::vector<std::string> words;
};

nlohmann::ordered_json completion_line(const rl::Prompt& prompt, int64_t sample,
                                       const rl::ScoredCompletion& scored) {
  nlohmann::ordered_json line{{"id", prompt.id},
                              {"sample", sample},
                              {"prompt", prompt.prompt},
                              {"completion", scored.text},
                              {"length", scored.completion.ids.size()},
                              {"reward", nullptr}};
  if (scored.scores.failure.empty()) {
    line["reward"] = scored.scores.total;
  } else {
    line["reward_error"] = scored.scores.failure;
  }
  return line;
}

// The figures as a table on standard error and as one JSON line on standard output.
void print_figures(const std::vector<rl::EvalFigure>& figures, std::size_t prompts,
                   const rl::Config& config, int64_t unscored) {
  nlohmann::ordered_json summary{{"prompts", prompts},
                                 {"samples", config.eval.samples},
                                 {"temperature", config.eval.temperature},
                                 {"reward_recipe", config.rollout.reward}};
  std::fprintf(stderr, "%-12s %10s   95 %% interval over %zu prompts\n", "", "mean", prompts);
  for (const rl::EvalFigure& figure : figures) {
    const double low = figure.value - figure.half_width;
    const double high = figure.value + figure.half_width;
    std::fprintf(stderr, "%-12s %10.4f   %.4f to %.4f\n", figure.name.c_str(), figure.value, low,
                 high);
    summary[figure.name] = {{"mean", figure.value}, {"low", low}, {"high", high}};
  }
  if (unscored > 0) {
    summary["unscored"] = unscored;
  }
  std::cout << summary.dump() << "\n";
}

void evaluate_file(const EvalOptions& options, const rl::LoadedConfig& loaded) {
  const rl::Config& config = loaded.config;
  const auto decoder = rl::load_starting_model(
      config, config.model.path, rl::compute_context(config, rl::model_device(config, 0)));
  auto sampler = as_usage([&] { return rl::PromptSampler(config, decoder->config()); });
  rl::PromptSet set =
      as_usage([&] { return rl::load_prompt_set(options.data, config, sampler.tokenizer()); });
  if (set.overlong > 0) {
    rl::log::warn(options.data.string() + ": " +
                  rl::describe_overlong(set, rl::prompt_rules(config)));
  }
  std::vector<rl::Prompt>& prompts = set.prompts;
  if (config.eval.max_prompts > 0 &&
      config.eval.max_prompts < static_cast<int64_t>(prompts.size())) {
    prompts.resize(config.eval.max_prompts);
  }
  sampler.take_images(options.data, prompts);
  fit_completions(loaded, prompts, sampler);
  std::ofstream output;
  if (!options.output.empty()) {
    output.open(options.output, std::ios::trunc);
  }
  const auto found = rl::evaluate_prompts(
      sampler, *decoder, prompts, config,
      [&](std::size_t index, int64_t sample, const rl::ScoredCompletion& scored) {
        if (output.is_open()) {
          output << completion_line(prompts[index], sample, scored)
                        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                 << '\n';
        }
      });
  if (output.is_open() && !output.flush()) {
    throw std::runtime_error("cannot write " + options.output.string());
  }
  if (found.unscored == static_cast<int64_t>(prompts.size()) * config.eval.samples) {
    throw std::runtime_error("no completion could be scored: " + found.failure);
  }
  if (found.unscored > 0) {
    rl::log::warn(std::to_string(found.unscored) +
                  " completions have no reward and are left out: " + found.failure);
  }
  print_figures(rl::eval_figures(found.results, config.eval.samples), prompts.size(), config,
                found.unscored);
}

int evaluate(const EvalOptions& options) {
  const auto loaded = load_for_sampling(options.model, options.words);
  if (!loaded) {
    return kExitUsage;
  }
  if (!options.output.empty() && !check_writable("--output", options.output)) {
    return kExitUsage;
  }
  evaluate_file(options, *loaded);
  return kExitOk;
}

}  // namespace

void add_eval_command(CommandContext& context) {
  const auto options = std::make_shared<EvalOptions>();
  CLI::App* command = context.app.add_subcommand(
      "eval", "Evaluate a model: mean reward, pass@k and lengths, with 95 % intervals");
  command->add_option("model", options->model, "Hugging Face directory with a tokenizer.json")
      ->required();
  command->add_option("data", options->data, "JSONL of {\"prompt\", \"answer\"}")->required();
  command->add_option("--output", options->output, "JSONL of completions and rewards");
  command->add_option("inputs", options->words,
                      "recipes (YAML) for rollout.* and eval.*, and key.sub=value overrides; "
                      "eval.samples=8 eval.temperature=1 for pass@8");
  command->callback([options, &context] { context.exit_code = evaluate(*options); });
}

}  // namespace ringside::tools
