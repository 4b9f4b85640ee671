// Guards the launching parent: that a dead rank is named, that nothing survives an error, Ctrl-C or
// the parent's own kill -9, and that a dead worker comes back. What slips here shows up as
// processes holding ports and memory overnight.
#include "tools/launch/launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tools/launch/signal_queue.h"

namespace ringside::tools {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::Matches;
using std::chrono::milliseconds;

// A folder for one test: children leave their pids in files, the parent its result and reports.
class Stage {
 public:
  Stage() {
    std::string name = (fs::temp_directory_path() / "ringside_launch_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("mkdtemp failed");
    }
    dir_ = name;
  }
  ~Stage() {
    if (parent_ > 0) {
      kill(parent_, SIGKILL);
      waitpid(parent_, nullptr, 0);
    }
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
  }

  // Runs launch() in a forked process, whose stages are then watched from here.
  // reader_leaves: its standard error is a pipe that nobody reads from.
  void launch_in_parent(LaunchOptions options, bool reader_leaves = false) {
    options.executable = "/bin/sh";
    options.report = [this](const std::string& line) { append("reports", line); };
    parent_ = fork();
    if (parent_ != 0) {
      return;
    }
    const int log = open((dir_ / "stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(log, STDERR_FILENO);
    if (int ends[2]; reader_leaves && pipe(ends) == 0) {
      close(ends[0]);
      dup2(ends[1], STDERR_FILENO);
    }
    try {
      const LaunchResult result = launch(options);
      if (reader_leaves && write(STDERR_FILENO, "end\n", 4) == 4) {
        append("error", "somebody reads");
      }
      append("error", result.error);
      _exit(result.exit_code);
    } catch (const std::exception& e) {
      append("error", e.what());
      _exit(99);
    }
  }

  // The exit status of the parent; -1 when it does not end within 30 s.
  int wait_parent() {
    int status = 0;
    if (!eventually([&] { return waitpid(parent_, &status, WNOHANG) == parent_; })) {
      return -1;
    }
    parent_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
  }

  // The words of a file that children append to, once there are at least `count`.
  std::vector<std::string> words(const std::string& name, std::size_t count) const {
    std::vector<std::string> found;
    eventually([&] {
      std::ifstream in(dir_ / name);
      found.clear();
      for (std::string word; in >> word;) {
        found.push_back(word);
      }
      return found.size() >= count;
    });
    return found;
  }
  // Fails the test when fewer come.
  std::vector<pid_t> pids(std::size_t count) const {
    std::vector<pid_t> found;
    for (const auto& word : words("pids", count)) {
      found.push_back(std::stoi(word));
    }
    CHECK(found.size() >= count);
    return found;
  }
  std::string text(const std::string& name) const {
    std::ostringstream out;
    out << std::ifstream(dir_ / name).rdbuf();
    return out.str();
  }

  // A shell script run in the stage's folder that first leaves its pid.
  std::vector<std::string> script(const std::string& body) const {
    return {"-c", "cd " + dir_.string() + " && echo $$ >> pids; " + body};
  }
  pid_t parent() const { return parent_; }

  static bool eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 3000; ++i) {
      if (condition()) {
        return true;
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }

  // Whether the process is gone; a zombie whose parent has not looked yet counts as gone.
  static bool gone(pid_t pid) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
    std::string stat;
    if (!std::getline(in, stat)) {
      return true;
    }
    const auto after_name = stat.rfind(')');
    return stat.compare(after_name, 3, ") Z") == 0;
  }

 private:
  void append(const std::string& name, const std::string& line) const {
    std::ofstream(dir_ / name, std::ios::app) << line << "\n";
  }

  fs::path dir_;
  pid_t parent_ = 0;
};

constexpr char kForever[] = "exec sleep 1000";
// A shell that ignores SIGTERM, with a child of its own.
constexpr char kStubborn[] =
    "trap '' TERM INT; sleep 1000 & echo $! >> pids; while :; do sleep 1; done";

void check_all_gone(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    INFO("pid " << pid);
    const bool gone = Stage::eventually([&] { return Stage::gone(pid); });
    CHECK(gone);
    if (!gone) {
      kill(pid, SIGKILL);  // a failing test leaves nothing behind either
    }
  }
}

TEST_CASE("trainers get the rendezvous environment, all exit 0, and the result is success") {
  Stage stage;
  LaunchOptions options;
  options.num_trainers = 3;
  options.trainer_args =
      stage.script("echo $RANK,$WORLD_SIZE,$LOCAL_RANK,$MASTER_ADDR,$MASTER_PORT >> env");
  stage.launch_in_parent(options);
  REQUIRE(stage.wait_parent() == 0);
  auto lines = stage.words("env", 3);
  std::sort(lines.begin(), lines.end());
  REQUIRE(lines.size() == 3);
  const std::string port = lines[0].substr(lines[0].rfind(',') + 1);
  CHECK(std::stoi(port) > 0);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string r = std::to_string(rank);
    CHECK(lines[rank] == r + ",3," + r + ",127.0.0.1," + port);
  }
  CHECK(stage.text("error") == "\n");
}

