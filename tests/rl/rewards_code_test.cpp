// Programs that a model wrote are run: a right one must earn its point, and no other may take more
// than its time and memory, leave a process or a file behind, reach the network, or earn a point
// without passing.
#include <grp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "rl/rewards/code_tests.h"
#include "rl/rewards/reward.h"
#include "rl/rewards/sandbox.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;

RewardOptions quick() {
  RewardOptions options;
  options.code_timeout_s = 10.0;  // a loaded machine starts an interpreter slowly
  options.code_memory_mb = 512;
  return options;
}

RewardOptions hasty() {
  RewardOptions options = quick();
  options.code_timeout_s = 1.0;
  return options;
}

double run_tests(std::string_view completion, std::string_view answer,
                 const RewardOptions& options = quick()) {
  return make_reward("code_tests", options)({"", completion, answer});
}

// A directory for temporary files of this test alone: other tests run programs at the same time.
class OwnTemporaryFiles {
 public:
  OwnTemporaryFiles() {
    fs::permissions(own_.path(), fs::perms(0755));  // the programs' users pass through it
    ::setenv("TMPDIR", own_.path().c_str(), 1);
  }
  ~OwnTemporaryFiles() {
    if (before_.empty()) {
      ::unsetenv("TMPDIR");
    } else {
      ::setenv("TMPDIR", before_.c_str(), 1);
    }
  }
  OwnTemporaryFiles(const OwnTemporaryFiles&) = delete;
  OwnTemporaryFiles& operator=(const OwnTemporaryFiles&) = delete;

  std::size_t count() const {
    const fs::directory_iterator entries(own_.path());
    return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
  }

 private:
  std::string before_ = std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "";
  test::TemporaryDirectory own_;
};

// Processes whose command line holds the word.
std::size_t processes_with(const std::string& word) {
  std::size_t n = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string line((std::istreambuf_iterator<char>(file)), {});
    n += line.find(word) != std::string::npos ? 1 : 0;
  }
  return n;
}

TEST_CASE("code_tests runs the answer's tests after the last block") {
  CHECK(run_tests("Try\n```python\nx = 1\n```\nno:\n```python\ndef f(a):\n    return a + 1\n```\n",
                  "assert f(1) == 2") == 1.0);
  CHECK(run_tests("def f(a):\n    return a + 1", "assert f(1) == 2\nassert f(2) == 3") == 1.0);
  CHECK(run_tests("```python\ndef f(a):\n    return a\n```", "assert f(1) == 2") == 0.0);
  CHECK(run_tests("this is no program", "assert True") == 0.0);
  CHECK(run_tests("", "assert True") == 0.0);
  CHECK(run_tests("print('x' * 3000000)", "assert True") == 1.0);
}

TEST_CASE("a program that leaves before its tests earns nothing") {
  CHECK(run_tests("import sys\nsys.exit(0)", "assert False") == 0.0);
  CHECK(run_tests("import os\nos._exit(0)", "assert False") == 0.0);
  CHECK(run_tests("exit()", "assert False") == 0.0);
  CHECK(run_tests("import os\nos.execv('/bin/true', ['true'])", "assert False") == 0.0);
}

TEST_CASE("tests that Python cannot parse are found without a program") {
  const std::vector<std::string_view> answers{
      "assert f(1) == 2", "x = 1\nassert f(1 ==", R"([{"input": "1", "output": "2"}])"};
  const auto problems = code_tests_syntax(answers, quick());
  REQUIRE(problems.size() == 3);
  CHECK(problems[0] == "");
  CHECK_THAT(problems[1], Catch::StartsWith("line 2: "));
  CHECK(problems[2] == "");
  RewardOptions shell = quick();
  shell.code_command = "sh -e";
  CHECK(code_tests_syntax(answers, shell)[1] == "");
}

TEST_CASE("a Python program cannot read its tests, and cannot report their end") {
  const char* tests = "assert solve() == 4711";
  // It looks for the result in all files that it can name and in its arguments.
  CHECK(run_tests("import os, re, sys\n"
                  "found = open('/proc/self/cmdline').read() + str(sys.argv)\n"
                  "for folder, _, files in os.walk(os.environ['HOME'] + '/..'):\n"
                  "    for file in files: found += open(os.path.join(folder, file)).read()\n"
                  "result = re.search(r'solve\\(\\) == (\\d+)', found)\n"
                  "if result:\n"
                  "    def solve(): return int(result.group(1))\n",
                  tests) == 0.0);
  CHECK(run_tests("import os, re\n"
                  "text = open('program').read() + open('/proc/self/cmdline').read()\n"
                  "for word in re.findall(r\"b?'([-\\w]{16,})'\", text):\n"
                  "    os.write(1, word.encode())\n"
                  "os._exit(0)\n",
                  tests) == 0.0);
  // What it sends before its tests are asked for is no report.
  CHECK(run_tests("import os\nos.write(3, b'x')", "assert True") == 0.0);
  CHECK(run_tests("import os\nos.write(3, b'x' * 100000)\nos._exit(0)", "assert True") == 0.0);
}

