// Samples prompts with images from a running vLLM through its client and prints the completions as
// a JSON list. tests/oracle/vllm_images.py judges the figures.
// Usage: probe_vllm_images URL MODEL VOCAB_SIZE PROMPTS.json, with prompts as [{"ids": [...],
// "images": [{"id", "begin", "tokens", "grid": [height, width], "patches": [...]}]}]
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "rollout_bridge/servers/vllm.h"

namespace {

using namespace ringside::bridge;
using nlohmann::json;

GenerateRequest request_of(const json& prompt, std::size_t number) {
  GenerateRequest request;
  request.prompt_ids = prompt.at("ids").get<std::vector<int64_t>>();
  request.max_tokens = 12;
  request.seed = static_cast<int64_t>(100 + number);
  request.request_id = "image-" + std::to_string(number);
  request.cache_salt = "v1";
  for (const json& image : prompt.at("images")) {
    request.images.push_back(
        {image.at("id"), image.at("begin"), image.at("tokens"), image.at("grid").at(0),
         image.at("grid").at(1),
         std::make_shared<std::vector<float>>(image.at("patches").get<std::vector<float>>())});
  }
  return request;
}

json run(const ServerOptions& options, const std::string& model, const json& prompts) {
  VllmServer server(options, model);
  if (const Status connected = server.connect(); !connected) {
    throw std::runtime_error("connect: " + connected.error().detail);
  }
  json completions = json::array();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto result = server.generate(request_of(prompts[i], i));
    if (!result) {
      throw std::runtime_error("generate: " + result.error().detail);
    }
    completions.push_back(
        {{"completion_ids", result.value().completion_ids}, {"logprobs", result.value().logprobs}});
  }
  return completions;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: probe_vllm_images URL MODEL VOCAB_SIZE PROMPTS.json\n";
    return 2;
  }
  try {
    ServerOptions options;
    options.url = argv[1];
    options.vocab_size = std::atoll(argv[3]);
    options.images = true;
    std::ifstream file(argv[4]);
    std::cout << run(options, argv[2], json::parse(file)) << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "probe_vllm_images: " << error.what() << '\n';
    return 1;
  }
}
