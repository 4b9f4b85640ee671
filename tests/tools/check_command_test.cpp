// Guards what a shell sees of `ringside check`: exit codes scripts rely on, all mistakes on
// standard error, values with their origin on standard output.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace ringside::tools {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

struct Ran {
  int status = -1;
  std::string output;  // both streams
};

Ran run(const std::string& arguments) {
  const std::string line = std::string(RINGSIDE_EXECUTABLE) + " " + arguments + " 2>&1";
  std::FILE* pipe = popen(line.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Ran ran;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    ran.output += static_cast<char>(c);
  }
  const int status = pclose(pipe);
  ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

TEST_CASE("rollout without a run directory or an address is a usage error at once") {
  const Ran ran =
      run("rollout " + (fs::path(RINGSIDE_SOURCE_DIR) / "recipes/quickstart/grpo.yaml").string());
  CHECK(ran.status == 2);
  CHECK_THAT(ran.output, Contains("--run-dir") && Contains("bridge.rollout_address"));
}

TEST_CASE("check prints values with their origins and the batch arithmetic") {
  const fs::path recipe =
      fs::temp_directory_path() / ("check_" + std::to_string(getpid()) + ".yaml");
  std::ofstream(recipe) << "algorithm:\n  preset: grpo\nrollout:\n  group_size: 4\n";
  const Ran ran = run("check --all " + recipe.string() + " seed=7");
  fs::remove(recipe);
  CHECK(ran.status == 2);  // there is no model and no data; tests/tools/preflight_test.py has runs
                           // that are complete
  CHECK_THAT(ran.output, Contains("model.path is not set") && Contains("data.train is not set") &&
                             Contains("2 mistakes"));
  const auto line_of = [&](const std::string& key) {
    const auto at = ran.output.find("\n" + key + ":");
    return at == std::string::npos
               ? ""
               : ran.output.substr(at + 1, ran.output.find('\n', at + 1) - at - 1);
  };
  CHECK_THAT(ran.output, Catch::StartsWith("changed from the defaults: ") &&
                             Contains("\nseed: 7 ") && Contains("# command line"));
  CHECK(ran.output.find("rollout.group_size: 4") <
        ran.output.find("model.dtype"));  // what was set comes first
  CHECK_THAT(line_of("rollout.group_size"),
             Contains(": 4 ") && Catch::EndsWith(recipe.string() + ":4"));
  CHECK_THAT(line_of("algorithm.kl_coef"), Contains(": 0.04 ") && Catch::EndsWith("# preset grpo"));
  CHECK_THAT(line_of("train.steps"), Catch::EndsWith("# default"));
  CHECK_THAT(ran.output, Contains("8 prompts x 4 completions = 32 rollouts"));
}

TEST_CASE("check prints only what differs from the defaults, and what repeats one") {
  const Ran ran = run("check rollout.group_size=4 train.steps=100");
  CHECK_THAT(ran.output, Catch::StartsWith("changed from the defaults: 1 of "));
  CHECK_THAT(ran.output, Contains("rollout.group_size: 4  # command line\n"));
  CHECK_THAT(ran.output, Contains("train.steps: 100  # command line, as the default\n"));
  CHECK_THAT(ran.output, !Contains("model.dtype"));
}

TEST_CASE("mistakes in keys and in the files that other keys name are printed together") {
  const Ran ran = run("check rollout.grup_size=4 rollout.reward=exct data.train=/nowhere/x.jsonl");
  CHECK(ran.status == 2);
  CHECK_THAT(ran.output,
             Contains("did you mean rollout.group_size?") && Contains("reward 'exct' is unknown") &&
                 Contains("command line: data.train: /nowhere/x.jsonl") && Contains("3 mistakes"));
  // Nobody set it: it may be what the misspelt key was meant for.
  CHECK_THAT(ran.output, !Contains("model.path"));
}

TEST_CASE("names of other systems are listed with ours") {
  const Ran ran = run("check --names");
  CHECK(ran.status == 0);
  CHECK_THAT(ran.output, Contains("num_generations ") && Contains("  rollout.group_size\n") &&
                             Contains("tensor_model_parallel_size ") &&
                             Contains("  parallel.tensor_parallel_size\n"));
}

TEST_CASE("mistakes end in exit code 2, all of them printed") {
  const Ran ran = run("check sed=1 rollout.group_size=0");
  CHECK(ran.status == 2);
  CHECK_THAT(ran.output, Contains("sed: unknown key; did you mean seed?") &&
                             Contains("rollout.group_size: is \"0\"") && Contains("2 mistakes"));
  CHECK(run("check absent.yaml").status == 2);
  CHECK(run("").status == 2);
  CHECK(run("chekc").status == 2);
}

TEST_CASE("a memory that is no size is a usage error before anything is read") {
  const Ran ran = run("check --memory 80parsecs");
  CHECK(ran.status == 2);
  CHECK_THAT(ran.output, Contains("--memory: is \"80parsecs\"; expected a memory size"));
}

TEST_CASE("help, version and the annotated defaults succeed, and the defaults check out") {
  CHECK(run("--help").status == 0);
  CHECK(run("--version").status == 0);
  const Ran defaults = run("check --defaults");
  CHECK(defaults.status == 0);
  CHECK_THAT(defaults.output, Contains("group_size: 8 "));
  CHECK_THAT(run("check " RINGSIDE_SOURCE_DIR "/configs/defaults.yaml").output,
             Contains("2 mistakes") && Contains("model.path is not set") &&
                 Contains("data.train is not set"));
}

}  // namespace
}  // namespace ringside::tools
