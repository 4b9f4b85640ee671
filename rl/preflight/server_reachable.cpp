#include "rl/preflight/server_reachable.h"

#include <chrono>
#include <exception>
#include <string>

#include "rl/worker/make_server.h"
#include "rl/worker/weight_route.h"
#include "rollout_bridge/servers/http_json.h"

namespace ringside::rl {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr std::size_t kAnswerBytes = 64 * 1024;

}  // namespace

void note_server(const Config& config, PreflightReport& report) {
  if (config.rollout.server == RolloutServer::kEmbedded) {
    return;
  }
  try {
    const auto server = make_server(config, /*vocab_size=*/1);
    if (starts_server(config, *server)) {
      return;
    }
    const ServerConfig& options = config.rollout.server_options;
    const bridge::HttpJson http(options.url, server_options(config, 1).api_key, kAnswerBytes);
    const auto answer = http.get("/health", std::chrono::steady_clock::now() + kPatience);
    if (!answer) {
      const auto name =
          EnumNames<RolloutServer>::kNames[static_cast<std::size_t>(config.rollout.server)];
      report.notes.push_back("WARNING: the " + std::string(name) + " server at " + options.url +
                             " does not answer (rollout.server_options.url): " +
                             answer.error().detail + "; workers wait for it");
    }
  } catch (const std::exception&) {
    // check_server() reports options that make no client.
  }
}

}  // namespace ringside::rl
