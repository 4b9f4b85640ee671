// The ways by which new weights get from a rollout worker into an inference server. Each leaves the
// server with exactly the given version or returns an error; whether that is so is asked of the
// server afterwards (served_weights.h).
#pragma once

#include <memory>

#include "rl/config/config.h"
#include "rl/worker/shadow_model.h"
#include "rollout_bridge/servers/inference_server.h"

namespace ringside::rl {

class WeightRoute {
 public:
  virtual ~WeightRoute() = default;
  // Between pause() and resume() of `server`. `shadow` holds the same version. Blocks up to the
  // server's deadlines.
  virtual bridge::Status load(bridge::InferenceServer& server,
                              const std::shared_ptr<const bridge::WeightSnapshot>& snapshot,
                              const ShadowModel& shadow) = 0;
  // Whether load() starts the server's process anew, so that there is nothing to pause.
  virtual bool restarts_server() const { return false; }
};

// Whether the worker is to start the server itself (restart_route.h), so that none is up before the
// first weights: weights = restart, or auto with a start_command where the `server`, connected or
// not, takes weights in no other way.
bool starts_server(const Config& config, const bridge::InferenceServer& server);

// The route that config.rollout.server_options.weights names; for `auto` the first of pull and disk
// that a connected `server` can, else restart where there is a start_command. Throws
// std::runtime_error saying what lacks when there is none.
std::unique_ptr<WeightRoute> make_weight_route(const Config& config,
                                               const bridge::InferenceServer& server);

}  // namespace ringside::rl