TEST_CASE("a rank killed by a signal is named, and the others are stopped") {
  Stage stage;
  LaunchOptions options;
  options.num_trainers = 3;
  options.advice = [](int signal) {
    return "; after signal " + std::to_string(signal) + ": resume";
  };
  options.worker_args = {stage.script(kForever)};
  options.trainer_args =
      stage.script("if [ $RANK = 1 ]; then touch ready; kill -9 $$; fi; exec sleep 1000");
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 1);
  CHECK_THAT(stage.text("error"),
             Matches("trainer rank 1 \\(pid [0-9]+\\) was killed by signal 9 \\(SIGKILL\\): out of "
                     "memory\\? \\(`dmesg` tells\\); after signal 9: resume\\n"));
  check_all_gone(stage.pids(1));
}

TEST_CASE("a rank that exits with a status other than 0 is named with it") {
  Stage stage;
  LaunchOptions options;
  options.num_trainers = 2;
  options.trainer_args = stage.script("[ $RANK = 0 ] || exit 3; exec sleep 1000");
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 1);
  CHECK_THAT(stage.text("error"),
             Matches("trainer rank 1 \\(pid [0-9]+\\) exited with status 3\\n"));
}

TEST_CASE("a run that takes longer than it may is stopped and has failed") {
  Stage stage;
  LaunchOptions options;
  options.num_trainers = 2;
  options.longest = milliseconds(300);
  options.trainer_args = stage.script(kForever);
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 1);
  CHECK_THAT(stage.text("error"), Matches("the run has not ended within 0.3 s\\n"));
  check_all_gone(stage.pids(2));
}

TEST_CASE("what ignores SIGTERM is killed after the grace period, its own children too") {
  Stage stage;
  LaunchOptions options;
  options.num_trainers = 2;
  options.grace = milliseconds(300);
  options.trainer_args = stage.script(
      std::string("if [ $RANK = 1 ]; then ") +
      "until [ $(wc -l < pids) -ge 3 ]; do sleep 0.05; done; exit 1; fi; " + kStubborn);
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 1);
  CHECK_THAT(stage.text("reports"), Contains("did not stop; killing it"));
  const auto pids = stage.pids(3);
  CHECK(pids.size() == 3);
  check_all_gone(pids);
}

TEST_CASE("Ctrl-C and SIGTERM stop everything, with the shell's exit code") {
  const int signal = GENERATE(SIGINT, SIGTERM);
  Stage stage;
  LaunchOptions options;
  options.num_trainers = 2;
  options.worker_args = {stage.script(kForever), stage.script(kForever)};
  options.trainer_args = stage.script(kForever);
  stage.launch_in_parent(options);
  const auto pids = stage.pids(4);
  REQUIRE(pids.size() == 4);
  kill(stage.parent(), signal);
  CHECK(stage.wait_parent() == 128 + signal);
  check_all_gone(pids);
}

TEST_CASE("a second Ctrl-C does not wait for the grace period") {
  Stage stage;
  LaunchOptions options;
  options.grace = std::chrono::hours(1);
  options.trainer_args = stage.script(kStubborn);
  stage.launch_in_parent(options);
  const auto pids = stage.pids(2);
  REQUIRE(pids.size() == 2);
  kill(stage.parent(), SIGINT);
  // Two pending signals of one number are one: repeat until the parent has seen a second.
  CHECK(Stage::eventually([&] {
    kill(stage.parent(), SIGINT);
    return Stage::gone(stage.parent());
  }));
  CHECK(stage.wait_parent() == 130);
  check_all_gone(pids);
}

