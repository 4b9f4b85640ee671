// Guards the display: no wrapped or torn line on any width, no escape codes where NO_COLOR or a
// pipe forbids them, one plain line a step in a log file. Also that the logging facade takes text
// as it is.
#include "rl/report/progress.h"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "rl/report/log.h"

namespace ringside::rl {
namespace {

using Catch::Matchers::Contains;

const ProgressUpdate kUpdate{
    .step = 40, .reward = 0.53219, .loss = 0.0125, .tokens_per_s = 12345, .step_s = 1.5};

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

TEST_CASE("the bar shows reward, tokens per second and ETA, and never fills the last column") {
  const TerminalTraits wide{.is_terminal = true, .color = false, .columns = 100};
  CHECK(render_bar(kUpdate, 100, 90, wide) ==
        "[#########---------------] train  40%  40/100  reward 0.532  loss 0.0125  eta "
        "1:30  12.3k tok/s");
  for (int columns = 0; columns <= 100; ++columns) {
    TerminalTraits narrow = wide;
    narrow.columns = columns;
    INFO(columns);
    CHECK(static_cast<int>(render_bar(kUpdate, 100, 90, narrow).size()) <=
          std::max(columns - 1, 0));
  }
  const std::string colored =
      render_bar(kUpdate, 100, 90, {.is_terminal = true, .color = true, .columns = 100});
  CHECK_THAT(colored, Contains("\x1b[32m#########\x1b[0m"));
  // More steps than planned, none planned, no reward: still a bar.
  CHECK_THAT(render_bar(kUpdate, 10, 0, wide), Contains("100%"));
  CHECK_THAT(render_bar(kUpdate, 0, 0, wide), Contains("100%"));
  ProgressUpdate sft = kUpdate;
  sft.reward.reset();
  CHECK_THAT(render_bar(sft, 100, 0, wide), Contains("loss 0.0125") && !Contains("reward"));
  ProgressUpdate evaluated = kUpdate;
  evaluated.evaluation = 0.6103;
  CHECK_THAT(render_bar(evaluated, 100, 0, wide), Contains("loss 0.0125  eval 0.610  eta"));
  CHECK_THAT(render_line(evaluated, 100, 0), Contains("loss 0.0125  eval 0.6103  12345 tok/s"));
}

TEST_CASE(
    "a bar is drawn at the width that the terminal has at each draw, and is left as a line at the "
    "end") {
  std::vector<std::string> bars;
  std::vector<std::string> lines;
  TerminalTraits terminal{.is_terminal = true, .color = false, .columns = 60};
  Progress progress(100, {.line = [&](const std::string& text) { lines.push_back(text); },
                          .status = [&](const std::string& text) { bars.push_back(text); },
                          .terminal = [&] { return terminal; }});
  progress.finish();
  CHECK(bars.empty());
  CHECK(lines.empty());
  progress.update(kUpdate);
  REQUIRE(bars.size() == 1);
  CHECK_THAT(bars[0], Contains("reward 0.532"));
  terminal.columns = 20;
  progress.update(kUpdate);
  CHECK(bars[1].size() < 20);
  terminal.columns = 120;
  progress.update(kUpdate);
  CHECK_THAT(bars[2], Contains("12.3k tok/s"));
  progress.finish();
  CHECK(bars.back() == "");
  CHECK(lines == std::vector<std::string>{bars[2]});
}

TEST_CASE("without a terminal each step is one plain line") {
  std::string screen;
  Progress progress(100, {.line = [&](const std::string& text) { screen += text + "\n"; },
                          .status = {},
                          .terminal = {}});
  progress.update(kUpdate);
  ProgressUpdate slower = kUpdate;
  slower.step = 41;
  slower.step_s = 2.5;
  progress.update(slower);
  progress.finish();
  CHECK(screen ==
        "step 40/100  reward 0.5322  loss 0.0125  12345 tok/s  1.50 s  eta 1:30\n"
        "step 41/100  reward 0.5322  loss 0.0125  12345 tok/s  2.50 s  eta 1:34\n");
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
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
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

TEST_CASE("what is logged while a status line is shown appears above it, whole, from any thread") {
  const std::string clear = "\r\x1b[2K";
  const std::string text = captured_stderr([&] {
    log::set_status("[##--] 2/4");
    log::line("step 2");
    log::set_status("[###-] 3/4");
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
  CHECK_THAT(text, Catch::StartsWith(clear + "[##--] 2/4" + clear + "step 2\n[##--] 2/4" + clear +
                                     "[###-] 3/4" + clear));
  CHECK_THAT(text, Catch::EndsWith("worker joined\n[###-] 3/4" + clear + "done\n"));
  // Between two log lines stands the bar, once, and nothing else.
  std::size_t lines = 0;
  for (auto at = text.find("joined\n"); at != std::string::npos;
       at = text.find("joined\n", at + 1)) {
    CHECK(text.compare(at + 7, 10 + clear.size(), "[###-] 3/4" + clear) == 0);
    ++lines;
  }
  CHECK(lines == 200);
}

}  // namespace
}  // namespace ringside::rl
