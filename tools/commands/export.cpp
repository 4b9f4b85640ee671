// `ringside export`: a checkpoint as a Hugging Face directory.
#include "rl/checkpoint/export.h"

#include <filesystem>
#include <iostream>
#include <memory>

#include "rl/checkpoint/manifest.h"
#include "tools/commands/commands.h"

namespace ringside::tools {
namespace {

struct ExportOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path output;
};

// Throws: UsageError.
void check(const ExportOptions& options) {
  const std::string checkpoint = options.checkpoint.string();
  const bool is_checkpoint = rl::is_checkpoint(options.checkpoint);
  if (!is_checkpoint && std::filesystem::exists(options.checkpoint / "config.json")) {
    throw UsageError(checkpoint + " is a model's directory already; use it as it is");
  }
  if (!is_checkpoint) {
    throw UsageError(checkpoint + " is no complete checkpoint (it has no " +
                     std::string(rl::kManifestFile) +
                     "); expected a folder like RUN_DIR/checkpoints/step-000010, "
                     "or RUN_DIR/checkpoint-final, which "
                     "is a model's directory already");
  }
  if (std::filesystem::exists(options.output) && !(std::filesystem::is_directory(options.output) &&
                                                   std::filesystem::is_empty(options.output))) {
    throw UsageError(options.output.string() +
                     " exists; expected a directory that does not, or an empty one");
  }
}

}  // namespace

void add_export_command(CommandContext& context) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* command = context.app.add_subcommand(
      "export", "Make a Hugging Face directory of a checkpoint, one tensor at a time");
  command
      ->add_option("checkpoint", options->checkpoint,
                   "a folder like RUN_DIR/checkpoints/step-000010")
      ->required();
  command->add_option("directory", options->output, "new directory for the model")->required();
  command->callback([options, &context] {
    check(*options);
    rl::export_checkpoint(options->checkpoint, options->output);
    std::cout << options->output.string() << "\n";
    context.exit_code = kExitOk;
  });
}

}  // namespace ringside::tools