TEST_CASE("a dead worker is reported and restarted while the trainers go on") {
  Stage stage;
  LaunchOptions options;
  options.backoff = milliseconds(10);
  options.max_backoff = milliseconds(40);
  options.trainer_args = stage.script("until [ -e done ]; do sleep 0.02; done");
  options.worker_args = {stage.script(
      "echo x >> lives; if [ $(wc -l < lives) -ge 4 ]; then touch done; exit 0; fi; kill -9 $$")};
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 0);
  CHECK(stage.words("lives", 4).size() == 4);
  const std::string reports = stage.text("reports");
  CHECK_THAT(reports,
             Contains("worker 0 (pid ") &&
                 Contains("was killed by signal 9 (SIGKILL): out of memory? (`dmesg` tells); "
                          "restarting it in 0.0 s") &&
                 Contains("worker 0 is running again"));
}

TEST_CASE(
    "a worker that dies in the same way three times ends the run with the worker's own error") {
  Stage stage;
  LaunchOptions options;
  options.backoff = milliseconds(10);
  options.trainer_args = stage.script(kForever);
  options.worker_args = {
      stage.script("echo x >> lives; echo \"ringside: file $$ holds no example\" >&2; exit 1")};
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 1);
  CHECK(stage.words("lives", 3).size() == 3);
  CHECK_THAT(stage.text("error"), Contains("worker 0 (pid ") && Contains("exited with status 1") &&
                                      Contains("3 times") && Contains("holds no example"));
  // Each death is reported once, with its reason.
  CHECK_THAT(stage.text("reports"), Contains("holds no example; restarting it"));
  CHECK_THAT(stage.text("stderr"), !Contains("holds no example"));
  check_all_gone(stage.pids(4));
}

TEST_CASE("a worker that dies in the same way is restarted as long as the run gets on meanwhile") {
  Stage stage;
  LaunchOptions options;
  options.backoff = milliseconds(10);
  options.progress = [&] { return static_cast<int64_t>(stage.words("lives", 1).size()); };
  options.trainer_args = stage.script("until [ -e done ]; do sleep 0.02; done");
  options.worker_args = {stage.script(
      "echo x >> lives; if [ $(wc -l < lives) -ge 5 ]; then touch done; exit 0; fi; exit 1")};
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 0);
  CHECK(stage.words("lives", 5).size() == 5);
}

TEST_CASE("a worker that a signal kills five times without progress ends the run with advice") {
  Stage stage;
  LaunchOptions options;
  options.backoff = milliseconds(10);
  options.advice = [](int) { return "; use less memory"; };
  options.trainer_args = stage.script("until [ -e done ]; do sleep 0.02; done");
  options.worker_args = {stage.script(
      "echo x >> lives; if [ $(wc -l < lives) -ge 9 ]; then touch done; exit 0; fi; kill -9 $$")};
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 1);
  CHECK(stage.words("lives", 5).size() == 5);
  CHECK_THAT(stage.text("error"), Contains("worker 0 (pid ") && Contains("SIGKILL") &&
                                      Contains("out of memory?") && Contains("5 times") &&
                                      Contains("; use less memory"));
  check_all_gone(stage.pids(6));
}

TEST_CASE("a worker that stays stopped is replaced, one that continues is kept") {
  const bool continues = GENERATE(false, true);
  Stage stage;
  LaunchOptions options;
  options.backoff = milliseconds(10);
  options.stopped_limit = milliseconds(continues ? 30'000 : 200);
  options.trainer_args = stage.script("until [ -e done ]; do sleep 0.02; done");
  options.worker_args = {stage.script(
      "echo x >> lives; if [ $(wc -l < lives) = 1 ]; then kill -STOP $$; fi; touch done; exit 0")};
  stage.launch_in_parent(options);
  if (continues) {
    REQUIRE(stage.eventually(
        [&] { return stage.text("reports").find("is stopped") != std::string::npos; }));
    for (const pid_t pid : stage.pids(2)) {
      kill(pid, SIGCONT);
    }
  }
  CHECK(stage.wait_parent() == 0);
  CHECK(stage.words("lives", 1).size() == (continues ? 1 : 2));
  CHECK_THAT(stage.text("reports"),
             Contains(continues ? "worker 0 (pid " : "is still stopped; killing it"));
  CHECK_THAT(stage.text("reports"), Contains("is stopped (SIGSTOP)"));
}

TEST_CASE("a rank that hangs is named as the cause, before the rank that waited for it") {
  const bool stops = GENERATE(false, true);
  Stage stage;
  LaunchOptions options;
  options.num_trainers = 2;
  options.grace = milliseconds(200);
  options.trainer_args = stage.script(
      std::string("if [ $RANK = 0 ]; then until [ -e hung ]; do sleep 0.02; done; ") +
      "echo 'ringside: Timed out waiting 15000ms for send operation' >&2; exit 1; fi; " +
      "trap '' TERM; touch hung; " + (stops ? "kill -STOP $$; " : "") + "sleep 1000");
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 1);
  const std::string hung =
      std::string(" hung ") + (stops ? "\\(it was stopped by a signal\\) " : "");
  CHECK_THAT(stage.text("error"),
             Matches("trainer rank 1 \\(pid [0-9]+\\)" + hung +
                     "and was killed; the others waited for it: trainer rank 0 \\(pid [0-9]+\\) "
                     "exited with status 1: Timed out.*\n"));
  check_all_gone(stage.pids(2));
}

