#include "rl/preflight/harness_file.h"

#include <string>

#include "rl/config/harness_function.h"
#include "rl/worker/harness_process.h"

namespace ringside::rl {

void check_harness(const Config& config, const PreflightScope& scope, PreflightReport& report) {
  if (!scope.workers_here || config.rollout.harness == kExternalHarness) {
    return;
  }
  if (const std::string problem = harness_problem(config.rollout); !problem.empty()) {
    report.mistakes.push_back(
        {"rollout.harness", "is " + config.rollout.harness + ", which cannot be used: " + problem});
  }
}

}  // namespace ringside::rl