TEST_CASE("a Python program is the main module, and tests of any size follow it") {
  CHECK(run_tests("import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int = 1\n",
                  "assert P().x == 1") == 1.0);
  CHECK(run_tests("import sys\nran = __name__ == '__main__' and sys.argv == ['program']",
                  "assert ran and sys.modules['__main__'].ran") == 1.0);
  CHECK(run_tests("from __future__ import annotations\ndef f(x: Nothing): return x",
                  "assert f(1) == 1\n#" + std::string(3 << 20, 'x')) == 1.0);
}

TEST_CASE("code_tests compares standard output of cases") {
  const char* cases = R"([{"input": "1 2\n", "output": "3\n"}, {"input": "5 6", "output": "11"},
                          {"input": "1 1", "output": "5"}, {"input": "2 2", "output": "4  \n\n"}])";
  CHECK(run_tests("a, b = map(int, input().split())\nprint(a + b)", cases) == 0.75);
  CHECK(run_tests("print(3)\nraise SystemExit(1)", cases) == 0.0);
  CHECK(run_tests("import sys\nprint(sys.stdin.read().count('1'))",
                  R"([{"input": "111", "output": "3"}])") == 1.0);
  // The first case that does not end ends the row.
  CHECK(
      run_tests(
          "if input() == '1':\n    print(1)\nelse:\n    while True: pass",
          R"([{"input": "1", "output": "1"}, {"input": "2", "output": "1"}, {"input": "1", "output": "1"},
                      {"input": "1", "output": "1"}])",
          hasty()) == 0.25);
}

TEST_CASE(
    "code_tests takes the cases of APPS and TACO, and refuses answers it does not understand") {
  const std::string doubles = "print(2 * int(input()))";
  CHECK(run_tests(doubles, R"({"inputs": ["1", "2\n"], "outputs": ["2", "4\n"]})") == 1.0);
  CHECK(run_tests(doubles, R"({"inputs": ["1", "2"], "outputs": ["2", "5"], "fn_name": null})") ==
        0.5);
  CHECK(run_tests("print(input(), input())", R"({"inputs": [["1", "2"]], "outputs": [["1 2"]]})") ==
        1.0);
  CHECK(run_tests("7", R"({"inputs": ["1"], "outputs": ["1"]})") == 0.0);
  for (const char* answer :
       {"", "7", "null", "\"1\"", "[]", "[1]", R"([{"input": "1"}])",
        R"([{"input": 1, "output": 2}])", "{}", R"({"inputs": ["1"], "outputs": []})",
        R"({"inputs": [1], "outputs": [2]})",
        R"({"fn_name": "f", "inputs": ["1"], "outputs": ["1"]})"}) {
    INFO(answer);
    CHECK(answer_problem("code_tests", answer, {}) != "");
    CHECK_THROWS_AS(run_tests("x = 1", answer), RewardUnavailable);
  }
  for (const char* answer : {"assert f(1) == 2", "[f(x) for x in y]", "{'inputs': 1}"}) {
    CHECK(answer_problem("code_tests", answer, {}) == "");
  }
}

TEST_CASE("code_tests takes another interpreter and refuses one that is not there") {
  RewardOptions options = quick();
  options.code_command = "sh -e";
  CHECK(run_tests("x=3", "test $x = 3", options) == 1.0);
  CHECK(run_tests("x=4", "test $x = 3", options) == 0.0);
  options.code_command = "no-such-interpreter";
  CHECK_THROWS_WITH(run_tests("", "", options),
                    Catch::Contains("'no-such-interpreter' is not found"));
  options = quick();
  options.code_timeout_s = 0;
  CHECK_THROWS_AS(run_tests("", "", options), std::invalid_argument);
}

