#include "rl/worker/make_server.h"

#include <fstream>
#include <stdexcept>
#include <string>

#include "rollout_bridge/servers/llama_cpp.h"
#include "rollout_bridge/servers/python_server.h"
#include "rollout_bridge/servers/sglang.h"
#include "rollout_bridge/servers/vllm.h"

namespace ringside::rl {
namespace {

std::string read_key(const std::string& path) {
  if (path.empty()) {
    return "";
  }
  std::ifstream file(path);
  std::string key;
  if (!std::getline(file, key) || key.empty()) {
    throw std::runtime_error("rollout.server_options.api_key_file " + path +
                             " holds no key in its first line");
  }
  return key;
}

std::chrono::milliseconds from_seconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

bridge::ServerOptions server_options(const Config& config, int64_t vocab_size) {
  const ServerConfig& from = config.rollout.server_options;
  bridge::ServerOptions options;
  options.url = from.url;
  options.api_key = read_key(from.api_key_file);
  options.vocab_size = vocab_size;
  options.generate_deadline = from_seconds(from.request_timeout_s);
  options.pause_deadline = from_seconds(from.load_timeout_s);
  options.load_deadline = from_seconds(from.load_timeout_s);
  options.images = !config.data.image_key.empty();
  options.again_after_close = false;  // the weights are verified before a request is retried
  return options;
}

std::unique_ptr<bridge::InferenceServer> make_server(
    const Config& config, int64_t vocab_size, std::shared_ptr<bridge::SelectedAdapter> adapter) {
  const ServerConfig& from = config.rollout.server_options;
  const bridge::ServerOptions options = server_options(config, vocab_size);
  switch (config.rollout.server) {
    case RolloutServer::kVllm:
      return std::make_unique<bridge::VllmServer>(
          options, from.model.empty() ? config.model.path : from.model,
          from.weights == ServerWeights::kEngine ? bridge::VllmWeights::kEngine
                                                 : bridge::VllmWeights::kReload,
          std::move(adapter));
    case RolloutServer::kSglang:
      return std::make_unique<bridge::SglangServer>(options);
    case RolloutServer::kLlamaCpp:
      return std::make_unique<bridge::LlamaCppServer>(options);
    case RolloutServer::kPython:
      return std::make_unique<bridge::PythonServer>(options);
    case RolloutServer::kEmbedded:
      break;
  }
  throw std::runtime_error("rollout.server = embedded has no server outside of the worker");
}

bridge::SamplingSettings sampling_settings(const StatedSampling& stated) {
  bridge::SamplingSettings settings;
  settings.temperature = stated.temperature;
  settings.top_p = stated.top_p;
  settings.top_k = stated.top_k;
  return settings;
}

}  // namespace ringside::rl
