// Command `ringside keygen --out DIR [--name trainer|worker|...]`: writes a CURVE key pair for the
// bridge to DIR/NAME.key (mode 0600) and DIR/NAME.pub. Never overwrites a file.
#include <iostream>
#include <memory>
#include <stdexcept>

#include "rollout_bridge/transport/curve_keys.h"
#include "tools/commands/commands.h"

namespace ringside::tools {
namespace {

struct KeygenOptions {
  std::filesystem::path out;
  std::string name = "worker";
};

int keygen(const KeygenOptions& options) {
  try {
    const bridge::KeyPair pair = bridge::make_key_pair();
    bridge::write_key_pair(options.out, options.name, pair);
    std::cout << "secret: " << (options.out / (options.name + ".key")).string()
              << " (stays on this machine)\n"
              << "public: " << (options.out / (options.name + ".pub")).string() << "\n"
              << pair.public_key << " " << options.name << "\n";
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n";
    return kExitUsage;
  }
  return kExitOk;
}

}  // namespace

void add_keygen_command(CommandContext& context) {
  const auto options = std::make_shared<KeygenOptions>();
  CLI::App* command = context.app.add_subcommand(
      "keygen", "Make a key pair for an encrypted bridge; existing files are never overwritten");
  command->add_option("--out", options->out, "folder for NAME.key and NAME.pub, created if missing")
      ->required();
  command->add_option("--name", options->name, "trainer, worker or any plain file name")
      ->capture_default_str();
  command->callback([options, &context] { context.exit_code = keygen(*options); });
}

}  // namespace ringside::tools
