#include "rl/preflight/harness_file.h"

#include <string>

#include "rl/config/environment_choice.h"
#include "rl/config/harness_function.h"
#include "rl/worker/harness_process.h"

namespace ringside::rl {

void check_harness(const Config& config, const PreflightScope& scope, PreflightReport& report) {
  if (!scope.workers_here || config.rollout.harness == kExternalHarness) {
    return;
  }
  if (const std::string problem = harness_problem(config.rollout); !problem.empty()) {
    const std::string& used =
        config.rollout.environment.empty() ? config.rollout.harness : config.rollout.environment;
    report.mistakes.push_back(
        {sessions_key(config.rollout), "is " + used + ", which cannot be used: " + problem});
  }
}

}  // namespace ringside::rl