TEST_CASE("hostile programs end in time and earn nothing") {
  // First that the number of processes is bounded: a fork bomb without it would take the machine
  // along.
  REQUIRE(run_tests("import os, time\nn = 0\nfor i in range(100):\n    try:\n        if os.fork() "
                    "== 0:\n            time.sleep(60)\n"
                    "            os._exit(0)\n        n += 1\n    except OSError:\n        break",
                    "assert n < 40") == 1.0);
  REQUIRE(run_tests("import os", "assert os.getpid() < 10 or os.getuid() != " +
                                     std::to_string(::getuid())) == 1.0);
  const OwnTemporaryFiles files;
  {
    const SandboxDirectory directory("script", "");
    REQUIRE(files.count() == 1);  // programs run there
  }
  const std::vector<std::string> programs{
      "while True: pass",
      "while True: print('x' * 1000)",
      "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
      "import subprocess\nwhile True:\n    try: subprocess.Popen(['sleep', '100'])\n    except "
      "OSError: pass",
      "x = []\nwhile True: x.append(' ' * 10000000)",
      "import signal, time\nfor s in range(1, 64):\n    try: signal.signal(s, signal.SIG_IGN)\n  "
      "  except Exception: pass\ntime.sleep(100)",
      "import os\nos.kill(os.getppid(), 9)\nwhile True: pass",
      "f = open('big', 'w')\nwhile True: f.write('x' * 1000000)",
      "import ctypes\nctypes.string_at(0)",
      "def f(): f()\nimport sys\nsys.setrecursionlimit(10**9)\nf()",
      "import os\nos.close(1)\nos.close(2)\nwhile True: pass",
      "import os\nos.mkdir('d')\nopen('d/f', 'w')\nos.chmod('d', 0)\nwhile True: pass",
      "input()\n"};
  // Each takes its whole second, so a few run at once.
  constexpr std::size_t kAtOnce = 4;
  for (std::size_t first = 0; first < programs.size(); first += kAtOnce) {
    std::vector<std::future<double>> earned;
    const std::size_t end = std::min(first + kAtOnce, programs.size());
    for (std::size_t i = first; i < end; ++i) {
      earned.push_back(std::async(std::launch::async, [&program = programs[i]] {
        return run_tests(program, "assert True", hasty());
      }));
    }
    for (std::size_t i = first; i < end; ++i) {
      INFO(programs[i]);
      CHECK(earned[i - first].get() == 0.0);
    }
  }
  CHECK(files.count() == 0);
}

TEST_CASE("a program cannot signal other processes") {
  // First that it would fail: elsewhere the second line would end the user's session.
  REQUIRE(run_tests("import os", "assert os.getpid() < 10 or os.getuid() != " +
                                     std::to_string(::getuid())) == 1.0);
  CHECK(run_tests("import os\nos.kill(-1, 9)\nwhile True: pass", "assert True", hasty()) == 0.0);
  CHECK(run_tests("import os\ntry:\n    os.kill(" + std::to_string(::getpid()) +
                      ", 9)\nexcept OSError as e:\n    print(e)",
                  "assert True") == 1.0);
}

TEST_CASE("a process left in the background does not outlive its program") {
  const std::string word = "ringside-left-behind-" + std::to_string(::getpid());
  const std::string program =
      "import subprocess, os\n"
      "subprocess.Popen(['sh', '-c', 'sleep 60; echo " +
      word +
      "'], start_new_session=True)\n"
      "if os.fork() == 0:\n    os.setsid()\n    os.execv('/bin/sh', ['sh', '-c', 'sleep 60; echo " +
      word + "'])\n";
  CHECK(run_tests(program, "assert True") == 1.0);
  CHECK(processes_with(word) == 0);
}

TEST_CASE("a program finds no secrets, no network, no descriptors") {
  ::setenv("RINGSIDE_SECRET", "1", 1);
  CHECK(run_tests("import os", "assert 'RINGSIDE_SECRET' not in os.environ") == 1.0);
  ::unsetenv("RINGSIDE_SECRET");
  CHECK(run_tests("import os",
                  "assert os.getcwd() == os.environ['HOME'] and os.access('.', os.W_OK)") == 1.0);
  // 3: the socket that brings the tests; 4: of listdir.
  CHECK(run_tests("import os",
                  "assert set(os.listdir('/proc/self/fd')) <= {'0', '1', '2', '3', '4'}") == 1.0);
  CHECK(run_tests("import sys", "assert sys.stdin.read() == ''") == 1.0);
  CHECK(run_tests("", "pass") == 0.0);
  if (::geteuid() == 0) {
    CHECK(run_tests("import os",
                    "assert os.getuid() != 0 and os.geteuid() != 0 and os.getgid() != 0") == 1.0);
  }
}

TEST_CASE("a program does not reach a server of this machine where namespaces are permitted") {
  const int server = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(server, 4) == 0);
  socklen_t length = sizeof address;
  ::getsockname(server, reinterpret_cast<sockaddr*>(&address), &length);
  const std::string program =
      "import socket, os\ndef reach():\n    try:\n        socket.create_connection(('127.0.0.1', " +
      std::to_string(ntohs(address.sin_port)) +
      "), 2)\n        return True\n    except OSError:\n        return False\n";
  // In a namespace of its own the program's process number is small.
  CHECK(run_tests(program, "assert os.getpid() > 10 or not reach()") == 1.0);
  ::close(server);
}

