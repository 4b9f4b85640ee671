// Guards the display: no wrapped or torn line on any width, no escape codes where NO_COLOR or a
// pipe forbids them, one plain line a step in a log file. Also that the logging facade takes text
// as it is.
#include "rl/report/progress.h"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rl/report/log.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

using Catch::Matchers::Contains;

const ProgressUpdate kUpdate{
    .step = 40,
    .metrics = {
        {"reward", 0.53219}, {"loss", 0.0125}, {"num_tokens", 18517.5}, {"step_time", 1.5}}};

ProgressUpdate full_update() {
  ProgressUpdate update = kUpdate;
  update.evaluation = 0.6103;
  const Metrics more{{"kl", 0.00131},
                     {"entropy", 0.71},
                     {"grad_norm", 0.52},
                     {"learning_rate", 2e-6},
                     {"completions/mean_length", 7.08},
                     {"completions/max_length", 12},
                     {"completions/clipped_ratio", 0.031},
                     {"time/wait_rollouts", 0.51},
                     {"weight_version", 40},
                     {"staleness/mean", 0.2},
                     {"staleness/max", 1},
                     {"bridge/workers", 2}};
  update.metrics.insert(update.metrics.end(), more.begin(), more.end());
  return update;
}

TEST_CASE("durations") {
  CHECK(format_duration(0) == "0:00");
  CHECK(format_duration(59.4) == "0:59");
  CHECK(format_duration(59.6) == "1:00");
  CHECK(format_duration(3723) == "1:02:03");
  CHECK(format_duration(90000) == "1d 1:00:00");
  CHECK(format_duration(-1) == "?");
  CHECK(format_duration(std::numeric_limits<double>::infinity()) == "?");
  CHECK(format_duration(std::numeric_limits<double>::quiet_NaN()) == "?");
}

TEST_CASE("the screen shows pace, learning and rollouts, and never fills the last column") {
  const TerminalTraits wide{.is_terminal = true, .color = false, .columns = 100};
  CHECK(render_screen(full_update(), 100, 90, wide) ==
        std::vector<std::string>{
            "[#########---------------]  40 %  40/100  eta 1:30  1.50 s/step  12.3k tok/s",
            "reward 0.532  eval 0.610  loss 0.0125  kl 0.0013  entropy 0.710  grad 0.52  lr 2e-06",
            "length 7.1, max 12, cut 3 %  waiting 34 %  weights v40  age 0.2, max 1  workers 2"});
  for (int columns = 0; columns <= 100; ++columns) {
    TerminalTraits narrow = wide;
    narrow.columns = columns;
    INFO(columns);
    const auto lines = render_screen(full_update(), 100, 90, narrow);
    CHECK(lines.size() <= 8);
    for (const std::string& line : lines) {
      CHECK(static_cast<int>(line.size()) <= std::max(columns - 1, 0));
    }
  }
  // Narrow: no bar, and the fields that are left are whole.
  CHECK(render_screen(kUpdate, 100, 90, {.is_terminal = true, .color = false, .columns = 30}) ==
        std::vector<std::string>{" 40 %  40/100  eta 1:30", "1.50 s/step  12.3k tok/s",
                                 "reward 0.532  loss 0.0125"});
  const auto colored =
      render_screen(kUpdate, 100, 90, {.is_terminal = true, .color = true, .columns = 100});
  CHECK_THAT(colored.at(0), Contains("\x1b[32m#########\x1b[0m"));
  // More steps than planned, none planned: still a bar.
  CHECK_THAT(render_screen(kUpdate, 10, 0, wide).at(0), Contains("100 %"));
  CHECK_THAT(render_screen(kUpdate, 0, 0, wide).at(0), Contains("100 %"));
  // Supervised fine-tuning has no reward.
  ProgressUpdate sft = kUpdate;
  sft.metrics.erase(sft.metrics.begin());
  CHECK(render_screen(sft, 100, 0, wide).at(1) == "loss 0.0125");
  ProgressUpdate evaluated = kUpdate;
  evaluated.evaluation = 0.6103;
  CHECK_THAT(render_line(evaluated, 100, 0), Contains("loss 0.0125  eval 0.6103  12345 tok/s"));
}

