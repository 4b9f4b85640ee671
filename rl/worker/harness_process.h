// A Python process that a worker starts, which plays sessions: calls a harness function of the
// user's file, or plays an environment.
// Torch-free.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "rl/config/config.h"
#include "rl/python/python_process.h"

namespace ringside::rl {

class HarnessProcess {
 public:
  // Starts it. It claims sessions at `url` (of GatewayServer) with
  // rollout.harness_options.concurrency threads, until the run is over.
  // Blocks: until the file is imported.
  // Throws: std::runtime_error naming file and line when the file or the function cannot be used.
  HarnessProcess(const RolloutConfig& config, const std::string& url);

  // Blocks: briefly.
  // Throws: std::runtime_error when the process has ended.
  void check();

 private:
  PythonProcess process_;
};

// Imports the file of rollout.harness and finds its function, or makes an environment of
// rollout.environment. Returns what is wrong with it; empty
// if nothing is.
// Blocks: until the file is imported.
std::string harness_problem(const RolloutConfig& config);

// Records of data.train as the environment of rollout.environment makes them, each an object.
// Blocks: until they are made.
// Throws: std::runtime_error naming file and line of an exception, and for an environment that
// makes no records.
nlohmann::json environment_records(const RolloutConfig& config, int64_t count, int64_t seed);

}  // namespace ringside::rl
