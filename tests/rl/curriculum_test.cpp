// Guards: prompts drawn from another pool than their rewards put them in, shares that are not kept,
// and a choice that a restart or the number of workers would change.
#include "rl/data/curriculum.h"

#include <catch2/catch.hpp>
#include <set>

#include "rl/data/group_prompts.h"

using namespace ringside;
using rl::Curriculum;

namespace {

constexpr int64_t kPrompts = 40;
constexpr int64_t kPerStep = 8;

rl::Config make_config() {
  rl::Config config;
  config.seed = 3;
  config.rollout.prompts_per_step = kPerStep;
  config.data.curriculum.mode = "pools";
  config.data.curriculum.easy_share = 0.1;
  config.data.curriculum.hard_share = 0.25;
  return config;
}

Curriculum make(const std::string& state = "", const rl::Config& config = make_config()) {
  return Curriculum(config, {{kPrompts, 0.0}}, state);
}

std::vector<int64_t> prompts_of(const Curriculum& curriculum, int64_t step) {
  std::vector<int64_t> prompts;
  for (const int64_t group : curriculum.groups_of(step)) {
    prompts.push_back(group / rl::kRoundStride);
  }
  return prompts;
}

// The first ten prompts are always solved, the next ten never, the others sometimes.
double reward_of(int64_t prompt) { return prompt < 10 ? 0.95 : prompt < 20 ? 0.0 : 0.5; }

void play(Curriculum& curriculum, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) {
    curriculum.choose(step);
    for (const int64_t prompt : prompts_of(curriculum, step)) {
      curriculum.measure(prompt, reward_of(prompt));
    }
  }
}

}  // namespace

TEST_CASE("what is not measured comes in the data's order, each prompt once a pass") {
  auto curriculum = make();
  rl::DataOrder order(kPrompts, 3, true);
  curriculum.choose(5);
  int64_t position = 0;
  for (int64_t step = 1; step <= 5; ++step) {
    for (const int64_t prompt : prompts_of(curriculum, step)) {
      CHECK(prompt == order.at(position++));
    }
  }
  CHECK(curriculum.sizes().unmeasured == kPrompts);
}

TEST_CASE("the shares of easy and hard prompts are kept, the others come from the middle") {
  auto curriculum = make();
  play(curriculum, 1, 10);  // measures all
  const auto sizes = curriculum.sizes();
  CHECK(sizes.easy == 10);
  CHECK(sizes.hard == 10);
  CHECK(sizes.middle == 20);
  CHECK(sizes.unmeasured == 0);
  int64_t easy = 0, hard = 0;
  std::set<int64_t> middle;
  for (int64_t step = 11; step <= 20; ++step) {
    play(curriculum, step, step);
    const auto prompts = prompts_of(curriculum, step);
    REQUIRE(std::set<int64_t>(prompts.begin(), prompts.end()).size() == kPerStep);
    for (const int64_t prompt : prompts) {
      easy += prompt < 10 ? 1 : 0;
      hard += prompt >= 10 && prompt < 20 ? 1 : 0;
      middle.insert(prompt >= 20 ? prompt : 20);
    }
  }
  CHECK(easy == 8);   // a tenth of 80
  CHECK(hard == 20);  // a quarter
  CHECK(middle.size() == 20);
}

TEST_CASE("a prompt leaves its pool when it is measured again") {
  auto curriculum = make();
  curriculum.measure(7, 1.0);
  CHECK(curriculum.sizes().easy == 1);
  curriculum.measure(7, 0.9);  // the bound itself
  CHECK(curriculum.sizes().easy == 1);
  curriculum.measure(7, 0.1);
  CHECK(curriculum.sizes().hard == 1);
  curriculum.measure(7, 0.4);
  CHECK(curriculum.sizes().middle == 1);
  curriculum.measure(kPrompts, 1.0);  // none
  CHECK(curriculum.sizes().unmeasured == kPrompts - 1);
}

TEST_CASE("where nothing is left in the middle, hard prompts come before easy ones") {
  auto curriculum = make();
  for (int64_t prompt = 0; prompt < kPrompts; ++prompt) {
    curriculum.measure(prompt, prompt < 35 ? 1.0 : 0.0);
  }
  curriculum.choose(1);
  const auto prompts = prompts_of(curriculum, 1);
  CHECK(std::count_if(prompts.begin(), prompts.end(), [](int64_t p) { return p >= 35; }) == 5);
  CHECK(std::set<int64_t>(prompts.begin(), prompts.end()).size() == kPerStep);
}

TEST_CASE("fewer prompts than places are used again, as groups of their own") {
  rl::Config config = make_config();
  Curriculum curriculum(config, {{3, 0.0}}, "");
  curriculum.choose(1);
  const auto groups = curriculum.groups_of(1);
  CHECK(std::set<int64_t>(groups.begin(), groups.end()).size() == kPerStep);
}

TEST_CASE("a run that resumes from its state chooses as one that was not interrupted") {
  auto whole = make();
  play(whole, 1, 12);
  for (int64_t at = 1; at < 12; ++at) {
    auto first = make();
    play(first, 1, at);
    first.choose(at + 2);  // steps that may be sampled already
    const std::string state = first.state(at);
    auto resumed = make(state);
    CHECK(resumed.state(at) == state);
    CHECK(prompts_of(resumed, at + 2) == prompts_of(first, at + 2));
    CHECK_THROWS_WITH(resumed.groups_of(at), Catch::Contains("chosen for step"));
    auto plain = make();
    play(plain, 1, at);
    auto again = make(plain.state(at));
    play(again, at + 1, 12);
    CHECK(again.groups_of(12) == whole.groups_of(12));
  }
}

TEST_CASE("a state of other prompts or of another form is refused") {
  const std::string state = make().state(0);
  CHECK_THROWS_WITH(Curriculum(make_config(), {{7, 0.0}}, state),
                    Catch::Contains("of 40 prompts, data.train has 7"));
  CHECK_THROWS_WITH(make("{}"), Catch::Contains("state of data.curriculum"));
}

TEST_CASE("a group names its prompt with a curriculum, and its place in the data order without") {
  rl::Config config = make_config();
  rl::GroupPrompts named({{kPrompts, 0.0}}, config);
  auto curriculum = make();
  curriculum.choose(2);
  for (const int64_t group : curriculum.groups_of(2)) {
    CHECK(named.at(group) == group / rl::kRoundStride);
  }
  CHECK(named.at(INT64_MAX) < kPrompts);  // whatever a worker sends
  config.data.curriculum.mode = "none";
  rl::GroupPrompts ordered({{kPrompts, 0.0}}, config);
  CHECK(ordered.at(5) == rl::DataOrder(kPrompts, 3, true).at(5));
}
