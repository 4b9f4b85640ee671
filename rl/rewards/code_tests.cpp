#include "rl/rewards/code_tests.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>

#include "rl/rewards/answer_text.h"
#include "rl/rewards/json_schema.h"
#include "rl/rewards/sandbox.h"

namespace ringside::rl {
namespace {

// Longer programs score 0.
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
    return run_with({kProgramName}, program, input, nullptr);
  }

  // The program is in a file of that name; `arguments` are the interpreter's.
  SandboxResult run_with(const std::vector<std::string>& arguments, std::string_view program,
                         std::string_view input, const SandboxExchange* exchange) const {
    try {
      const SandboxDirectory directory(kProgramName, program);
      std::vector<std::string> argv = command;
      argv.insert(argv.end(), arguments.begin(), arguments.end());
      return run_sandboxed(argv, directory, input, limits, exchange);
    } catch (const std::runtime_error& error) {
      throw RewardUnavailable(error.what());
    }
  }
};

// Prints what is wrong with each text of a list.
constexpr const char* kSyntaxCheck = R"(
import json, sys
def problem(text):
    try:
        compile(text, "tests", "exec")
    except (SyntaxError, ValueError) as error:
        return f"line {getattr(error, 'lineno', None) or 1}: {getattr(error, 'msg', error)}"
    return ""
print(json.dumps([problem(text) for text in json.load(sys.stdin)]))
)";

// Runs the program as the main module, then asks for the tests and runs them in the same module. It
// arrives on descriptor 3, and the words that ask and that report the end are its own: neither they
// nor the tests are in a file or an argument that the program could read.
constexpr const char* kHarnessStart = "import os\nexec(os.read(3, 65536))";
constexpr const char* kHarness = R"(
def _run(ask, done):
    import os, sys
    module = type(sys)("__main__")
    module.__dict__.update(__file__="program", __builtins__=__builtins__)
    sys.argv, sys.path[0] = ["program"], os.getcwd()
    sys.modules["__main__"] = module
    with open("program", "rb") as file:
        program = file.read()
    exec(compile(program, "program", "exec"), module.__dict__)
    os.write(3, ask)
    size = int.from_bytes(os.read(3, 8), "little")
    tests = b""
    while len(tests) < size:
        tests += os.read(3, size - len(tests))
    exec(compile(tests, "tests", "exec"), module.__dict__)
    sys.stdout.flush()
    os.write(3, done)

)";

bool passed(const SandboxResult& result) {
  return result.end == SandboxResult::End::kExited && result.code == 0;
}

// A data set's answer: cases, or test code where there are none.
struct Tests {
  std::vector<Case> cases;
  std::string problem;  // why it is neither
};

// An element of APPS and TACO: text, or a list of lines.
std::optional<std::string> text_of(const nlohmann::json& item) {
  if (item.is_string()) {
    return item.get<std::string>();
  }
  if (!item.is_array()) {
    return std::nullopt;
  }
  std::string text;
  for (const auto& line : item) {
    if (!line.is_string()) {
      return std::nullopt;
    }
    text.append(text.empty() ? "" : "\n").append(line.get<std::string>());
  }
  return text;
}

Tests add_case(Tests tests, const nlohmann::json& input, const nlohmann::json& output) {
  const auto in = text_of(input), out = text_of(output);
  if (!in || !out) {
    tests.problem = "holds a case whose input or output is neither text nor a list of lines";
  } else {
    tests.cases.push_back({*in, *out});
  }
  return tests;
}

// [{"input": ..., "output": ...}, ...]
Tests read_case_list(const nlohmann::json& list) {
  Tests tests;
  for (const auto& item : list) {
    if (!item.is_object() || !item.contains("input") || !item.contains("output")) {
      tests.problem = "is a JSON array, but not of objects with \"input\" and \"output\"";
      return tests;
    }
    tests = add_case(std::move(tests), item["input"], item["output"]);
  }
  if (tests.cases.empty() && tests.problem.empty()) {
    tests.problem = "is a JSON array without a case";
  }
  return tests;
}

// {"inputs": [...], "outputs": [...]}
Tests read_case_object(const nlohmann::json& object) {
  Tests tests;
  const auto list = [&](const char* key) {
    return object.contains(key) && object[key].is_array() ? object[key] : nlohmann::json::array();
  };
  const auto inputs = list("inputs"), outputs = list("outputs");
  if (object.contains("fn_name") && !object["fn_name"].is_null()) {
    tests.problem =
        "calls the function \"fn_name\"; expected tests of standard input and output, or test code";
  } else if (inputs.empty() || inputs.size() != outputs.size()) {
    tests.problem =
        "is a JSON object, expected {\"inputs\": [...], \"outputs\": [...]} of equal length, not "
        "empty";
  }
  for (std::size_t i = 0; i < inputs.size() && tests.problem.empty(); ++i) {
    tests = add_case(std::move(tests), inputs[i], outputs[i]);
  }
  return tests;
}

