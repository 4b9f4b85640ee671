#include "rl/worker/server_connection.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "rl/report/log.h"
#include "rl/worker/make_server.h"
#include "rl/worker/server_wait_notice.h"
#include "rl/worker/weight_route.h"

namespace ringside::rl {
namespace {

using bridge::Reason;
using std::chrono::milliseconds;

constexpr milliseconds kRetryConnect{1000};
constexpr milliseconds kBetweenNotices{30'000};

}  // namespace

std::unique_ptr<bridge::InferenceServer> connected_server(
    const Config& config, const WorkerSettings& settings, int64_t vocab_size,
    std::shared_ptr<bridge::SelectedAdapter> adapter) {
  auto server = make_server(config, vocab_size, std::move(adapter));
  if (starts_server(config, *server)) {
    return server;  // no server runs before the first weights
  }
  const auto until =
      settings.now() +
      milliseconds(static_cast<int64_t>(config.rollout.server_options.load_timeout_s * 1000));
  ServerWaitNotice notice(
      "the " +
          std::string(
              EnumNames<RolloutServer>::kNames[static_cast<std::size_t>(config.rollout.server)]) +
          " server at " + config.rollout.server_options.url,
      kBetweenNotices, log::info);
  auto status = server->connect();
  while (!status && status.error().reason == Reason::kClosed && settings.now() < until &&
         !settings.should_stop()) {
    notice.set_reason(status.error().detail);
    std::this_thread::sleep_for(kRetryConnect);  // it may still be starting
    status = server->connect();
  }
  if (status) {
    status = server->check_sampling(sampling_settings(stated_sampling(config)));
  }
  if (status && !config.data.image_key.empty() && !server->capabilities().images) {
    status = bridge::Error{Reason::kUnsupported, config.rollout.server_options.url +
                                                     ": it does not take images, but "
                                                     "data.image_key is set"};
  }
  if (!status) {
    throw std::runtime_error("rollout.server: " + status.error().detail);
  }
  return server;
}

}  // namespace ringside::rl