TEST_CASE(
    "a screen is drawn at the width that the terminal has at each draw, and a plain line is left "
    "at the end") {
  std::vector<std::string> screens;
  std::vector<std::string> lines;
  TerminalTraits terminal{.is_terminal = true, .color = false, .columns = 60};
  Progress progress(100, {.line = [&](const std::string& text) { lines.push_back(text); },
                          .status = [&](const std::string& text) { screens.push_back(text); },
                          .terminal = [&] { return terminal; }});
  progress.finish();
  CHECK(screens.empty());
  CHECK(lines.empty());
  progress.update(kUpdate);
  REQUIRE(screens.size() == 1);
  CHECK_THAT(screens[0], Contains("\nreward 0.532"));
  terminal.columns = 20;
  progress.update(kUpdate);
  CHECK(screens[1] ==
        " 40 %  40/100\neta 1:30\n1.50 s/step\n12.3k tok/s\nreward 0.532\nloss 0.0125");
  progress.finish();
  CHECK(screens.back() == "");
  CHECK(lines == std::vector<std::string>{
                     "step 40/100  reward 0.5322  loss 0.0125  12345 tok/s  1.50 s  eta 1:30"});
}

TEST_CASE("while a step runs the screen is drawn again and says how long it has taken") {
  std::mutex mutex;
  std::string screen;
  Progress progress(100, {.line = [](const std::string&) {},
                          .status =
                              [&](const std::string& text) {
                                const std::lock_guard lock(mutex);
                                screen = text;
                              },
                          .terminal = [] { return TerminalTraits{.columns = 100}; },
                          .redraw_every = std::chrono::milliseconds(20)});
  const auto shown = [&] {
    const std::lock_guard lock(mutex);
    return screen;
  };
  progress.update(kUpdate);
  CHECK_THAT(shown(), !Contains("step 41 for"));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (shown().find("step 41 for 0:01") == std::string::npos &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK_THAT(shown(), Contains("tok/s  step 41 for 0:0") && Contains("eta 1:"));
  progress.update(kUpdate);
  CHECK_THAT(shown(), !Contains("step 41 for"));
  progress.finish();
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  CHECK(shown().empty());  // nothing is drawn after the end
}

TEST_CASE("without a terminal each step is one plain line") {
  std::string screen;
  Progress progress(100, {.line = [&](const std::string& text) { screen += text + "\n"; },
                          .status = {},
                          .terminal = {}});
  progress.update(kUpdate);
  ProgressUpdate slower = kUpdate;
  slower.step = 41;
  slower.metrics.at(3).second = 2.5;
  progress.update(slower);
  progress.finish();
  CHECK(screen ==
        "step 40/100  reward 0.5322  loss 0.0125  12345 tok/s  1.50 s  eta 1:30\n"
        "step 41/100  reward 0.5322  loss 0.0125  7407 tok/s  2.50 s  eta 2:28\n");
}

TEST_CASE("the environment decides about width and colour") {
  setenv("COLUMNS", "57", 1);
  CHECK(detect_terminal().columns == 57);
  setenv("COLUMNS", "-3", 1);
  CHECK(detect_terminal().columns > 0);
  unsetenv("COLUMNS");
  setenv("NO_COLOR", "1", 1);
  CHECK_FALSE(detect_terminal().color);
  unsetenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const std::string saved = term == nullptr ? "" : term;
  setenv("TERM", "dumb", 1);
  CHECK_FALSE(detect_terminal().is_terminal);
  setenv("TERM", saved.c_str(), 1);
}

// What `action` writes to standard error.
template <class Action>
std::string captured_stderr(Action action) {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  std::fflush(stderr);
  const int saved = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  action();
  std::fflush(stderr);
  dup2(saved, STDERR_FILENO);
  close(saved);
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) {
    text += static_cast<char>(c);
  }
  std::fclose(file);
  return text;
}

