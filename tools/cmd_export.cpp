#include "tools/cmd_export.h"

#include <filesystem>
#include <iostream>
#include <memory>

#include "rl/checkpoint/export.h"

namespace ringside::tools {
namespace {

struct ExportOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path output;
};

}  // namespace

void add_export_command(CommandContext& context) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* command = context.app.add_subcommand(
      "export", "Make a Hugging Face directory of a checkpoint, one tensor at a time");
  command->add_option("checkpoint", options->checkpoint, "RUN_DIR/checkpoints/step-N")->required();
  command->add_option("directory", options->output, "new directory for the model")->required();
  command->callback([options, &context] {
    rl::export_checkpoint(options->checkpoint, options->output);
    std::cout << options->output.string() << "\n";
    context.exit_code = kExitOk;
  });
}

}  // namespace ringside::tools