TEST_CASE("when the reader of the output is gone, the trainers save and everything stops") {
  Stage stage;
  LaunchOptions options;
  // The first line stops everything: only when both have left their pids.
  const std::string both = "until [ $(wc -l < pids) -ge 2 ]; do sleep 0.02; done; ";
  const std::string lines = "while :; do echo a line >&2; sleep 0.05; done";
  options.trainer_args =
      stage.script("trap 'sleep 1; echo saved > saved; exit 143' TERM; " + both + lines);
  options.worker_args = {stage.script(both + lines)};
  stage.launch_in_parent(options, /*reader_leaves=*/true);
  CHECK(stage.wait_parent() == 128 + SIGPIPE);
  CHECK(stage.text("saved") == "saved\n");
  check_all_gone(stage.pids(2));
}

TEST_CASE("lines of the children are copied") {
  Stage stage;
  LaunchOptions options;
  options.copy_line = [](const std::string& line) {
    std::ofstream("/proc/self/fd/2", std::ios::app) << "copy of " << line << "\n";
  };
  options.trainer_args = stage.script("echo first >&2; echo second >&2");
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 0);
  CHECK(stage.text("stderr") == "copy of first\nfirst\ncopy of second\nsecond\n");
}

TEST_CASE("a worker that refuses its command line ends the run at once") {
  Stage stage;
  LaunchOptions options;
  options.trainer_args = stage.script(kForever);
  options.worker_args = {
      stage.script("echo x >> lives; echo 'recipe.yaml:3: unknown key' >&2; exit 2")};
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 1);
  CHECK(stage.words("lives", 1).size() == 1);
  CHECK_THAT(stage.text("error"), Contains("exited with status 2: recipe.yaml:3: unknown key"));
  check_all_gone(stage.pids(2));
}

TEST_CASE("after an interrupt trainers have time to save, workers only their grace period") {
  const int signal = GENERATE(SIGINT, SIGTERM);
  Stage stage;
  LaunchOptions options;
  options.grace = milliseconds(200);
  options.trainer_args = stage.script(
      "trap 'sleep 1; echo saved > saved; exit 130' INT TERM; while :; do sleep 0.1; done");
  options.worker_args = {stage.script(kStubborn)};
  stage.launch_in_parent(options);
  const auto pids = stage.pids(3);
  REQUIRE(pids.size() == 3);
  kill(stage.parent(), signal);
  CHECK(stage.wait_parent() == 128 + signal);
  CHECK(stage.text("saved") == "saved\n");
  CHECK_THAT(stage.text("reports"),
             Contains("worker 0 (pid ") && Contains("did not stop; killing it"));
  check_all_gone(pids);
}

TEST_CASE("a signal that arrives twice at once is one request; a later one stops at once") {
  const bool later = GENERATE(false, true);
  Stage stage;
  LaunchOptions options;
  options.trainer_args = stage.script(
      "trap 'sleep 1; echo saved > saved; exit 130' TERM; while :; do sleep 0.1; done");
  stage.launch_in_parent(options);
  const auto pids = stage.pids(1);
  REQUIRE(pids.size() == 1);
  kill(stage.parent(), SIGTERM);
  REQUIRE_FALSE(stage.words("reports", 1).empty());
  if (later) {
    std::this_thread::sleep_for(kOneRequest);
  }
  kill(stage.parent(), SIGTERM);
  CHECK(stage.wait_parent() == 128 + SIGTERM);
  CHECK(stage.text("saved") == (later ? "" : "saved\n"));
  check_all_gone(pids);
}

