#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "rl/rewards/python_reward.h"
#include "rl/rewards/reward_set.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

using Catch::Contains;
using Scores = std::vector<PythonReward::Score>;

// A file rewards.py with one function `score`, and the reward that calls it.
class Function {
 public:
  explicit Function(const std::string& text, double timeout_s = 20.0, int64_t processes = 1)
      : reward_((test::write_file(file(), text), WeightedReward{"score", 1.0, file().string()}),
                options(timeout_s, processes)) {}
  std::filesystem::path file() const { return directory_.path() / "rewards.py"; }
  PythonReward* operator->() { return &reward_; }
  Scores score(const std::vector<std::string>& completions) {
    std::vector<RewardInput> inputs;
    for (const std::string& text : completions) {
      inputs.push_back({.prompt = "p", .completion = text, .answer = "a"});
    }
    return reward_.score(inputs);
  }
  // The failure of a batch of one.
  std::string failure() { return score({"x"}).front().failure; }

 private:
  static RewardOptions options(double timeout_s, int64_t processes) {
    RewardOptions options;
    options.python_timeout_s = timeout_s;
    options.python_processes = processes;
    return options;
  }

  test::TemporaryDirectory directory_;
  PythonReward reward_;
};

TEST_CASE("a Python function scores a batch with the data's fields by name") {
  Function function(
      "def score(completions, answers, level, missing=None, *, truncated):\n"
      "    assert missing == [None, 'm'] and truncated == [False, True]\n"
      "    return [float(c == a) + l for c, a, l in zip(completions, answers, level)]\n");
  const std::vector<RewardInput> inputs{
      {.prompt = "p", .completion = "\xC3\xA9", .answer = "\xC3\xA9", .columns = R"({"level": 2})"},
      {.prompt = "p",
       .completion = "y\n\"",
       .answer = "x",
       .truncated = true,
       .columns = R"({"level": 4.5, "missing": "m"})"}};
  const Scores scores = function->score(inputs);
  REQUIRE(scores.size() == 2);
  INFO(scores[0].failure);
  CHECK(scores[0].value == 3.0);
  CHECK(scores[1].value == 4.5);
  CHECK(function->score({}).empty());
}

TEST_CASE("a function with ** gets every field, and bytes that are no text do not stop it") {
  Function function(
      "def score(prompts, **columns):\n"
      "    assert sorted(columns) == ['answers', 'completion_tokens', 'completions', 'tag', "
      "'truncated'], sorted(columns)\n"
      "    return [len(c) for c in columns['completions']]\n");
  const std::vector<RewardInput> inputs{
      {.prompt = "p", .completion = "a\xFF", .answer = "", .columns = R"({"tag": [1]})"}};
  const auto score = function->score(inputs).front();
  CHECK(score.failure.empty());
  CHECK(score.value == 2.0);
}

TEST_CASE("an exception names the file, the line and the message") {
  Function function(
      "def helper(x):\n"
      "    return 1 / x\n"
      "def score(completions):\n"
      "    return [helper(0)]\n");
  CHECK_THAT(function.failure(), Contains("rewards.py:2: in helper: ZeroDivisionError: division"));
}

TEST_CASE("results that are not one finite number a completion have no score") {
  CHECK_THAT(Function("def score(completions):\n    return [1.0, 2.0]\n").failure(),
             Contains("score returned 2 scores for 1 completions"));
  CHECK_THAT(Function("def score(completions):\n    return 1.0\n").failure(),
             Contains("returned float, expected a list of 1 numbers"));
  Function mixed(
      "def score(completions):\n    return [1, float('nan'), None, 'x', float('inf'), True]\n");
  const Scores scores = mixed.score({"a", "b", "c", "d", "e", "f"});
  REQUIRE(scores.size() == 6);
  CHECK(scores[0].value == 1.0);
  CHECK(scores[5].value == 1.0);
  CHECK(scores[5].failure.empty());
  CHECK_THAT(scores[1].failure, Contains("returned nan for completion 2 of 6"));
  CHECK_THAT(scores[2].failure, Contains("returned None"));
  CHECK_THAT(scores[3].failure, Contains("returned 'x'"));
  CHECK_THAT(scores[4].failure, Contains("returned inf"));
}

