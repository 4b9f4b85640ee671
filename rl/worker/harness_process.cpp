#include "rl/worker/harness_process.h"

#include <stdexcept>

#include "rl/config/harness_function.h"
#include "rl/python/scripts.h"

namespace ringside::rl {
namespace {

PythonProgram program_of(const RolloutConfig& config, const std::string& url, int64_t threads) {
  const HarnessConfig& options = config.harness_options;
  const HarnessFunction harness = parse_harness(config.harness);
  PythonProgram program;
  program.command = options.python_command;
  program.script = harness_script();
  program.setup = {
      {"file", harness.file}, {"function", harness.function}, {"url", url}, {"threads", threads}};
  return program;
}

}  // namespace

HarnessProcess::HarnessProcess(const RolloutConfig& config, const std::string& url)
    : process_(program_of(config, url, config.harness_options.concurrency)) {
  try {
    process_.start();
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("rollout.harness: " + std::string(error.what()));
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

void HarnessProcess::check() {
  if (process_.id() < 0) {
    throw std::runtime_error("the harness has ended");
  }
  try {
    process_.ask(nullptr);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("the harness (rollout.harness): " + std::string(error.what()));
  }
}

}  // namespace ringside::rl