Tests read_tests(std::string_view answer) {
  const std::string_view text = strip(answer);
  Tests tests;
  if (text.empty()) {
    tests.problem = "is missing or blank; there are no tests to run";
    return tests;
  }
  if (json_depth(text) > kMaxJsonDepth) {
    return tests;  // no list of cases has this depth
  }
  const auto parsed = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    return tests;
  }
  if (parsed.is_array()) {
    return read_case_list(parsed);
  }
  if (parsed.is_object()) {
    return read_case_object(parsed);
  }
  tests.problem = std::string("is a JSON ") + parsed.type_name() +
                  ", which tests nothing; expected cases or test code";
  return tests;
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

double share_of_cases(const Runner& runner, std::string_view program,
                      const std::vector<Case>& cases) {
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

// A random word that a program cannot contain.
std::string fresh_word() {
  std::random_device random;
  std::ostringstream word;
  word << std::hex << random() << random() << random() << random();
  return word.str();
}

// The length in 8 bytes, little-endian, and the text.
std::string with_length(std::string_view text) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) {
    bytes.push_back(static_cast<char>((uint64_t{text.size()} >> shift) & 0xFF));
  }
  return bytes.append(text);
}

// Whether a Python program passes all tests. The end of the tests must be reported: a program that
// exits early does not do that.
bool passes_python_tests(const Runner& runner, std::string_view program, std::string_view tests) {
  const std::string ask = fresh_word(), done = fresh_word();
  SandboxExchange exchange;
  exchange.first = std::string(kHarness).append("_run(b'" + ask + "', b'" + done + "')\n");
  exchange.request = ask;
  exchange.reply = with_length(tests);
  const SandboxResult result = runner.run_with({"-c", kHarnessStart}, program, "", &exchange);
  return passed(result) && result.received == ask + done;
}

double run_with_tests(const Runner& runner, std::string_view program, std::string_view tests) {
  if (runner.python) {
    return passes_python_tests(runner, program, tests) ? 1.0 : 0.0;
  }
  std::string text(program);
  text.append("\n\n").append(tests).append("\n");
  return passed(runner.run(text, "")) ? 1.0 : 0.0;
}

Runner make_runner(const RewardOptions& options) {
  if (!(options.code_timeout_s > 0) || !(options.code_timeout_s < 1e6) ||
      options.code_memory_mb < 1 || options.code_memory_mb > (int64_t{1} << 40)) {
    throw std::invalid_argument("code_tests: code_timeout_s " +
                                std::to_string(options.code_timeout_s) + ", code_memory_mb " +
                                std::to_string(options.code_memory_mb) +
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
  // The first on PATH that runs an empty program: programs cannot reach an interpreter in root's
  // home.
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
    throw std::invalid_argument(
        "code_tests: rollout.reward_options.code_command '" + options.code_command + "' is " +
        (candidates.empty()
             ? "not found; expected an interpreter on PATH or its path"
             : "out of reach of the user that programs run as: " + candidates.front()));
  }
  return runner;
}

}  // namespace

std::string code_tests_answer_problem(std::string_view answer, const RewardOptions& /*options*/) {
  return read_tests(answer).problem;
}

std::vector<std::string> code_tests_syntax(std::span<const std::string_view> answers,
                                           const RewardOptions& options) {
  std::vector<std::string> problems(answers.size());
  const Runner runner = make_runner(options);
  auto tests = nlohmann::json::array();
  for (const std::string_view answer : answers) {
    const Tests read = read_tests(answer);
    tests.push_back(read.cases.empty() && read.problem.empty() ? std::string(answer) : "");
  }
  if (!runner.python) {
    return problems;
  }
  const std::string input = tests.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const SandboxResult result = runner.run(kSyntaxCheck, input);
  const auto found = nlohmann::json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  if (passed(result) && found.is_array() && found.size() == problems.size()) {
    problems = found.get<std::vector<std::string>>();
  }
  return problems;
}

Reward code_tests_reward(const RewardOptions& options) {
  return [runner = make_runner(options), stops = options.stops](const RewardInput& input) {
    const std::string_view text = without_stop(input.completion, stops);
    const std::string_view program = last_block(text, "python|py|python3|Python|").value_or(text);
    if (strip(program).empty() || program.size() > kLongestProgram) {
      return 0.0;
    }
    const Tests tests = read_tests(input.answer);
    return tests.cases.empty() ? run_with_tests(runner, program, input.answer)
                               : share_of_cases(runner, program, tests.cases);
  };
}

}  // namespace ringside::rl
