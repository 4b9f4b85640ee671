// Weight routes: the ways to transfer new weights from a rollout worker to an inference server.
// Each route leaves the server with exactly the given version or returns an error. The server is
// verified afterwards (served_weights.h).
#pragma once

#include <memory>

#include "rl/config/config.h"
#include "rl/worker/shadow_model.h"
#include "rollout_bridge/servers/inference_server.h"

namespace ringside::rl {

class WeightRoute {
 public:
  virtual ~WeightRoute() = default;
  // Transfers the weights. Call it between pause() and resume() of `server`. `shadow` holds the
  // same version.
  // Blocks: up to the server's deadlines, and on the disk.
  // Throws: std::runtime_error when weights cannot be written or a process cannot be started.
  virtual bridge::Status load(bridge::InferenceServer& server,
                              const std::shared_ptr<const bridge::WeightSnapshot>& snapshot,
                              ShadowModel& shadow) = 0;
  // Whether load() restarts the server's process, so that there is nothing to pause.
  virtual bool restarts_server() const { return false; }
};

// Whether the worker starts the server itself (restart_route.h), so that none runs before the first
// weights: weights = restart, or auto with a start_command if the `server`, connected or not,
// supports no other route.
bool starts_server(const Config& config, const bridge::InferenceServer& server);

// The route that config.rollout.server_options.weights names. For `auto`: adapters alone if
// lora.publish is adapter and the server takes them; otherwise the first of pull (not
// with a vision tower that is not trained whole) and disk that the connected `server` supports,
// else restart if there is a start_command. Throws: std::runtime_error naming what is missing when
// there is none; as make_restart_route().
std::unique_ptr<WeightRoute> make_weight_route(const Config& config,
                                               const bridge::InferenceServer& server);

}  // namespace ringside::rl
