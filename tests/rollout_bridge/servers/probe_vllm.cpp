// Drives a running vLLM through its client and prints what came of it as one JSON object:
// completions at two temperatures, then the same after other weights were loaded from disk.
// tests/oracle/vllm_client.py judges the figures. Usage: probe_vllm URL MODEL VOCAB_SIZE
// OTHER_WEIGHTS_DIRECTORY
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "rollout_bridge/servers/vllm.h"

namespace {

using namespace ringside::bridge;
using nlohmann::json;

void require(const Status& status, const std::string& what) {
  if (!status) {
    throw std::runtime_error(what + ": " + status.error().detail);
  }
}

json generate(VllmServer& server, double temperature, const std::string& salt) {
  json completions = json::array();
  for (int64_t sample = 0; sample < 4; ++sample) {
    GenerateRequest request;
    request.prompt_ids = {5, 17, 40, 99, 12};
    request.max_tokens = 24;
    request.sampling.temperature = temperature;
    request.seed = 100 + sample;
    request.request_id = salt + "-" + std::to_string(temperature) + "-" + std::to_string(sample);
    request.cache_salt = salt;
    const auto result = server.generate(request);
    if (!result) {
      throw std::runtime_error("generate: " + result.error().detail);
    }
    completions.push_back({{"temperature", temperature},
                           {"prompt_ids", request.prompt_ids},
                           {"completion_ids", result.value().completion_ids},
                           {"logprobs", result.value().logprobs},
                           {"complete", result.value().logprobs_complete},
                           {"finish_reason", finish_reason_name(result.value().finish_reason)}});
  }
  return completions;
}

json run(const ServerOptions& options, const std::string& model, const std::string& other_weights) {
  VllmServer server(options, model);
  require(server.connect(), "connect");
  json found{{"before", generate(server, 1.0, "v1")}, {"tempered", generate(server, 0.7, "v1")}};
  require(server.pause(PausePolicy::kDrain), "pause");
  require(server.load_weights_from_disk(other_weights, 2), "load");
  require(server.resume(), "resume");
  found["after"] = generate(server, 1.0, "v2");
  const auto label = server.weight_version();
  found["label"] = label ? json(label.value()) : json(nullptr);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: probe_vllm URL MODEL VOCAB_SIZE OTHER_WEIGHTS_DIRECTORY\n";
    return 2;
  }
  try {
    ServerOptions options;
    options.url = argv[1];
    options.vocab_size = std::atoll(argv[3]);
    std::cout << run(options, argv[2], argv[4]) << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "probe_vllm: " << error.what() << '\n';
    return 1;
  }
}
