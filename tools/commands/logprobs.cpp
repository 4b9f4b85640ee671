// Command `ringside logprobs --model DIR --input FILE.jsonl --output FILE.jsonl [--nproc N]
// [key=value ...]`: computes log-probs of given token ids, at any parallel layout. Each input line
// is {"ids": [...]}. The output line at the same place is {"logprobs": [...]} with one value fewer
// than ids.
#include <ATen/ATen.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "rl/data/training_batch.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/step/score_documents.h"
#include "tools/commands/commands.h"
#include "tools/commands/distributed.h"
#include "tools/launch/rank_environment.h"

namespace ringside::tools {
namespace {

struct LogprobsOptions {
  std::filesystem::path model;
  std::filesystem::path adapter;
  std::filesystem::path input;
  std::filesystem::path output;
  int nproc = 0;
  std::vector<std::string> overrides;
};

// Lines scored at a time: bounds the memory used besides the model.
constexpr std::size_t kLinesPerBatch = 1024;

std::vector<int64_t> parse_ids(const std::string& text, int64_t vocab_size) {
  const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object() || !line.contains("ids") || !line["ids"].is_array()) {
    throw std::runtime_error("expected an object with an array \"ids\" of token ids");
  }
  std::vector<int64_t> ids;
  for (const auto& id : line["ids"]) {
    if (!id.is_number_integer()) {
      throw std::runtime_error("\"ids\" holds " + id.dump().substr(0, 64) +
                               ", expected whole numbers");
    }
    ids.push_back(id.get<int64_t>());
  }
  for (const int64_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      throw std::runtime_error("id " + std::to_string(id) + " is outside the vocabulary of " +
                               std::to_string(vocab_size));
    }
  }
  return ids;
}

// The next lines as documents whose every token but the first is scored; empty at the end of the
// file.
std::vector<sp::Document> read_batch(std::ifstream& file, const std::filesystem::path& path,
                                     int64_t vocab_size, int64_t& line_number) {
  std::vector<sp::Document> documents;
  std::string text;
  while (documents.size() < kLinesPerBatch && std::getline(file, text)) {
    ++line_number;
    try {
      auto ids = parse_ids(text, vocab_size);
      documents.push_back(ids.size() < 2 ? sp::Document{}
                                         : rl::make_scored_document(std::move(ids), 1));
    } catch (const std::exception& error) {
      throw std::runtime_error(path.string() + ":" + std::to_string(line_number) + ": " +
                               error.what());
    }
  }
  return documents;
}

// Reads the whole input once, before ranks are started.
// Throws: UsageError that names file and line.
void check_input(const LogprobsOptions& options, const rl::Config& config) {
  as_usage([&] {
    const engine::ModelConfig model = rl::load_model_config(config, config.model.path);
    const int64_t positions = engine::num_positions(model);
    std::ifstream input(options.input);
    if (!input) {
      throw std::runtime_error("--input " + options.input.string() + ": cannot be read");
    }
    std::string text;
    for (int64_t number = 1; std::getline(input, text); ++number) {
      const std::string place = options.input.string() + ":" + std::to_string(number) + ": ";
      int64_t length = 0;
      try {
        length = static_cast<int64_t>(parse_ids(text, model.vocab_size).size());
      } catch (const std::exception& error) {
        throw std::runtime_error(place + error.what());
      }
      if (positions > 0 && length > positions) {
        throw std::runtime_error(place + std::to_string(length) +
                                 " ids are more than the model's positions "
                                 "(max_position_embeddings in config.json, rope scaling, "
                                 "model.max_document_tokens), " +
                                 std::to_string(positions));
      }
    }
  });
}

void score_file(const LogprobsOptions& options, const rl::Config& config, const Ranks& ranks) {
  const engine::ModelRunner model(std::make_unique<engine::LanguageModel>(rl::load_policy(
                                      config, rl::compute_context(config, ranks.comms))),
                                  ranks.comms);
  std::ifstream input(options.input);
  if (!input) {
    throw std::runtime_error("cannot read " + options.input.string());
  }
  std::ofstream output;
  if (ranks.mesh.rank() == 0) {
    output.open(options.output, std::ios::trunc);
  }
  int64_t line_number = 0;
  for (;;) {
    const auto documents =
        read_batch(input, options.input, model.decoder().config().vocab_size, line_number);
    if (documents.empty()) {
      break;
    }
    const auto logprobs =
        rl::score_documents(model, documents, ranks.mesh, ranks.comms,
                            {config.train.tokens_per_micro_batch, rl::sequence_options(config.sp)});
    for (const auto& line : logprobs) {
      output << nlohmann::json{{"logprobs", line}}.dump() << '\n';
    }
  }
  if (ranks.mesh.rank() == 0 && !output.flush()) {
    throw std::runtime_error("cannot write " + options.output.string());
  }
}

int logprobs(const LogprobsOptions& options, const CommandContext& context) {
  // fp32 norms first, so that the user's overrides take precedence: fp64 log-probs are for
  // comparison with transformers.
  std::vector<std::string> overrides{"model.fp32_norms=true",
                                     "model.path=" + options.model.string()};
  overrides.insert(overrides.end(), options.overrides.begin(), options.overrides.end());
  if (!options.adapter.empty()) {
    try {
      const auto adapter = rl::adapter_overrides(options.adapter);
      overrides.insert(overrides.begin(), adapter.begin(), adapter.end());
    } catch (const std::exception& error) {
      std::cerr << "ringside logprobs: --adapter: " << error.what() << "\n";
      return kExitUsage;
    }
  }
  auto loaded = load_or_print_errors(
      {.recipes = {}, .overrides = overrides, .mistakes = {}, .use = rl::ConfigUse::kSampleModel});
  if (!loaded || !check_model_directory(options.model)) {
    return kExitUsage;
  }
  if (!check_writable("--output", options.output)) {
    return kExitUsage;
  }
  if (!rank_environment()) {
    check_input(options, loaded->config);
  }
  return run_on_ranks(loaded->config, options.nproc, context.arguments,
                      [&](const Ranks& ranks) { score_file(options, loaded->config, ranks); });
}

}  // namespace

void add_logprobs_command(CommandContext& context) {
  const auto options = std::make_shared<LogprobsOptions>();
  CLI::App* command = context.app.add_subcommand(
      "logprobs", "Compute log-probs of token ids under a model, at any parallel layout");
  command->add_option("--model", options->model, "Hugging Face directory")->required();
  command->add_option("--adapter", options->adapter,
                      "PEFT directory of low-rank adapters on top of the model");
  command->add_option("--input", options->input, "JSONL of {\"ids\": [...]}")->required();
  command
      ->add_option("--output", options->output,
                   "JSONL of {\"logprobs\": [...]}, with one value fewer than ids per line")
      ->required();
  command
      ->add_option("--nproc", options->nproc,
                   "processes to start (default: one for each rank of parallel.*; fewer only with "
                   "sp.virtual_ranks)")
      ->check(at_least_one());
  command->add_option("overrides", options->overrides, "key.sub=value");
  command->callback([options, &context] { context.exit_code = logprobs(*options, context); });
}

}  // namespace ringside::tools
