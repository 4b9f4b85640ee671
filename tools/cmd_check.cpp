#include "tools/cmd_check.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>

#include "rl/config/batch_arithmetic.h"
#include "rl/config/presets.h"
#include "rl/config/schema.h"
#include "rl/setup/layout_advice.h"
#include "rl/setup/sequence_parallel.h"

namespace ringside::tools {
namespace {

struct CheckOptions {
  std::vector<std::string> words;
  bool defaults = false;
  bool presets = false;
  bool prime_rl = false;
  std::filesystem::path rollouts;
  std::string memory;
};

using Line = std::pair<std::string, std::string>;  // "key: value" and the value's origin

void print_lines(const std::vector<Line>& lines) {
  std::size_t width = 0;
  for (const auto& [line, origin] : lines) {
    // A very long path must not push every origin off the screen.
    width = std::max(width, std::min<std::size_t>(line.size(), 60));
  }
  for (const auto& [line, origin] : lines) {
    std::cout << std::left << std::setw(static_cast<int>(width)) << line << "  # " << origin
              << "\n";
  }
}

// Prints the values set by a recipe, a preset or the command line first. Text is quoted so that ""
// and blanks are visible.
void print_configuration(rl::LoadedConfig& loaded) {
  std::vector<Line> written, defaults;
  for (const rl::Field& field : rl::fields_of(loaded.config)) {
    const bool text = std::holds_alternative<rl::TextSlot>(field.slot) ||
                      std::holds_alternative<rl::PathSlot>(field.slot);
    const std::string value = rl::value_text(field.slot);
    const std::string& origin = loaded.origins.at(field.key);
    (origin == "default" ? defaults : written)
        .emplace_back(field.key + ": " + (text ? "\"" + value + "\"" : value), origin);
  }
  print_lines(written);
  std::cout << (written.empty() ? "" : "\n");
  print_lines(defaults);
}

void print_presets() {
  for (const std::string_view name : rl::preset_names()) {
    std::cout << name << "\n";
    // A later entry for a key replaces an earlier one.
    std::map<std::string_view, std::string_view> values;
    for (const rl::PresetValue& value : rl::preset_values(name)) {
      values[value.key] = value.value;
    }
    for (const auto& [key, value] : values) {
      std::cout << "  " << key << ": " << value << "\n";
    }
  }
}

int check(const CheckOptions& options) {
  if (options.defaults) {
    std::cout << rl::defaults_yaml();
    return kExitOk;
  }
  if (options.presets) {
    print_presets();
    return kExitOk;
  }
  int64_t memory = 0;
  if (!options.memory.empty()) {
    try {
      memory = rl::bytes_of_text(options.memory);
    } catch (const std::invalid_argument& error) {
      std::cerr << "--memory: " << error.what() << "\n";
      return kExitUsage;
    }
  }
  auto loaded = load_or_print_errors(split_inputs(options.words));
  if (!loaded) return kExitUsage;
  print_configuration(*loaded);
  std::cout << "\n";
  for (const std::string& line : rl::describe_batch(loaded->config)) std::cout << line << "\n";
  std::cout << std::flush;
  const bool brought = !options.rollouts.empty() || options.prime_rl;
  std::vector<std::string> notes;
  if (!pass_preflight(
          *loaded,
          {.workers_here = !brought, .brings_rollouts = brought, .rollouts = options.rollouts},
          notes)) {
    return kExitUsage;
  }
  for (const std::string& line : rl::describe_sequence_parallel(loaded->config))
    std::cout << line << "\n";
  for (const std::string& note : notes) std::cout << note << "\n";
  if (memory > 0) {
    for (const std::string& line : rl::advise_layout(loaded->config, memory))
      std::cout << line << "\n";
  }
  return kExitOk;
}

}  // namespace

void add_check_command(CommandContext& context) {
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* command =
      context.app.add_subcommand("check",
                                 "Print the resolved configuration and the batch arithmetic, and "
                                 "open everything that `run` would open; start nothing");
  command->add_option("inputs", options->words, "recipes (YAML), and key.sub=value overrides");
  command->add_flag("--defaults", options->defaults,
                    "print every key with its default and meaning, as YAML");
  command->add_flag("--presets", options->presets,
                    "print every preset of algorithm.preset with the keys it sets");
  command->add_option("--rollouts", options->rollouts,
                      "check for `train --rollouts FILE` in place of `run`");
  command->add_option("--memory", options->memory,
                      "memory of a rank's device, such as 80GiB: list layouts of the same ranks "
                      "that fit, and recommend one");
  command->add_flag("--prime-rl", options->prime_rl,
                    "check for `train --prime-rl` in place of `run`");
  command->callback([options, &context] { context.exit_code = check(*options); });
}

}  // namespace ringside::tools