TEST_CASE(
    "log lines carry level and prefix, take braces and percent signs as text, and obey the level") {
  const std::string text = captured_stderr([] {
    log::set_prefix("trainer 0 100%v");
    log::set_level(log::Level::kInfo);
    log::debug("hidden");
    log::info("plain {} %v {0}");
    log::set_level(log::Level::kError);
    log::warn("hidden too");
    log::error("bad");
    log::set_prefix("");
    log::set_level(log::Level::kInfo);
  });
  CHECK_THAT(text, Contains(" info  [trainer 0 100%v] plain {} %v {0}\n"));
  CHECK_THAT(text, Contains(" error [trainer 0 100%v] bad\n"));
  CHECK_THAT(text, !Contains("hidden"));
}

TEST_CASE("what is logged while a status is shown appears above it, whole, from any thread") {
  const std::string clear = "\r\x1b[J";
  // Two lines, and the cursor at the first of them.
  const auto drawn = [](const std::string& first, const std::string& second) {
    return "\r" + first + "\x1b[K\n" + second + "\x1b[J\x1b[1A\r";
  };
  const std::string text = captured_stderr([&] {
    log::set_status("[##--]\n2/4");
    log::line("step 2");
    log::set_status("[###-]\n3/4");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 50; ++i) {
          log::info("worker joined");
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    log::set_status("");
    log::line("done");
  });
  const std::string before = drawn("[##--]", "2/4");
  const std::string after = drawn("[###-]", "3/4");
  CHECK_THAT(text, Catch::StartsWith(before + clear + "step 2\n" + before + after + clear));
  CHECK_THAT(text, Catch::EndsWith("worker joined\n" + after + clear + "done\n"));
  // Between two log lines stands the status, once, and nothing else.
  std::size_t lines = 0;
  for (auto at = text.find("joined\n"); at != std::string::npos;
       at = text.find("joined\n", at + 1)) {
    CHECK(text.compare(at + 7, after.size() + clear.size(), after + clear) == 0);
    ++lines;
  }
  CHECK(lines == 200);
}

TEST_CASE("warnings and errors are copied to a file, other lines are not") {
  const test::TemporaryDirectory folder;
  const std::string path = (folder.path() / "warnings.log").string();
  const std::string printed = captured_stderr([&] {
    log::warn("before");
    log::copy_warnings_to(path);
    log::info("a step");
    log::warn("rewards are all 0");
    log::error("bad");
    log::copy_error("the end");
    log::copy_warnings_to("");
    log::warn("after");
    log::copy_error("nowhere");
  });
  CHECK_THAT(printed, !Contains("the end") && !Contains("nowhere"));
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK_THAT(text, Contains("rewards are all 0\n") && Contains("bad\n") && Contains("the end\n"));
  CHECK_THAT(text, !Contains("before") && !Contains("after") && !Contains("a step"));
}

TEST_CASE("every line is copied to the log's file, and lines of others without being printed") {
  const test::TemporaryDirectory folder;
  const std::string path = (folder.path() / "run.log").string();
  const std::string printed = captured_stderr([&] {
    log::copy_lines_to(path);
    log::info("a step");
    log::line("step 1/2");
    log::warn("a warning");
    log::copy_error("the end");
    log::copy_line("of a worker");
    log::copy_lines_to("");
    log::info("after");
  });
  CHECK_THAT(printed, !Contains("the end") && !Contains("of a worker"));
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK_THAT(text, Contains("a step\nstep 1/2\n") && Contains("a warning\n") &&
                       Contains("the end\nof a worker\n") && !Contains("after"));
}

}  // namespace
}  // namespace ringside::rl