TEST_CASE("a rank that knows why the run failed is heard, also when another was the first to go") {
  // What the first one logged before is no reason.
  const std::string before = GENERATE("", "echo 'info: the run begins' >&2; ");
  Stage stage;
  LaunchOptions options;
  options.num_trainers = 2;
  options.trainer_args = stage.script(
      "if [ $RANK = 1 ]; then until [ -e armed ]; do sleep 0.02; done; " + before +
      "exit 1; fi; "
      "trap 'echo \"ringside: no such model\" >&2; exit 1' TERM; touch armed; while :; do sleep "
      "0.05; done");
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 1);
  CHECK_THAT(stage.text("error"), Contains("trainer rank 1 (pid ") &&
                                      Contains("; trainer rank 0 (pid ") &&
                                      Contains("exited with status 1: no such model\n"));
}

TEST_CASE(
    "what workers say arrives line by line, and what they say last after a failure is left out") {
  Stage stage;
  LaunchOptions options;
  options.trainer_args = stage.script("until [ -e said ]; do sleep 0.02; done; exit 4");
  options.worker_args = {stage.script(
      "trap 'echo \"ringside: stopped before it began\" >&2; exit 1' TERM; "
      "printf 'one li' >&2; sleep 0.2; printf 'ne\\nand an' >&2; sleep 0.1; echo other >&2; "
      "touch said; while :; do sleep 0.05; done")};
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 1);
  CHECK_THAT(stage.text("stderr"),
             Catch::StartsWith("one line\nand another\n") && !Contains("stopped before"));
  CHECK_THAT(stage.text("error"),
             Matches("trainer rank 0 \\(pid [0-9]+\\) exited with status 4\\n"));
}

TEST_CASE("without restarts a dead worker is only reported") {
  Stage stage;
  LaunchOptions options;
  options.restart_workers = false;
  options.trainer_args = stage.script("until [ -s reports ]; do sleep 0.02; done");
  options.worker_args = {stage.script("exit 5")};
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 0);
  CHECK_THAT(stage.text("reports"), Matches("worker 0 \\(pid [0-9]+\\) exited with status 5\\n"));
  CHECK(stage.pids(2).size() == 2);
}

TEST_CASE(
    "when the trainers are done, workers may leave by themselves and are stopped if they stay") {
  Stage stage;
  LaunchOptions options;
  options.leave = milliseconds(300);
  options.trainer_args = stage.script("until [ $(wc -l < pids) -ge 3 ]; do sleep 0.02; done");
  options.worker_args = {stage.script("trap 'echo term >> late' TERM; sleep 0.1; echo bye > left"),
                         stage.script(kForever)};
  stage.launch_in_parent(options);
  CHECK(stage.wait_parent() == 0);
  CHECK(stage.text("left") == "bye\n");
  CHECK(stage.text("late") == "");
  CHECK_THAT(stage.text("reports"), Contains("workers did not leave within 0.3 s"));
  check_all_gone(stage.pids(3));
}

TEST_CASE("no child survives the parent's kill -9") {
  Stage stage;
  LaunchOptions options;
  options.num_trainers = 2;
  options.trainer_args = stage.script(kForever);
  options.worker_args = {stage.script(kForever)};
  stage.launch_in_parent(options);
  const auto pids = stage.pids(3);
  REQUIRE(pids.size() == 3);
  for (const pid_t pid : pids) {
    CHECK_FALSE(Stage::gone(pid));
  }
  kill(stage.parent(), SIGKILL);
  CHECK(stage.wait_parent() == 256 + SIGKILL);
  check_all_gone(pids);
}

TEST_CASE("a program that cannot be started and bad counts are errors") {
  LaunchOptions options;
  options.executable = "/nonexistent/program";
  CHECK_THROWS_WITH(launch(options), Contains("cannot execute /nonexistent/program"));
  options.num_trainers = 0;
  CHECK_THROWS_WITH(launch(options), Contains("num_trainers is 0"));
}

}  // namespace
}  // namespace ringside::tools
