// Guards: a flood of events that drowns the log, or one whose extent nobody learns of.
#include "rl/report/event_log.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace ringside;
using std::chrono::seconds;

TEST_CASE("events are passed on at once, floods in part with the count of the rest") {
  std::vector<std::string> lines;
  rl::EventLog log([&](const std::string& line) { lines.push_back(line); });
  const rl::EventLog::Clock::time_point start{seconds(1000)};
  for (int i = 0; i < 5000; ++i) {
    log.add("refused rollout " + std::to_string(i) + " of worker" + std::to_string(i % 7), start);
  }
  CHECK(lines.size() == 5);
  log.add("worker1 joined", start + seconds(1));  // another kind is not drowned
  REQUIRE(lines.size() == 6);
  CHECK(lines.back() == "worker1 joined");
  log.tick(start + seconds(9));
  CHECK(lines.size() == 6);
  log.tick(start + seconds(10));
  REQUIRE(lines.size() == 7);
  CHECK(lines.back() ==
        "4995 more events within 10 s were left out; of the most frequent kind: refused rollout "
        "4999 of worker1");
  log.tick(start + seconds(30));
  CHECK(lines.size() == 7);
  log.add("refused rollout 1 of worker1", start + seconds(31));
  CHECK(lines.size() == 8);
}

TEST_CASE("events that all differ are bounded too") {
  int lines = 0;
  rl::EventLog log([&](const std::string&) { ++lines; });
  const rl::EventLog::Clock::time_point start{seconds(1000)};
  for (int i = 0; i < 1000; ++i) {
    log.add(std::string(1 + i, 'x') + " joined", start);
  }
  CHECK(lines == 40);
}
