// `ringside logprobs` and `ringside train` with a run's ranks as threads that meet in shared
// memory, for grids of many small runs: one process does them all. ringside_cli.py starts it.
//
// Input: one run a line, a JSON array of the words after "ringside". Output: one line a run, its
// exit code. Messages go to standard error. Ends at the end of the input.
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/rank_thread.h"
#include "rl/report/log.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/sharding.h"
#include "tests/support/ranks.h"
#include "tools/commands/commands.h"
#include "tools/commands/distributed.h"
#include "tools/commands/run_launch.h"

namespace ringside::tools {

// In place of the program's, which starts a process for each rank.
int run_on_ranks(rl::Config& config, int nproc, const std::vector<std::string>&,
                 const std::function<void(const Ranks&)>& body,
                 const std::function<std::string(int signal)>&) {
  const int processes = trainer_processes(config, nproc);
  rl::fix_replicas(config.parallel, config.sp.virtual_ranks > 0 ? 0 : processes);
  for (const std::string& line : rl::describe_sequence_parallel(config)) {
    rl::log::info(line);
  }
  rl::factor_context_parallel(config);
  test::run_ranks_in_memory(
      rl::mesh_shape(config.parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        const engine::RankThread thread(groups.device());
        body({mesh, groups});
      },
      rl::sharding_axes(config.parallel));
  return kExitOk;
}

}  // namespace ringside::tools

namespace {

using namespace ringside;

int run(const std::vector<std::string>& words) {
  CLI::App app("", "ringside");
  app.require_subcommand(1);
  tools::CommandContext context{.app = app, .arguments = words};
  tools::add_logprobs_command(context);
  tools::add_train_command(context);
  std::vector<std::string> reversed(words.rbegin(), words.rend());  // as CLI11 wants them
  try {
    app.parse(std::move(reversed));
    return context.exit_code;
  } catch (const CLI::ParseError& error) {
    app.exit(error, std::cerr, std::cerr);
    return tools::kExitUsage;
  } catch (const std::exception& error) {
    std::cerr << "ringside: " << tools::error_text(error) << "\n";
    return tools::kExitFailure;
  }
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << run(nlohmann::json::parse(line).get<std::vector<std::string>>()) << std::endl;
  }
  return 0;
}