TEST_CASE("a completion that makes the function raise costs only itself") {
  Function function(
      "def score(completions):\n"
      "    for c in completions:\n"
      "        if c == 'bad': raise ValueError('this row')\n"
      "    return [float(len(c)) for c in completions]\n");
  const Scores scores = function.score({"a", "bad", "ccc"});
  REQUIRE(scores.size() == 3);
  CHECK(scores[0].failure.empty());
  CHECK(scores[0].value == 1.0);
  CHECK_THAT(scores[1].failure, Contains("rewards.py:3: in score: ValueError: this row"));
  CHECK(scores[2].failure.empty());
  CHECK(scores[2].value == 3.0);
}

TEST_CASE("calls for single completions stop in time to keep the scores that there are") {
  Function function(
      "import time\n"
      "def score(completions):\n"
      "    if len(completions) > 1: raise ValueError('batch')\n"
      "    time.sleep(0.4)\n"
      "    return [1.0]\n",
      2.0);
  const Scores scores = function.score({"a", "b", "c", "d", "e", "f", "g", "h"});
  CHECK(scores.front().failure.empty());
  CHECK_THAT(scores.back().failure, Contains("ValueError: batch"));
}

TEST_CASE("None is no score for its row, and a score beyond the trainer's bound is none") {
  Function function("def score(completions):\n    return [None, 2.0, 1e300]\n");
  const Scores scores = function.score({"a", "b", "c"});
  CHECK_THAT(scores[0].failure, Contains("returned None: no score"));
  CHECK(scores[0].is_declined);
  CHECK(scores[1].value == 2.0);
  CHECK_THAT(scores[2].failure, Contains("returned 1e+300") && Contains("-1e+06 to 1e+06"));
  CHECK_FALSE(scores[2].is_declined);
}

