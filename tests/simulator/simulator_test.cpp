// Guards the bridge under faults that no real-process test meets often enough: see README.md.
#include <catch2/catch.hpp>

#include "rl/report/log.h"
#include "tests/simulator/simulation.h"

namespace ringside::simulator {
namespace {

TEST_CASE("a hundred thousand simulated faults break no invariant") {
  rl::log::set_level(rl::log::Level::kError);
  FaultCounts faults;
  for (uint64_t seed = 1; faults.total() < 100'000; ++seed) {
    const Outcome outcome = simulate(seed);
    faults.add(outcome.faults);
    INFO("simulator --seed " << seed << " --verbose");
    INFO(outcome.trouble);
    REQUIRE(outcome.ok);
    REQUIRE(outcome.checks > 0);
  }
  CHECK(faults.by_kind().size() >= 12);  // of every kind there were some
}

TEST_CASE("a seed gives the same run again") {
  const Outcome a = simulate(7);
  const Outcome b = simulate(7);
  CHECK(a.events == b.events);
  CHECK(a.faults.by_kind() == b.faults.by_kind());
  CHECK(a.virtual_seconds == b.virtual_seconds);
  CHECK(simulate(8).events != a.events);
}

}  // namespace
}  // namespace ringside::simulator
