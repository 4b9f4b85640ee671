// Robustness bench: a million malformed messages to a live trainer; README.md describes the checks.
// Usage:
//   bench_frames trainer FOLDER
//   bench_frames worker ENDPOINT_JSON
//   bench_frames attack ENDPOINT_JSON MESSAGES SEED
#include <csignal>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/bench/frames/bench.h"

namespace ringside::bench {
namespace {

constexpr int kUsage = 2;

Target read_target(const std::string& path) {
  std::ifstream in(path);
  const auto content = nlohmann::json::parse(in);
  return {content.at("rollout_address"), content.at("weights_address"), content.at("run_id"),
          content.at("trainer_term")};
}

int run(const std::vector<std::string>& words) {
  const std::string role = words.empty() ? "" : words[0];
  if (role == "trainer" && words.size() == 2) return run_trainer(words[1]);
  if (role == "worker" && words.size() == 2) return run_worker(read_target(words[1]));
  if (role == "attack" && words.size() == 4) {
    const auto seed = static_cast<uint32_t>(std::stoul(words[3]));
    std::cout << attack(read_target(words[1]), std::stoull(words[2]), seed).dump(1) << "\n";
    return 0;
  }
  std::cerr << "usage: bench_frames trainer FOLDER | worker ENDPOINT_JSON | "
               "attack ENDPOINT_JSON MESSAGES SEED\n";
  return kUsage;
}

}  // namespace
}  // namespace ringside::bench

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // as the journal requires
  try {
    return ringside::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "bench_frames: " << error.what() << "\n";
    return 1;
  }
}
