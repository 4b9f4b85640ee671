// `ringside report`.
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>

#include "rl/report/html_report.h"
#include "rl/trainer/run_directory.h"
#include "tools/commands/commands.h"

namespace ringside::tools {
namespace {

struct ReportCommand {
  std::vector<std::filesystem::path> run_dirs;
  std::filesystem::path output;
};

int report(const ReportCommand& options) {
  for (const auto& dir : options.run_dirs) {
    if (!std::filesystem::is_directory(dir)) {
      std::cerr << dir.string() << ": is no directory; expected the --run-dir of a run\n";
      return kExitUsage;
    }
  }
  const std::filesystem::path output =
      options.output.empty() ? options.run_dirs.front() / "report.html" : options.output;
  if (!check_writable("--output", output)) {
    return kExitUsage;
  }
  const std::string page = as_usage(
      [&] { return rl::html_report(options.run_dirs, {.trainer_at_work = rl::trainer_at_work}); });
  std::ofstream file(output, std::ios::binary | std::ios::trunc);
  if (!(file << page).flush()) {
    throw std::runtime_error("cannot write " + output.string());
  }
  std::cout << output.string() << "\n";
  return kExitOk;
}

}  // namespace

void add_report_command(CommandContext& context) {
  const auto options = std::make_shared<ReportCommand>();
  CLI::App* command = context.app.add_subcommand(
      "report", "Write one HTML page about one or more runs: curves, time, samples, differences");
  command->add_option("run_dirs", options->run_dirs, "directories of runs, finished or not")
      ->required();
  command->add_option("--output", options->output,
                      "file to write (default: report.html in the first directory)");
  command->callback([options, &context] { context.exit_code = report(*options); });
}

}  // namespace ringside::tools
