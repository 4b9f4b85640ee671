#include "rl/worker/weight_route.h"

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "rl/config/adapter_names.h"
#include "rl/worker/restart_route.h"
#include "rl/worker/served_directories.h"
#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/weights/manifest_codec.h"
#include "rollout_bridge/weights/snapshot.h"
#include "rollout_bridge/weights/weight_server.h"

namespace ringside::rl {
namespace {

using bridge::Error;
using bridge::Reason;
using bridge::Status;
using bridge::Success;
using Snapshot = std::shared_ptr<const bridge::WeightSnapshot>;

// pull: the server's process fetches the verified bytes from a weight socket of this worker.
class PullRoute final : public WeightRoute {
 public:
  Status load(bridge::InferenceServer& server, const Snapshot& snapshot,
              ShadowModel& /*shadow*/) override {
    const bridge::Manifest& manifest = snapshot->manifest;
    if (!publisher_ || manifest.run_id != run_id_ || manifest.trainer_term != trainer_term_) {
      run_id_ = manifest.run_id;
      trainer_term_ = manifest.trainer_term;
      publisher_.reset();
      // Loopback and not ipc: the server may live in another mount namespace of this machine.
      publisher_.emplace(context_, "tcp://127.0.0.1:*", run_id_, trainer_term_, bridge::Limits{});
    }
    publisher_->serve(snapshot);
    const auto root = server.pull_weights(
        {publisher_->address(), bridge::encode_manifest(bridge::dense_manifest(manifest)), run_id_,
         trainer_term_, manifest.version, manifest.root_hash});
    if (!root) {
      return root.error();
    }
    if (root.value() == manifest.root_hash) {
      return Success{};
    }
    return Error{Reason::kChecksum, "the server staged weights of root " + root.value() +
                                        ", version " + std::to_string(manifest.version) + " has " +
                                        manifest.root_hash};
  }

 private:
  zmq::context_t context_;
  std::string run_id_;
  int64_t trainer_term_ = -1;
  std::optional<bridge::WeightServer> publisher_;
};

// disk: a Hugging Face directory a version.
class DiskRoute final : public WeightRoute {
 public:
  explicit DiskRoute(const Config& config) : directories_(config) {}

  Status load(bridge::InferenceServer& server, const Snapshot& snapshot,
              ShadowModel& shadow) override {
    const auto path = directories_.write(shadow, snapshot->manifest);
    return server.load_weights_from_disk(path.string(), snapshot->manifest.version);
  }

 private:
  ServedDirectories directories_;
};

// adapter: a PEFT directory a version, on top of the weights that the server was started with; with
// lora.adapters one for each name.
class AdapterRoute final : public WeightRoute {
 public:
  explicit AdapterRoute(const Config& config)
      : directories_(config), adapters_(adapter_names(config.lora)) {}

  Status load(bridge::InferenceServer& server, const Snapshot& snapshot,
              ShadowModel& shadow) override {
    const auto path = directories_.write_adapters(shadow, snapshot->manifest);
    const int64_t version = snapshot->manifest.version;
    if (adapters_.empty()) {
      return server.load_adapter(path.string(), version, "");
    }
    for (const std::string& name : adapters_) {
      if (Status loaded = server.load_adapter((path / name).string(), version, name); !loaded) {
        return loaded;
      }
    }
    return Success{};
  }

 private:
  ServedDirectories directories_;
  std::vector<std::string> adapters_;
};

}  // namespace

bool starts_server(const Config& config, const bridge::InferenceServer& server) {
  const ServerConfig& options = config.rollout.server_options;
  const bridge::Capabilities can = server.capabilities();
  return options.weights == ServerWeights::kRestart ||
         (options.weights == ServerWeights::kAuto && !options.start_command.empty() && !can.pull &&
          !can.hot_weights);
}

std::unique_ptr<WeightRoute> make_weight_route(const Config& config,
                                               const bridge::InferenceServer& server) {
  const ServerConfig& options = config.rollout.server_options;
  const bridge::Capabilities can = server.capabilities();
  const bool any = options.weights == ServerWeights::kAuto;
  // What a server fetches must be a whole model: the constant part of a tower is not published.
  const bool publishes_all =
      config.data.image_key.empty() || config.model.vision == VisionPart::kTrained;
  if (!config.lora.adapters.empty() && (starts_server(config, server) || !any || !can.adapters)) {
    throw std::runtime_error("the server at " + options.url +
                             " cannot take the adapters of lora.adapters one by one; expected a "
                             "vLLM that runs already, and rollout.server_options.weights auto");
  }
  if (starts_server(config, server)) {
    return make_restart_route(config);
  }
  if (config.lora.publish == LoraPublish::kAdapter && any && can.adapters) {
    return std::make_unique<AdapterRoute>(config);
  }
  if (can.pull && publishes_all &&
      (any || options.weights == ServerWeights::kPull ||
       options.weights == ServerWeights::kEngine)) {
    return std::make_unique<PullRoute>();
  }
  if (can.hot_weights && (any || options.weights == ServerWeights::kDisk)) {
    return std::make_unique<DiskRoute>(config);
  }
  throw std::runtime_error(
      "the server at " + options.url + " cannot take weights by rollout.server_options.weights = " +
      std::string(to_string(options.weights)) + ": pull " + (can.pull ? "works" : "does not work") +
      ", disk " + (can.hot_weights ? "works" : "does not work") +
      ", restart needs a start_command" +
      (publishes_all ? "" : "; pull and engine need model.vision trained"));
}

}  // namespace ringside::rl
