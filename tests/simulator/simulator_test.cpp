// Guards the bridge under faults that no real-process test meets often enough: see README.md.
#include <catch2/catch.hpp>

#include "rl/report/log.h"
#include "tests/simulator/simulation.h"

namespace ringside::simulator {
namespace {

// Runs of the scene until enough faults were injected. Each must keep the invariants.
struct Runs {
  FaultCounts faults;
  ImageFigures images;
  SessionFigures sessions;
  int64_t stand_ins = 0;
  RecipeFigures recipes;

  Runs(const Scene& scene, uint64_t enough) {
    rl::log::set_level(rl::log::Level::kError);
    for (uint64_t seed = 1; faults.total() < enough; ++seed) {
      const Outcome outcome = simulate(seed, scene);
      faults.add(outcome.faults);
      images.asked += outcome.images.asked;
      images.dropped += outcome.images.dropped;
      images.trained += outcome.images.trained;
      stand_ins += outcome.stand_ins;
      sessions.answers += outcome.sessions.answers;
      sessions.branches += outcome.sessions.branches;
      sessions.of_several_versions += outcome.sessions.of_several_versions;
      recipes.kept_tokens += outcome.recipes.kept_tokens;
      recipes.greedy += outcome.recipes.greedy;
      recipes.chosen += outcome.recipes.chosen;
      recipes.spanned += outcome.recipes.spanned;
      INFO("simulator --seed " << seed << (scene.images ? " --images" : "")
                               << (scene.sessions ? " --sessions" : "")
                               << (scene.stragglers ? " --stragglers" : "")
                               << (scene.recipes ? " --recipes" : "") << " --verbose");
      INFO(outcome.trouble);
      REQUIRE(outcome.ok);
      REQUIRE(outcome.checks > 0);
    }
  }
};

TEST_CASE("a hundred thousand simulated faults break no invariant") {
  const Runs runs({}, 100'000);
  CHECK(runs.faults.by_kind().size() >= 12);  // of every kind there were some
  CHECK(runs.images.trained == 0);
}

TEST_CASE("a hundred thousand simulated faults lose no image of a conversation") {
  const Runs runs({.images = true}, 100'000);
  CHECK(runs.faults.by_kind().contains("image of other pixels"));
  CHECK(runs.images.asked > 1000);
  CHECK(runs.images.dropped > 1000);
  CHECK(runs.images.trained > 1000);
}

TEST_CASE("twenty thousand simulated faults lose or mix up no answer of a session") {
  const Runs runs({.sessions = true}, 20'000);
  for (const char* kind :
       {"lost answer", "repeated request", "conversation forked", "history rewritten",
        "request with the id of another session", "request after the reward", "second reward",
        "agent killed", "agent hangs", "harness ends", "request that cannot be sampled"}) {
    CHECK(runs.faults.by_kind().contains(kind));
  }
  CHECK(runs.sessions.answers > 10'000);
  CHECK(runs.sessions.branches > 300);
  CHECK(runs.sessions.of_several_versions > 100);
}

TEST_CASE("a hundred thousand simulated faults train no straggler twice, nor too small a group") {
  const Runs runs({.stragglers = true}, 100'000);
  CHECK(runs.faults.by_kind().contains("sample hangs"));
  CHECK(runs.stand_ins > 1000);
}

TEST_CASE("ten thousand simulated faults lose no kept set, greedy sample or word of a record") {
  const Runs runs({.recipes = true}, 10'000);
  CHECK(runs.recipes.kept_tokens > 5000);
  CHECK(runs.recipes.greedy > 1000);
  CHECK(runs.recipes.chosen > 1000);
  CHECK(runs.recipes.spanned > 100);
}

TEST_CASE("simulated faults mix up no greedy sample or word of a record among sessions") {
  const Runs runs({.sessions = true, .recipes = true}, 1500);
  CHECK(runs.recipes.greedy > 20);
  CHECK(runs.recipes.chosen > 100);
  CHECK(runs.sessions.branches > 20);
}

TEST_CASE("a seed gives the same run again") {
  const Outcome a = simulate(7);
  const Outcome b = simulate(7);
  CHECK(a.events == b.events);
  CHECK(a.faults.by_kind() == b.faults.by_kind());
  CHECK(a.virtual_seconds == b.virtual_seconds);
  CHECK(simulate(8).events != a.events);
  CHECK(simulate(7, {.images = true}).events != a.events);
  CHECK(simulate(7, {.sessions = true}).events == simulate(7, {.sessions = true}).events);
  CHECK(simulate(7, {.recipes = true}).events == simulate(7, {.recipes = true}).events);
}

}  // namespace
}  // namespace ringside::simulator
