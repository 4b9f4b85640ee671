#include "rl/worker/harness_process.h"

#include <stdexcept>

#include "rl/config/environment_choice.h"
#include "rl/config/harness_function.h"
#include "rl/python/scripts.h"

namespace ringside::rl {
namespace {

constexpr double kRecordsSeconds = 24 * 3600.0;  // a package may draw puzzles for hours

nlohmann::ordered_json environment_setup(const RolloutConfig& config) {
  const EnvironmentChoice environment = parse_environment(config.environment);
  const std::string& options = config.environment_options;
  nlohmann::ordered_json setup{
      {"file", environment.file},
      {"argument", environment.argument},
      {"options", nlohmann::ordered_json::parse(options.empty() ? "{}" : options)},
      {"max_turns", config.harness_options.max_turns}};
  if (environment.file.empty()) {
    setup["file"] = environment.connector + ".py";
    setup["connector"] = environment.connector;
    setup["source"] = connector_source(environment.connector);
  }
  return setup;
}

PythonProgram program_of(const RolloutConfig& config, const std::string& url, int64_t threads) {
  const HarnessConfig& options = config.harness_options;
  PythonProgram program;
  program.command = options.python_command;
  program.script = harness_script();
  if (config.environment.empty()) {
    const HarnessFunction harness = parse_harness(config.harness);
    program.setup = {{"file", harness.file}, {"function", harness.function}};
  } else {
    program.setup = environment_setup(config);
  }
  program.setup["url"] = url;
  program.setup["threads"] = threads;
  return program;
}

}  // namespace

HarnessProcess::HarnessProcess(const RolloutConfig& config, const std::string& url)
    : process_(program_of(config, url, config.harness_options.concurrency)) {
  try {
    process_.start();
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(sessions_key(config) + ": " + error.what());
  }
}

std::string harness_problem(const RolloutConfig& config) {
  PythonProcess process(program_of(config, "", 0));
  try {
    process.start();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

nlohmann::json environment_records(const RolloutConfig& config, int64_t count, int64_t seed) {
  PythonProgram program = program_of(config, "", 0);
  program.timeout_s = kRecordsSeconds;
  return PythonProcess(std::move(program)).ask({{"records", count}, {"seed", seed}});
}

void HarnessProcess::check() {
  if (process_.id() < 0) {
    throw std::runtime_error("the harness has ended");
  }
  try {
    process_.ask(nullptr);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("the harness or environment: " + std::string(error.what()));
  }
}

}  // namespace ringside::rl
