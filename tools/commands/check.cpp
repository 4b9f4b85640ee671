// Command `ringside check [RECIPE...] [key=value ...]`: prints what a recipe changes, with the
// origin of each value, the batch arithmetic that follows, and the mesh. Opens everything that
// `run` would open (rl/preflight). Starts nothing. Prints all mistakes; the exit code is 2 if there
// are any.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>

#include "rl/config/batch_arithmetic.h"
#include "rl/config/other_systems.h"
#include "rl/config/presets.h"
#include "rl/config/recipe_schema.h"
#include "rl/config/schema.h"
#include "rl/setup/layout_advice.h"
#include "rl/setup/mesh_table.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/sharding.h"
#include "rl/trainer/checkpoint.h"
#include "rl/trainer/run_directory.h"
#include "tools/commands/commands.h"
#include "tools/commands/run_launch.h"
#include "tools/commands/start_plan.h"

namespace ringside::tools {
namespace {

struct CheckOptions {
  std::vector<std::string> words;
  bool defaults = false;
  bool presets = false;
  bool all = false;
  bool json_schema = false;
  bool names = false;
  bool prime_rl = false;
  std::filesystem::path rollouts;
  std::string memory;
  std::filesystem::path run_dir;
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

// Text is quoted so that "" and blanks are visible.
Line line_of(const rl::Field& field, const std::string& origin) {
  const bool text = std::holds_alternative<rl::TextSlot>(field.slot) ||
                    std::holds_alternative<rl::PathSlot>(field.slot);
  const std::string value = rl::value_text(field.slot);
  return {field.key + ": " + (text ? "\"" + value + "\"" : value), origin};
}

// Prints the values that differ from the defaults, then those that repeat a default, then, if
// `all`, the defaults.
void print_configuration(rl::LoadedConfig& loaded, bool all) {
  rl::Config defaults;
  const auto default_fields = rl::fields_of(defaults);
  std::vector<Line> changed, others;
  std::size_t at = 0, keys = 0;
  for (const rl::Field& field : rl::fields_of(loaded.config)) {
    const bool same = rl::value_text(field.slot) == rl::value_text(default_fields[at++].slot);
    const std::string& origin = loaded.origins.at(field.key);
    ++keys;
    if (!same) {
      changed.push_back(line_of(field, origin));
    } else if (all || origin != "default") {
      others.push_back(line_of(field, origin == "default" ? origin : origin + ", as the default"));
    }
  }
  std::cout << "changed from the defaults: " << changed.size() << " of " << keys << " keys"
            << (all ? "" : "; --all prints every key") << "\n";
  print_lines(changed);
  std::cout << (others.empty() ? "" : "\n");
  print_lines(others);
}

void print_names() {
  std::size_t width = 0;
  for (const rl::Translation& name : rl::translations()) {
    width = std::max(width, name.theirs.size());
  }
  for (const rl::Translation& name : rl::translations()) {
    std::cout << std::left << std::setw(static_cast<int>(width)) << name.theirs << "  " << name.ours
              << "\n";
  }
  std::cout << "\n";
  for (const rl::Absent& feature : rl::absent_features()) {
    std::cout << feature.word << ": " << feature.sentence << "\n";
  }
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

// Prints what an option asks for that needs no recipe. Returns false if none is given.
bool print_reference(const CheckOptions& options) {
  if (options.defaults) {
    std::cout << rl::defaults_yaml();
  } else if (options.presets) {
    print_presets();
  } else if (options.json_schema) {
    std::cout << rl::recipe_schema();
  } else if (options.names) {
    print_names();
  } else {
    return false;
  }
  return true;
}

void print_all(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    std::cout << line << "\n";
  }
}

// The mesh after context_parallel_size is factored, which needs the model's heads.
void print_mesh(rl::Config config) {
  rl::factor_context_parallel(config);
  rl::fix_replicas(config.parallel, /*world=*/0);
  print_all(rl::mesh_table(rl::mesh_shape(config.parallel)));
}

// The mistakes in files that a configuration with other mistakes names. Those of keys that no
// recipe sets are left out: such a key may be what a misspelt one was meant for.
std::vector<std::string> file_mistakes(const rl::LoadedConfig& loaded,
                                       const rl::PreflightScope& scope) {
  std::vector<std::string> sentences;
  try {
    for (const rl::Mistake& mistake : rl::preflight(loaded.config, scope).mistakes) {
      const auto origin = loaded.origins.find(mistake.key);
      if (origin != loaded.origins.end() && origin->second != "default") {
        sentences.push_back(origin->second + ": " + mistake.key + ": " + mistake.text);
      }
    }
  } catch (const std::exception&) {
    // A value that the preflight does not expect is among the mistakes that are known already.
  }
  return sentences;
}

// Prints what a start in the run directory would do. Returns the exit code.
int check_run_directory(const CheckOptions& options, const rl::Config& config) {
  if (const std::string problem = run_directory_problem(options.run_dir); !problem.empty()) {
    throw UsageError(problem);
  }
  if (rl::trainer_at_work(options.run_dir)) {
    throw UsageError("--run-dir " + options.run_dir.string() + ": a trainer is at work in it");
  }
  const auto plan = rl::plan_start(options.run_dir, config, config.train.steps,
                                   /*accept_changes=*/false, rl::source_fingerprints(config));
  if (const auto code = exit_code_of(plan)) {
    return *code;
  }
  const auto newest = rl::latest_checkpoint(options.run_dir);
  std::cout << "run directory " << options.run_dir.string() << ": "
            << (newest ? "would resume from " + newest->string() : "would start from step 1")
            << "\n";
  print_all(plan.lines);
  return kExitOk;
}

int check(const CheckOptions& options) {
  if (print_reference(options)) {
    return kExitOk;
  }
  int64_t memory = 0;
  if (!options.memory.empty()) {
    if (options.memory.find_first_not_of("0123456789") == std::string::npos) {
      std::cerr << "--memory " << options.memory << ": has no unit; expected a size such as "
                << options.memory << "GiB\n";
      return kExitUsage;
    }
    try {
      memory = rl::bytes_of_text(options.memory);
    } catch (const std::invalid_argument& error) {
      std::cerr << "--memory: " << error.what() << "\n";
      return kExitUsage;
    }
  }
  const bool brought = !options.rollouts.empty() || options.prime_rl;
  rl::LoadedConfig loaded = load(split_inputs(options.words));
  const bool own_workers = rl::uses_own_workers(loaded.config);
  const rl::PreflightScope scope{.workers_here = !brought && !own_workers,
                                 .brings_rollouts = brought,
                                 .rollouts = options.rollouts,
                                 .elsewhere = memory > 0};
  if (!loaded.ok()) {
    for (std::string& mistake : file_mistakes(loaded, scope)) {
      loaded.errors.push_back(std::move(mistake));
    }
    print_errors(loaded);
    return kExitUsage;
  }
  print_configuration(loaded, options.all);
  std::cout << "\n";
  print_all(rl::describe_batch(loaded.config));
  std::cout << std::flush;
  std::vector<std::string> notes;
  if (!pass_preflight(loaded, scope, notes)) {
    return kExitUsage;
  }
  print_mesh(loaded.config);
  print_all(rl::describe_sequence_parallel(loaded.config));
  print_all(notes);
  if (!options.run_dir.empty()) {
    if (const int code = check_run_directory(options, loaded.config); code != kExitOk) {
      return code;
    }
  }
  if (memory > 0) {
    print_all(rl::advise_layout(loaded.config, memory));
  }
  std::cout << "no mistakes found\n";
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
  command->add_flag("--json-schema", options->json_schema,
                    "print a JSON Schema of recipes, for editors");
  command->add_flag("--names", options->names,
                    "print names of TRL, verl, axolotl and others, and what they are here");
  command->add_flag("--all", options->all,
                    "print every key, not only what differs from the defaults");
  command->add_option("--rollouts", options->rollouts,
                      "check for `train --rollouts FILE` in place of `run`");
  command->add_option("--memory", options->memory,
                      "plan for another machine: memory of a rank's device there, such as 80GiB; "
                      "list layouts of the same ranks that fit, and recommend one");
  command->add_option("--run-dir", options->run_dir,
                      "also check that this directory can be written to, that nobody trains in it, "
                      "and that the recipe may go on with what it holds");
  command->add_flag("--prime-rl", options->prime_rl,
                    "check for `train --prime-rl` in place of `run`");
  command->callback([options, &context] { context.exit_code = check(*options); });
}

}  // namespace ringside::tools
