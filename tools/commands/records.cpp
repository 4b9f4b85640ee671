// Command `ringside records RECIPE... --count N --out FILE [--seed S]`: the records of data.train
// as the recipe's rollout.environment makes them.
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "rl/config/environment_choice.h"
#include "rl/worker/harness_process.h"
#include "tools/commands/commands.h"

namespace ringside::tools {
namespace {

struct RecordsOptions {
  std::filesystem::path out;
  int64_t count = 1000;
  int64_t seed = 1;
  std::vector<std::string> words;
};

int write_records(const RecordsOptions& options) {
  const auto loaded = load_or_print_errors(split_inputs(options.words));
  if (!loaded || !check_writable("--out", options.out)) {
    return kExitUsage;
  }
  const rl::RolloutConfig& rollout = loaded->config.rollout;
  if (rollout.environment.empty()) {
    throw UsageError("records: the recipe has no rollout.environment, which makes the records");
  }
  const nlohmann::json records =
      as_usage([&] { return rl::environment_records(rollout, options.count, options.seed); });
  std::ofstream file(options.out, std::ios::trunc);
  for (const nlohmann::json& record : records) {
    file << record.dump() << "\n";
  }
  if (!file.flush()) {
    throw std::runtime_error("cannot write " + options.out.string());
  }
  std::cout << options.out.string() << ": " << records.size() << " records of "
            << rollout.environment << "\n";
  return kExitOk;
}

}  // namespace

void add_records_command(CommandContext& context) {
  const auto options = std::make_shared<RecordsOptions>();
  CLI::App* command = context.app.add_subcommand(
      "records", "Write the records that a recipe's environment makes, for data.train");
  command->add_option("--out", options->out, "JSONL file to write")->required();
  command->add_option("--count", options->count, "records, at most; an environment may have fewer")
      ->check(at_least_one())
      ->capture_default_str();
  command->add_option("--seed", options->seed, "what the environment draws them with")
      ->capture_default_str();
  command->add_option("inputs", options->words, "recipes and key=value overrides")->required();
  command->callback([options, &context] { context.exit_code = write_records(*options); });
}

}  // namespace ringside::tools
