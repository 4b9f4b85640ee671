#include "tools/cmd_check.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>

#include "rl/config/batch_arithmetic.h"
#include "rl/config/schema.h"
#include "rl/sequence_parallel.h"

namespace ringside::tools {
namespace {

struct CheckOptions {
  std::vector<std::string> words;
  bool defaults = false;
};

// "key: value   # origin", one key a line; text is quoted so that "" and blanks are seen.
void print_configuration(rl::LoadedConfig& loaded) {
  std::vector<std::pair<std::string, std::string>> lines;
  std::size_t width = 0;
  for (const rl::Field& field : rl::fields_of(loaded.config)) {
    const bool text = std::holds_alternative<rl::TextSlot>(field.slot) ||
                      std::holds_alternative<rl::PathSlot>(field.slot);
    const std::string value = rl::value_text(field.slot);
    lines.emplace_back(field.key + ": " + (text ? "\"" + value + "\"" : value),
                       loaded.origins.at(field.key));
    // One very long path must not push every origin off the screen.
    width = std::max(width, std::min<std::size_t>(lines.back().first.size(), 60));
  }
  for (const auto& [line, origin] : lines) {
    std::cout << std::left << std::setw(static_cast<int>(width)) << line << "  # " << origin
              << "\n";
  }
}

// What is not wrong in the recipe and still stops a run on this machine, today.
void print_missing_files(rl::LoadedConfig& loaded) {
  for (const rl::Field& field : rl::fields_of(loaded.config)) {
    const auto* slot = std::get_if<rl::PathSlot>(&field.slot);
    if (slot == nullptr || slot->value->empty() || std::filesystem::exists(*slot->value)) continue;
    std::cerr << "note: " << loaded.origins.at(field.key) << ": " << field.key << " names "
              << *slot->value << ", which does not exist\n";
  }
}

int check(const CheckOptions& options) {
  if (options.defaults) {
    std::cout << rl::defaults_yaml();
    return kExitOk;
  }
  auto loaded = load_or_print_errors(split_inputs(options.words));
  if (!loaded) return kExitUsage;
  print_configuration(*loaded);
  std::cout << "\n";
  for (const std::string& line : rl::describe_batch(loaded->config)) std::cout << line << "\n";
  if (std::filesystem::exists(std::filesystem::path(loaded->config.model.path) / "config.json")) {
    for (const std::string& line : rl::describe_sequence_parallel(loaded->config)) std::cout << line << "\n";
  }
  print_missing_files(*loaded);
  return kExitOk;
}

}  // namespace

void add_check_command(CommandContext& context) {
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* command = context.app.add_subcommand(
      "check", "Print the resolved configuration and the batch arithmetic; start nothing");
  command->add_option("inputs", options->words, "recipes (YAML), and key.sub=value overrides");
  command->add_flag("--defaults", options->defaults,
                    "print every key with its default and meaning, as YAML");
  command->callback([options, &context] { context.exit_code = check(*options); });
}

}  // namespace ringside::tools
