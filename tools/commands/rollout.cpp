// Command `ringside rollout RECIPE... [--run-dir DIR] [--worker-id ID] [key=value ...]`: runs one
// rollout worker, with the embedded generator or an inference server as rollout.server says. With
// --run-dir it finds the trainer through the run directory, else at bridge.rollout_address and
// bridge.weights_address.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <iostream>
#include <memory>

#include "rl/config/environment_choice.h"
#include "rl/report/log.h"
#include "rl/worker/embedded_worker.h"
#include "rl/worker/server_worker.h"
#include "rl/worker/session_worker.h"
#include "rl/worker/trainer_address.h"
#include "tools/commands/commands.h"
#include "tools/commands/stop_signal.h"

namespace ringside::tools {
namespace {

struct RolloutOptions {
  std::vector<std::string> words;
  std::filesystem::path run_dir;
  std::string worker_id;
  std::string server;
};

int rollout(const RolloutOptions& options) {
  ConfigInputs inputs = split_inputs(options.words);
  if (!options.server.empty()) {
    inputs.overrides.push_back("rollout.server=" + options.server);
  }
  const auto loaded = load_or_print_errors(inputs);
  if (!loaded) {
    return kExitUsage;
  }
  if (options.run_dir.empty() && !rl::names_port(loaded->config.bridge.rollout_address)) {
    std::cerr << "ringside rollout: no trainer named; give --run-dir DIR, or the trainer's "
                 "bridge.rollout_address (now "
              << loaded->config.bridge.rollout_address << ")\n";
    return kExitUsage;
  }
  finish_on_stop_signals();
  at::set_num_threads(static_cast<int>(loaded->config.rollout.worker_threads));
  rl::WorkerSettings settings;
  settings.worker_id =
      options.worker_id.empty() ? "worker-" + std::to_string(getpid()) : options.worker_id;
  if (!options.run_dir.empty()) {
    settings.endpoint_file = options.run_dir / "bridge" / "endpoint.json";
  }
  settings.should_stop = [] { return stop_signal() != 0; };
  rl::log::set_prefix(settings.worker_id);
  if (rl::has_sessions(loaded->config.rollout)) {
    rl::run_session_worker(loaded->config, settings);
  } else if (loaded->config.rollout.server == rl::RolloutServer::kEmbedded) {
    rl::run_embedded_worker(loaded->config, settings);
  } else {
    rl::run_server_worker(loaded->config, settings);
  }
  return kExitOk;
}

}  // namespace

void add_rollout_command(CommandContext& context) {
  const auto options = std::make_shared<RolloutOptions>();
  CLI::App* command = context.app.add_subcommand(
      "rollout", "Run a rollout worker, with the embedded generator or with an inference server");
  command->add_option("inputs", options->words, "recipes (YAML), and key.sub=value overrides")
      ->required();
  command->add_option("--run-dir", options->run_dir,
                      "run directory of the trainer, on the same machine");
  command->add_option("--server", options->server,
                      "embedded, vllm, sglang, llama_cpp or python: short for rollout.server=...; "
                      "see rollout.server_options");
  command->add_option(
      "--worker-id", options->worker_id,
      "name of this worker, the same after a restart (default: from the process id)");
  command->callback([options, &context] { context.exit_code = rollout(*options); });
}

}  // namespace ringside::tools
