#include "rl/worker/restart_route.h"

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "rl/worker/child_server.h"
#include "rl/worker/make_server.h"
#include "rl/worker/served_directories.h"

namespace ringside::rl {
namespace {

using bridge::Error;
using bridge::Reason;
using bridge::Status;
using bridge::Success;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{50};

class RestartRoute final : public WeightRoute {
 public:
  explicit RestartRoute(const Config& config)
      : options_(config.rollout.server_options),
        sampling_(sampling_settings(stated_sampling(config))),
        port_(port_of(options_.url)),
        directories_(config) {
    if (options_.start_command.empty()) {
      throw std::runtime_error("rollout.server_options.weights = restart needs a start_command");
    }
  }

  bool restarts_server() const override { return true; }

  Status load(bridge::InferenceServer& server,
              const std::shared_ptr<const bridge::WeightSnapshot>& snapshot,
              ShadowModel& shadow) override {
    child_.reset();  // first: from here on no server answers under the old weights
    if (server.health()) {
      return Error{Reason::kUnsupported,
                   options_.url +
                       " answers although the server of this worker is stopped: another one "
                       "has its port"};
    }
    const auto path = directories_.write(shadow, snapshot->manifest);
    child_.emplace(filled_command(options_.start_command, path.string(), port_));
    return wait_for(server);
  }

 private:
  Status wait_for(bridge::InferenceServer& server) {
    const auto until = Clock::now() + std::chrono::duration<double>(options_.load_timeout_s);
    Status status = server.connect();
    while (!status && Clock::now() < until) {
      if (const auto how = child_->ended()) {
        return Error{Reason::kClosed, "rollout.server_options.start_command " + *how + ": " +
                                          options_.start_command};
      }
      std::this_thread::sleep_for(kPoll);
      status = server.connect();
    }
    if (!status) {
      return Error{Reason::kTimeout,
                   "the server did not come up within rollout.server_options.load_timeout_s: " +
                       status.error().detail};
    }
    return server.check_sampling(sampling_);
  }

  ServerConfig options_;
  bridge::SamplingSettings sampling_;
  int port_;
  ServedDirectories directories_;
  std::optional<ChildServer> child_;
};

}  // namespace

std::unique_ptr<WeightRoute> make_restart_route(const Config& config) {
  return std::make_unique<RestartRoute>(config);
}

}  // namespace ringside::rl