TEST_CASE("run_sandboxed tells how a program ended and keeps a bounded part of its output") {
  const auto run = [](const std::string& script, const SandboxLimits& limits) {
    const SandboxDirectory directory("script", script);
    return run_sandboxed({find_executables("sh").at(0), "script"}, directory, "in", limits);
  };
  SandboxLimits limits;
  limits.output_bytes = 10;
  auto result = run("cat; echo; echo 1234567890; exit 3", limits);
  CHECK(result.end == SandboxResult::End::kExited);
  CHECK(result.code == 3);
  CHECK(result.output == "in\n1234567");
  CHECK(result.output_cut);
  CHECK(result.output_end == "in\n1234567890\n");
  result = run("kill -11 $$", limits);
  CHECK(result.end == SandboxResult::End::kSignalled);
  CHECK(result.code == SIGSEGV);
  limits.seconds = 0.2;
  CHECK(run("sleep 100", limits).end == SandboxResult::End::kTimedOut);
  CHECK_FALSE(result.output_cut);
}

TEST_CASE("programs run beside one another from many threads") {
  const Reward reward = make_reward("code_tests", quick());
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const std::string program = "x = " + std::to_string(i);
      right += reward({"", program, "assert x % 2 == 0"}) == (i % 2 == 0 ? 1.0 : 0.0) ? 1 : 0;
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(right == 8);
}

// Runs `check` in a process of another user if this one is root. Whether it returned true.
bool true_without_root(const std::function<bool()>& check) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool dropped = ::geteuid() != 0 || (::setgroups(0, nullptr) == 0 &&
                                              ::setgid(65534) == 0 && ::setuid(65534) == 0);
    ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  // as a program that such a user starts is
    try {
      ::_exit(dropped && check() ? 0 : 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(2);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// A folder that everybody may use.
class OpenFolder {
 public:
  OpenFolder() { fs::permissions(own_.path(), fs::perms(0777)); }
  std::string path(const std::string& name) const { return (own_.path() / name).string(); }

 private:
  test::TemporaryDirectory own_;
};

// Whether a program under these limits can do what `script` does.
bool can(const std::string& script, bool private_files) {
  SandboxLimits limits;
  limits.private_files = private_files;
  const SandboxDirectory directory("script", script);
  const SandboxResult result =
      run_sandboxed({find_executables("sh").at(0), "script"}, directory, "", limits);
  return result.files == (private_files ? SandboxFiles::kPrivate : SandboxFiles::kLandlock) &&
         result.end == SandboxResult::End::kExited && result.code == 0;
}

TEST_CASE("a program sees no file of its user, with a root of its own and by Landlock") {
  const OpenFolder folder;
  const std::string key = folder.path("key");
  CHECK(true_without_root([&] {
    std::ofstream(key) << "secret";
    fs::permissions(key, fs::perms(0600));
    for (const bool private_files : {true, false}) {
      if (!can("true", private_files) || can("cat " + key, private_files) ||
          can("echo x >> " + key, private_files) || can("echo x > " + key + "2", private_files)) {
        return false;
      }
    }
    return std::ifstream(key).get() == 's' && fs::file_size(key) == 6;
  }));
}

TEST_CASE("nothing that a program writes outside of its folder stays") {
  const auto leaves_nothing = [] {
    for (const char* folder : {"/tmp", "/var/tmp", "/dev/shm"}) {
      const std::string file = std::string(folder) + "/ringside-left-" + std::to_string(::getpid());
      // Its own folders for temporary files work; those of the machine are out of reach.
      if (!can("echo x > " + file + " && test -s " + file, true) ||
          can("echo x > " + file, false) || fs::exists(file)) {
        return false;
      }
    }
    return can("echo x > here && test -s here", true) && can("echo x > here", false);
  };
  CHECK(leaves_nothing());
  CHECK(true_without_root(leaves_nothing));
}

TEST_CASE("a program of a user without rights earns its point, in a user namespace of its own") {
  CHECK(true_without_root([] {
    return run_tests("def f(a):\n    return a + 1", "assert f(1) == 2") == 1.0 &&
           run_tests("import os, tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x')",
                     "import multiprocessing\nmultiprocessing.Lock()") == 1.0;
  }));
}

TEST_CASE("the space for temporary files of a program is limited") {
  CHECK(can("dd if=/dev/zero of=/tmp/a bs=1M count=8", true));
  CHECK_FALSE(
      can("for i in 1 2 3 4 5 6 7 8 9; do dd if=/dev/zero of=/tmp/$i bs=1M count=8 || exit "
          "1; done",
          true));
}

}  // namespace
}  // namespace ringside::rl
