// Commands `ringside man` and `ringside completion SHELL`: print the manual page and what a shell
// needs to complete command lines.
#include <iostream>
#include <memory>

#include "tools/commands/commands.h"
#include "tools/commands/reference_pages.h"

namespace ringside::tools {

void add_reference_commands(CommandContext& context) {
  CLI::App* man = context.app.add_subcommand("man", "Print the manual page, ringside(1)");
  man->callback([&context] { std::cout << manual_page(context.app); });

  const auto shell = std::make_shared<std::string>();
  CLI::App* completion =
      context.app.add_subcommand("completion", "Print completion of command lines for a shell");
  completion->add_option("shell", *shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  completion->callback([shell, &context] {
    std::cout << (*shell == "bash" ? bash_completion(context.app) : zsh_completion(context.app));
  });
}

}  // namespace ringside::tools