TEST_CASE(
    "a function that hangs is killed with what it started, and its process is started again") {
  Function function(
      "import subprocess, time\n"
      "def score(completions):\n"
      "    if completions[0] == 'hang':\n"
      "        subprocess.Popen(['sleep', '1000'])\n"
      "        time.sleep(1000)\n"
      "    return [1.0] * len(completions)\n",
      1.0);
  CHECK(function.score({"x"}).front().value == 1.0);  // starts it
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THAT(function.score({"hang"}).front().failure, Contains("no answer within 1 s"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  CHECK(function.score({"x"}).front().value == 1.0);
}

TEST_CASE("a function that ends its process, or kills it, has no score once and works again") {
  Function function(
      "import os, signal, sys\n"
      "def score(completions):\n"
      "    if completions[0] == 'exit': os._exit(7)\n"
      "    if completions[0] == 'kill': os.kill(os.getpid(), signal.SIGKILL)\n"
      "    if completions[0] == 'sys': sys.exit(3)\n"
      "    return [2.0]\n");
  CHECK_THAT(function.score({"exit"}).front().failure, Contains("with exit status 7"));
  CHECK(function.score({"x"}).front().value == 2.0);
  CHECK_THAT(function.score({"kill"}).front().failure, Contains("by signal 9"));
  CHECK(function.score({"x"}).front().value == 2.0);
  CHECK_THAT(function.score({"sys"}).front().failure, Contains("SystemExit: 3"));
  CHECK(function.score({"x"}).front().value == 2.0);
}

TEST_CASE("what a function prints is no answer") {
  Function function(
      "import os, sys\n"
      "print('{\"value\": [9.0]}')\n"
      "def score(completions):\n"
      "    print('{\"value\": [9.0]}', flush=True)\n"
      "    os.write(1, b'{\"value\": [9.0]}\\n')\n"
      "    assert sys.stdin.read() == ''\n"
      "    return [0.5]\n");
  const auto score = function.score({"x"}).front();
  CHECK(score.failure.empty());
  CHECK(score.value == 0.5);
}

TEST_CASE("a function that answers in the helper's place has no score and works again") {
  Function function(
      "import os, time\n"
      "def score(completions):\n"
      "    if completions[0] != 'x':\n"
      "        os.write(3, completions[0].encode() + b'\\n')\n"
      "        time.sleep(1)\n"
      "    return [2.0] * len(completions)\n",
      20.0, 2);
  for (const char* line : {R"({"value": [null]})", R"({"value": 1})",
                           R"({"value": [1.0, 2.0, 3.0]})", R"({"value": {"a": 1.0}})"}) {
    INFO(line);
    const Scores scores = function.score({line, line});
    REQUIRE(scores.size() == 2);
    CHECK_THAT(scores[0].failure, Contains("expected a list of 1 numbers"));
    CHECK_THAT(scores[1].failure, Contains("expected a list of 1 numbers"));
    CHECK(function.score({"x", "x"})[1].value == 2.0);  // not the answer to the call before
  }
}

TEST_CASE("files and functions that cannot be used are named before a run starts") {
  const auto problem = [](const std::string& text) {
    Function function(text);
    try {
      function->load();
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(problem("def score(completions): return []\n").empty());
  CHECK_THAT(problem("def other(): pass\n"), Contains("has no function score; it has other"));
  CHECK_THAT(problem("x = 1\nimport nothing_like_it\n"),
             Contains("rewards.py:2:") && Contains("No module named 'nothing_like_it'"));
  CHECK_THAT(problem("def score(:\n"), Contains("rewards.py:1: SyntaxError"));
  PythonReward missing({"score", 1.0, "/nothere/rewards.py"}, {});
  CHECK_THROWS_WITH(missing.load(), Contains("/nothere/rewards.py") && Contains("No such file"));
  RewardOptions options;
  options.python_command = "no-such-python";
  PythonReward interpreter({"score", 1.0, "/nothere/rewards.py"}, options);
  CHECK_THROWS_WITH(interpreter.load(), Contains("cannot start no-such-python"));
  CHECK_THAT(Function("def score(completions, solution): return [1]\n").failure(),
             Contains("score takes solution, and no row has it; there is prompts, "));
}

TEST_CASE("a batch is divided among the processes, which work at the same time") {
  Function function(
      "import os, time\n"
      "def score(completions):\n"
      "    time.sleep(1.0)\n"
      "    return [os.getpid()] * len(completions)\n",
      20.0, 3);
  function.score({"a", "b", "c"});  // starts them
  const auto begin = std::chrono::steady_clock::now();
  const Scores scores = function.score({"a", "b", "c", "d", "e", "f", "g"});
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(2900));
  REQUIRE(scores.size() == 7);
  CHECK(scores[0].value == scores[1].value);
  CHECK(scores[1].value != scores[2].value);
  CHECK(scores[3].value != scores[4].value);
  CHECK(scores[4].value == scores[6].value);
}

TEST_CASE("several threads share the processes of a function") {
  Function function("def score(completions): return [len(c) for c in completions]\n", 20.0, 2);
  std::vector<double> values(8);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < values.size(); ++i) {
      threads.emplace_back([&, i] { values[i] = function.score({std::string(i, 'x')})[0].value; });
    }
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK(values[i] == static_cast<double>(i));
  }
}

TEST_CASE("a Python function stands beside other rewards, with a weight and under its own name") {
  const test::TemporaryDirectory directory;
  test::write_file(directory.path() / "my, rewards.py",
                   "def brevity(completions):\n    return [-len(c) if c else None for c in "
                   "completions]\n");
  const auto in_directory = [&](const std::string& file) {
    return std::filesystem::path(directory.path() / file).string();
  };
  const std::string text =
      with_reward_files("exact_match, python(my, rewards.py:brevity) * 0.5", in_directory);
  CHECK(text == "exact_match, python(" + (directory.path() / "my, rewards.py:brevity").string() +
                    ") * 0.5");
  CHECK(with_reward_files(text, in_directory) == text);  // an absolute path stays
  CHECK(with_reward_files("regex*2,length", in_directory) == "regex*2,length");
  CHECK(reads_columns(text));
  CHECK_FALSE(reads_columns("exact_match, length"));
  const RewardSet set(text, {});
  REQUIRE(set.recipe().size() == 2);
  CHECK(set.recipe()[1].name == "brevity");
  const std::vector<RewardInput> inputs{{.prompt = "p", .completion = "ab", .answer = "ab"},
                                        {.prompt = "p", .completion = "", .answer = "b"}};
  const auto scores = set.score_all(inputs, 4);
  CHECK(scores[0].total == 0.0);
  CHECK(scores[0].raw == NamedRewards{{"exact_match", 1.0}, {"brevity", -2.0}});
  CHECK_THAT(scores[1].failure, Contains("returned None"));
  CHECK(scores[1].raw.empty());
}

TEST_CASE("a Python reward that is not written as one is an error that shows its form") {
  for (const char* wrong : {"python()", "python(a.py)", "python(a.py:)", "python(:f)",
                            "python(a.py:f) 2", "python(a.py:f-g)", "python(a.py:f"}) {
    INFO(wrong);
    CHECK_THROWS_WITH(parse_rewards(wrong), Contains("python(FILE.py:FUNCTION)"));
  }
  CHECK_THROWS_WITH(parse_rewards("python"), Contains("python(FILE.py:FUNCTION)"));
  CHECK_THROWS_WITH(parse_rewards("regex, python(a.py:regex)"), Contains("named twice"));
}

}  // namespace
}  // namespace ringside::rl
