// The `ringside` executable: one subcommand a file, tools/cmd_<name>.cpp.
#include <csignal>
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "tools/cmd_check.h"
#include "tools/cmd_generate.h"
#include "tools/cmd_keygen.h"
#include "tools/cmd_logprobs.h"
#include "tools/cmd_rollout.h"
#include "tools/cmd_run.h"
#include "tools/cmd_train.h"

int main(int argc, char** argv) {
  using namespace ringside::tools;
  std::signal(SIGXFSZ, SIG_IGN);  // a file at its size limit is an error of write(), not the end
  CLI::App app("Ringside: reinforcement-learning post-training of language models", "ringside");
  app.require_subcommand(1);
  app.set_version_flag("--version", RINGSIDE_VERSION);
  CommandContext context{.app = app, .arguments = {argv + 1, argv + argc}};
  add_check_command(context);
  add_generate_command(context);
  add_keygen_command(context);
  add_logprobs_command(context);
  add_rollout_command(context);
  add_run_command(context);
  add_train_command(context);
  try {
    app.parse(argc, argv);
    return context.exit_code;
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kExitOk : kExitUsage;
  } catch (const std::exception& e) {
    std::cerr << "ringside: " << error_text(e) << "\n";
    return kExitFailure;
  }
}
