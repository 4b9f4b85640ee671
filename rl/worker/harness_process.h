// A Python harness that a worker starts: calls a function of the user's file for each session.
// Torch-free.
#pragma once

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

// Imports the file of rollout.harness and finds its function. Returns what is wrong with it; empty
// if nothing is.
// Blocks: until the file is imported.
std::string harness_problem(const RolloutConfig& config);

}  // namespace ringside::rl
