// Command `ringside generate --model DIR (--input FILE | --prompt TEXT) [-n K] [--output
// FILE.jsonl] [key=value ...]`: samples K completions per prompt at eval.temperature (0 = greedy)
// and scores them by rollout.reward. Those of --prompt are printed.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "rl/data/chat_format.h"
#include "rl/data/held_out_prompts.h"
#include "rl/data/prompt_messages.h"
#include "rl/data/prompt_set.h"
#include "rl/report/log.h"
#include "rl/sampling/prompt_sampler.h"
#include "rl/setup/model_device.h"
#include "rl/setup/model_setup.h"
#include "tools/commands/commands.h"

namespace ringside::tools {
namespace {

struct GenerateOptions {
  std::filesystem::path model;
  std::string input;
  std::filesystem::path output;
  std::string prompt;
  int64_t samples = 1;  // of each prompt
  std::vector<std::string> words;
};

// Prompts that are sampled, and then scored and written, by one call.
constexpr std::size_t kBatch = 8 * rl::kMostRows;

nlohmann::ordered_json output_line(const rl::Prompt& prompt, int64_t sample,
                                   const rl::ScoredCompletion& scored) {
  nlohmann::ordered_json line{{"id", prompt.id},
                              {"sample", sample},
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

// The one prompt of the command line; with a chat template it is what the user says.
rl::PromptSet prompt_of_text(const std::string& text, const rl::Config& config) {
  rl::PromptSet set;
  const bool chat = config.data.chat_template != rl::ChatTemplate::kNone;
  const rl::Conversation conversation{rl::prompt_messages(rl::user_message(text), config.data),
                                      nullptr};
  set.prompts.push_back(
      {"1", chat ? rl::ChatFormat(config).prompt(conversation) : text + config.data.prompt_suffix,
       ""});
  return set;
}

rl::PromptSet read_input(const GenerateOptions& options, const rl::Config& config,
                         const engine::Tokenizer& tokenizer) {
  if (!options.prompt.empty()) {
    return prompt_of_text(options.prompt, config);
  }
  rl::PromptSet set = rl::load_prompt_set(options.input, config, tokenizer);
  if (set.overlong > 0) {
    rl::log::warn(options.input + ": " + rl::describe_overlong(set, rl::prompt_rules(config)));
  }
  return set;
}

// The completions' lines, and what the summary says.
struct Report {
  std::ofstream output;
  bool print_text = false;
  double reward = 0.0;
  int64_t scored = 0;

  void add(const rl::Prompt& prompt, int64_t sample, const rl::ScoredCompletion& completion) {
    reward += completion.scores.total;  // 0 without a score
    scored += completion.scores.failure.empty() ? 1 : 0;
    if (output.is_open()) {
      output << output_line(prompt, sample, completion).dump() << '\n';
    }
    if (print_text) {
      std::cout << completion.text << "\n";
    }
  }
};

void sample_all(const rl::PromptSampler& sampler, const engine::Decoder& decoder,
                const rl::PromptSet& set, const GenerateOptions& options, const rl::Config& config,
                Report& report) {
  const auto samples = static_cast<std::size_t>(options.samples);
  const std::size_t total = set.prompts.size() * samples;
  for (std::size_t begin = 0; begin < total; begin += kBatch) {
    const std::size_t end = std::min(total, begin + kBatch);
    std::vector<rl::Prompt> batch;
    std::vector<uint64_t> seeds;
    for (std::size_t i = begin; i < end; ++i) {
      batch.push_back(set.prompts[i / samples]);
      seeds.push_back(rl::held_out_seed(config, i / samples, static_cast<int64_t>(i % samples)));
    }
    const auto scored =
        sampler.sample(decoder, batch, seeds, {.temperature = config.eval.temperature});
    for (std::size_t i = 0; i < scored.size(); ++i) {
      report.add(batch[i], static_cast<int64_t>((begin + i) % samples), scored[i]);
    }
  }
}

void generate_file(const GenerateOptions& options, const rl::LoadedConfig& loaded) {
  const rl::Config& config = loaded.config;
  const auto decoder = rl::load_starting_model(
      config, config.model.path, rl::compute_context(config, rl::model_device(config, 0)));
  rl::PromptSampler sampler(config, decoder->config());
  const rl::PromptSet set = read_input(options, config, sampler.tokenizer());
  sampler.take_images(options.input, set.prompts);
  fit_completions(loaded, set.prompts, sampler);
  Report report;
  report.print_text = !options.prompt.empty();
  if (!options.output.empty()) {
    report.output.open(options.output, std::ios::trunc);
  }
  sample_all(sampler, *decoder, set, options, config, report);
  if (report.output.is_open() && !report.output.flush()) {
    throw std::runtime_error("cannot write " + options.output.string());
  }
  if (report.print_text) {
    return;
  }
  const auto total = static_cast<int64_t>(set.prompts.size()) * options.samples;
  nlohmann::ordered_json summary{
      {"prompts", set.prompts.size()}, {"reward", config.rollout.reward}, {"mean", nullptr}};
  if (options.samples > 1) {
    summary["samples"] = total;
  }
  if (report.scored > 0) {
    summary["mean"] = report.reward / static_cast<double>(report.scored);
  }
  if (report.scored < total) {
    summary["unscored"] = total - report.scored;
  }
  std::cout << summary.dump() << "\n";
}

bool check_options(const GenerateOptions& options, const rl::Config& config) {
  if (options.prompt.empty() == options.input.empty()) {
    std::cerr << "generate: expected either --input FILE or --prompt TEXT\n";
    return false;
  }
  if (options.samples > 1 && config.eval.temperature == 0) {
    std::cerr << "-n " << options.samples
              << ": eval.temperature is 0, so all completions of a prompt are the same; expected "
                 "eval.temperature=1 or another value above 0\n";
    return false;
  }
  return options.output.empty() || check_writable("--output", options.output);
}

int generate(const GenerateOptions& options) {
  const auto loaded = load_for_sampling(options.model, options.words);
  if (!loaded) {
    return kExitUsage;
  }
  if (!check_options(options, loaded->config)) {
    return kExitUsage;
  }
  generate_file(options, *loaded);
  return kExitOk;
}

}  // namespace

void add_generate_command(CommandContext& context) {
  const auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = context.app.add_subcommand(
      "generate", "Sample completions of prompts, score them, and print the mean reward");
  command->add_option("--model", options->model, "Hugging Face directory with a tokenizer.json")
      ->required();
  command->add_option("--input", options->input, "JSONL or JSON of {\"prompt\", \"answer\"}");
  command->add_option("--prompt", options->prompt,
                      "one prompt, whose completions are printed; with data.chat_template it is "
                      "rendered as a user's message");
  command
      ->add_option("-n", options->samples,
                   "completions of each prompt; several need eval.temperature above 0")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--output", options->output, "JSONL of completions, log-probs and rewards");
  command->add_option(
      "inputs", options->words,
      "recipes (YAML) for rollout.*, and key.sub=value overrides; eval.temperature=0 is greedy");
  command->callback([options, &context] { context.exit_code = generate(*options); });
}

}  // namespace ringside::tools
