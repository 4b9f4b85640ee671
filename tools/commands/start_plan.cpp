#include "tools/commands/start_plan.h"

#include <iostream>

#include "rl/report/log.h"
#include "tools/commands/command.h"
#include "tools/launch/rank_environment.h"

namespace ringside::tools {

std::optional<int> exit_code_of(const rl::StartPlan& plan) {
  if (plan.kind == rl::StartKind::kTrain) {
    return std::nullopt;
  }
  const auto rank = rank_environment();
  if (!rank || rank->rank == 0) {
    for (const std::string& line : plan.lines) {
      if (plan.kind == rl::StartKind::kRefused) {
        std::cerr << line << "\n";
      } else {
        rl::log::info(line);
      }
    }
  }
  return plan.kind == rl::StartKind::kRefused ? kExitUsage : kExitOk;
}

}  // namespace ringside::tools
