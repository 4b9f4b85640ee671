// Command `ringside reward --model DIR [--address HOST:PORT] [RECIPE...] [key=value ...]`: serves a
// reward model that algorithm.task reward_model has trained, for rollout.reward http.
#include <chrono>
#include <iostream>
#include <memory>
#include <thread>

#include "engine/io/value_model_files.h"
#include "engine/models/value_model.h"
#include "engine/tokenizer/tokenizer.h"
#include "rl/data/reward_documents.h"
#include "rl/sampling/reward_server.h"
#include "rl/setup/model_device.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/value_model_setup.h"
#include "rl/step/score_documents.h"
#include "tools/commands/commands.h"
#include "tools/commands/stop_signal.h"

namespace ringside::tools {
namespace {

struct RewardOptions {
  std::filesystem::path model;
  std::string address = "127.0.0.1:8600";
  std::vector<std::string> words;
};

std::vector<double> last_values(const std::vector<std::vector<double>>& of_documents) {
  std::vector<double> values;
  for (const auto& entries : of_documents) {
    values.push_back(entries.back());
  }
  return values;
}

void serve(const RewardOptions& options, const rl::Config& config) {
  const c10::Device device = rl::model_device(config, 0);
  const auto comms = sp::single_rank_groups(device);
  const sp::Mesh mesh({1, 1, 1}, 0);
  auto value_model = rl::load_value_model(config, options.model.string(), /*random=*/false,
                                          /*head_bias=*/false, rl::compute_context(config, device));
  const engine::ModelRunner model(std::move(value_model), comms);
  const auto tokenizer = engine::Tokenizer::load(options.model / "tokenizer.json");
  rl::RewardDocuments documents(config, tokenizer, model.decoder().config().eos_token_ids);
  const rl::ScoreOptions score{config.train.tokens_per_micro_batch,
                               rl::sequence_options(config.sp)};
  const rl::RewardServer server(
      options.address, options.model.string(), config.train.tokens_per_micro_batch,
      {[&](const nlohmann::ordered_json& prompt, const std::string& completion) {
         return documents.document(prompt, completion);
       },
       [&](const std::vector<sp::Document>& batch) {
         return last_values(rl::document_values(model, batch, mesh, comms, score));
       }});
  std::cout << "rewards of " << options.model.string() << " at " << server.url()
            << ": rollout.reward=http rollout.reward_options.http_url=" << server.url() << "\n"
            << std::flush;
  finish_on_stop_signals();
  while (stop_signal() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

int reward(const RewardOptions& options) {
  const auto loaded = load_for_sampling(options.model, options.words);
  if (!loaded) {
    return kExitUsage;
  }
  as_usage([&] {
    if (!engine::is_sequence_classifier(options.model)) {
      throw std::runtime_error(
          "--model " + options.model.string() +
          ": its config.json is not that of a sequence classifier; expected the checkpoint-final "
          "of a run with algorithm.task reward_model");
    }
  });
  serve(options, loaded->config);
  return kExitOk;
}

}  // namespace

void add_reward_command(CommandContext& context) {
  const auto options = std::make_shared<RewardOptions>();
  CLI::App* command = context.app.add_subcommand(
      "reward", "Serve a trained reward model over HTTP, for rollout.reward http");
  command->add_option("--model", options->model, "directory of algorithm.task reward_model")
      ->required();
  command->add_option("--address", options->address, "HOST:PORT; port 0 takes a free one")
      ->capture_default_str();
  command->add_option("inputs", options->words, "recipes (YAML) and key.sub=value overrides");
  command->callback([options, &context] { context.exit_code = reward(*options); });
}

}  // namespace ringside::tools
