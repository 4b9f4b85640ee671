#include "rl/worker/session_worker.h"

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

#include "rl/chat/parser_table.h"
#include "rl/config/harness_function.h"
#include "rl/gateway/gateway_server.h"
#include "rl/report/log.h"
#include "rl/setup/model_setup.h"
#include "rl/worker/decoder_sessions.h"
#include "rl/worker/run_loop.h"
#include "rl/worker/server_sessions.h"
#include "rl/worker/session_jobs.h"
#include "rl/worker/session_loop.h"

namespace ringside::rl {
namespace {

// Threads that serve requests: each request keeps one, also while it waits for a session.
int server_threads(const Config& config) {
  return static_cast<int>(config.rollout.harness_options.concurrency) * 2 + 8;
}

// The name of the parser of what the model says.
std::string parser_name(const Config& config) {
  const std::string& name = config.rollout.harness_options.parser;
  try {
    if (name == "auto" && config.data.chat_template == ChatTemplate::kModel) {
      return choose_message_parser(config.model.path);
    }
    if (name != "auto" && name != "none") {
      make_message_parser(name, {});
    }
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error("rollout.harness_options.parser is " + name + ": " + error.what() +
                             "; or none");
  }
  return name == "auto" ? "none" : name;  // other templates render no calls
}

std::unique_ptr<SessionModel> session_model(const Config& config, const WorkerSettings& settings,
                                            const engine::ModelConfig& model,
                                            const std::vector<int64_t>& stops) {
  if (config.rollout.server == RolloutServer::kEmbedded) {
    return std::make_unique<DecoderSessions>(config, stops);
  }
  return std::make_unique<ServerSessions>(config, settings, model, stops);
}

}  // namespace

void run_session_worker(const Config& config, const WorkerSettings& settings) {
  const HarnessConfig& options = config.rollout.harness_options;
  const engine::ModelConfig shape = load_model_config(config, config.model.path);
  SessionJobs jobs(config, settings.worker_id, shape);
  const auto model = session_model(config, settings, shape, jobs.stops());
  SessionDesk desk(
      std::chrono::milliseconds(static_cast<int64_t>(options.session_timeout_s * 1000)),
      settings.now);
  ChatText text(ChatFormat(config), jobs.tokenizer());
  Gateway gateway(desk, text, parser_name(config));
  GatewayServer server(options.address, server_threads(config), config.model.path, gateway);
  log::info("the gateway for the harness is at " + server.url());
  if (config.rollout.harness != kExternalHarness) {
    jobs.watch(std::make_unique<HarnessProcess>(config.rollout, server.url()));
  }
  bridge::WorkerEndpoint endpoint(worker_options(config, settings, jobs.shared_settings()));
  SessionLoop loop(endpoint, desk, *model, jobs, static_cast<std::size_t>(wanted_samples(config)),
                   settings, settings.now);
  run_loop(loop, endpoint, settings);
  leave(endpoint, loop.ended());
}

}  // namespace ringside::rl
