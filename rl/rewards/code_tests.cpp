#include "rl/rewards/code_tests.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>

#include "rl/rewards/answer_text.h"
#include "rl/rewards/sandbox.h"

namespace ringside::rl {
namespace {

// Longer programs are wrong.
constexpr std::size_t kLongestProgram = 1 << 20;
constexpr const char* kProgramName = "program";

struct Case {
  std::string input;
  std::string output;
};

struct Runner {
  std::vector<std::string> command;
  SandboxLimits limits;
  bool python = false;

  SandboxResult run(std::string_view program, std::string_view input) const {
    try {
      const SandboxDirectory directory(kProgramName, program);
      std::vector<std::string> argv = command;
      argv.emplace_back(kProgramName);
      return run_sandboxed(argv, directory, input, limits);
    } catch (const std::runtime_error& error) {
      throw RewardUnavailable(error.what());
    }
  }
};

bool passed(const SandboxResult& result) {
  return result.end == SandboxResult::End::kExited && result.code == 0;
}

// The cases of an answer that holds them; nothing for test code.
std::optional<std::vector<Case>> parse_cases(std::string_view answer) {
  if (!strip(answer).starts_with('[')) {
    return std::nullopt;
  }
  const auto parsed = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_array() || parsed.empty()) {
    return std::nullopt;
  }
  std::vector<Case> cases;
  for (const auto& item : parsed) {
    if (!item.is_object() || !item.contains("input") || !item.contains("output") || !item["input"].is_string() ||
        !item["output"].is_string()) {
      return std::nullopt;
    }
    cases.push_back({item["input"].get<std::string>(), item["output"].get<std::string>()});
  }
  return cases;
}

std::string without_trailing_space(std::string_view text) {
  std::string result;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    result.append(line.substr(0, line.find_last_not_of(" \t\r") + 1)).push_back('\n');
    begin = end + 1;
  }
  return result.substr(0, result.find_last_not_of('\n') + 1);
}

double share_of_cases(const Runner& runner, std::string_view program, const std::vector<Case>& cases) {
  std::size_t right = 0;
  for (const Case& test : cases) {
    const SandboxResult result = runner.run(program, test.input);
    if (result.end == SandboxResult::End::kTimedOut) {
      break;
    }
    right += passed(result) && !result.output_cut &&
             without_trailing_space(result.output) == without_trailing_space(test.output);
  }
  return static_cast<double>(right) / static_cast<double>(cases.size());
}

// A word that a program cannot know when it is written.
std::string fresh_word() {
  std::random_device random;
  std::ostringstream word;
  word << "end-of-tests-" << std::hex << random() << random() << random() << random();
  return word.str();
}

double run_with_tests(const Runner& runner, std::string_view program, std::string_view tests) {
  std::string text(program);
  text.append("\n\n").append(tests).append("\n");
  if (!runner.python) {
    return passed(runner.run(text, "")) ? 1.0 : 0.0;
  }
  const std::string word = fresh_word();
  text.append("\nimport sys as _sys, os as _os\n_sys.stdout.flush()\n_os.write(1, b'").append(word).append("')\n");
  const SandboxResult result = runner.run(text, "");
  return passed(result) && result.output_end.find(word) != std::string::npos ? 1.0 : 0.0;
}

Runner make_runner(const RewardOptions& options) {
  if (!(options.code_timeout_s > 0) || !(options.code_timeout_s < 1e6) || options.code_memory_mb < 1 ||
      options.code_memory_mb > (int64_t{1} << 40)) {
    throw std::invalid_argument("code_tests: code_timeout_s " + std::to_string(options.code_timeout_s) +
                                ", code_memory_mb " + std::to_string(options.code_memory_mb) +
                                "; expected more than 0 and less than 1e6 s, 1 to 2^40 MiB");
  }
  Runner runner;
  std::istringstream words(options.code_command);
  for (std::string word; words >> word;) {
    runner.command.push_back(word);
  }
  const std::string name = runner.command.empty() ? "" : runner.command.front();
  runner.python = std::filesystem::path(name).filename().string().starts_with("python");
  runner.limits.seconds = options.code_timeout_s;
  runner.limits.memory_bytes = options.code_memory_mb << 20;
  // The first on PATH that runs an empty program: an interpreter in root's home is out of the programs' reach.
  const auto candidates = find_executables(name);
  bool usable = false;
  try {
    usable = std::any_of(candidates.begin(), candidates.end(), [&](const std::string& path) {
      runner.command.front() = path;
      return runner.run("", "").code != kSandboxCannotStart;
    });
  } catch (const RewardUnavailable& error) {
    throw std::invalid_argument(std::string("code_tests cannot be used here: ") + error.what());
  }
  if (!usable) {
    throw std::invalid_argument("code_tests: rollout.reward_options.code_command '" + options.code_command + "' is " +
                                (candidates.empty() ? "not found; expected an interpreter on PATH or its path"
                                                    : "out of reach of the user that programs run as: " + candidates.front()));
  }
  return runner;
}

}  // namespace

Reward code_tests_reward(const RewardOptions& options) {
  return [runner = make_runner(options), stop = options.stop](const RewardInput& input) {
    const std::string_view text = without_stop(input.completion, stop);
    const std::string_view program = last_block(text, "python|py|python3|Python|").value_or(text);
    if (strip(program).empty() || strip(input.answer).empty() || program.size() > kLongestProgram) {
      return 0.0;
    }
    const auto cases = parse_cases(input.answer);
    return cases ? share_of_cases(runner, program, *cases) : run_with_tests(runner, program, input.answer);
  };
}

}  // namespace ringside::rl
