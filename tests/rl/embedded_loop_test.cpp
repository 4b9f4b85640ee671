// Guards the loop of the worker that samples itself, with a link and a sampler of the test's own:
// work that is lost at a reconnect, a rollout dropped for want of room, a batch begun under old
// weights.
#include "rl/worker/embedded_loop.h"

#include <catch2/catch.hpp>

#include "tests/rl/fake_link.h"
#include "tests/rollout_bridge/direct_trainer.h"

namespace ringside::rl {
namespace {

using namespace bridge::test;
using bridge::GrantedSample;
using bridge::Rollout;
using Samples = std::vector<std::pair<int64_t, int32_t>>;

class FakeSampler final : public BatchSampler {
 public:
  std::string install(const bridge::WeightSnapshot& snapshot) override {
    return damaged_installs-- > 0 ? std::string(32, '0') : snapshot.manifest.root_hash;
  }
  std::vector<Rollout> sample(const std::vector<GrantedSample>& samples, int64_t version,
                              const std::function<bool()>& should_stop) override {
    std::vector<Rollout> rollouts;
    batches.emplace_back();
    held_.insert(held_.end(), samples.begin(), samples.end());
    before_token();
    std::vector<GrantedSample> held;
    for (const GrantedSample& s : held_) {
      batches.back().emplace_back(s.group_id, s.sample_index);
      if (should_stop() && s.sample_index > 0) {  // the first of a group is complete
        held.push_back(s);
        continue;
      }
      rollouts.push_back(rollout_under(version, s.group_id, s.sample_index, s.group_size));
    }
    held_ = std::move(held);
    return rollouts;
  }
  std::size_t unfinished() const override { return held_.size(); }
  std::function<void()> before_token = [] {};
  int damaged_installs = 0;
  std::vector<Samples> batches;

 private:
  std::vector<GrantedSample> held_;
};

class LoopRun {
 public:
  explicit LoopRun(std::size_t batch)
      : loop(link, sampler, {"w", {}, [] { return false; }}, batch, [this] { return now; }) {
    link.events.push_back(bridge::Connected{"run", 1});
    link.events.push_back(
        bridge::WeightsReady{bridge::make_snapshot("run", 1, 5, make_tensors(5))});
  }
  void grant(int64_t group, std::vector<int32_t> samples) {
    link.events.push_back(bridge::Granted{{{group, 4, 0, 0, std::move(samples)}}});
  }
  void turns(int count) {
    for (int i = 0; i < count; ++i) {
      now += loop.turn();
    }
  }

  test::FakeLink link;
  FakeSampler sampler;
  EmbeddedLoop::Clock::time_point now{};
  EmbeddedLoop loop;
};

TEST_CASE("embedded loop: grants that come in several messages make one batch") {
  LoopRun run(6);
  run.grant(0, {0, 1, 2, 3});
  CHECK(run.loop.turn() > std::chrono::milliseconds::zero());
  run.grant(1, {0, 1});
  run.turns(3);
  CHECK(run.sampler.batches ==
        std::vector<Samples>{{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 0}, {1, 1}}});
  CHECK(run.link.sent.size() == 6);
  CHECK(run.link.sent[0].trainer_term == 1);
  CHECK(run.link.committed == std::vector<int64_t>{5});
}

TEST_CASE(
    "embedded loop: work that was queued at a reconnect is sampled when it is granted again") {
  LoopRun run(2);
  run.grant(0, {0, 1, 2, 3});
  run.turns(1);  // a batch of two is made
  run.link.events.push_back(bridge::Disconnected{"cut"});
  run.link.events.push_back(bridge::Connected{"run", 1});
  run.turns(2);
  CHECK(run.sampler.batches.size() == 1);  // what waited is not this worker's any more
  CHECK(run.link.sent.size() == 2);
  run.grant(0, {2, 3});
  run.turns(4);
  CHECK(run.sampler.batches == std::vector<Samples>{{{0, 0}, {0, 1}}, {{0, 2}, {0, 3}}});
  CHECK(run.link.sent.size() == 4);
}

TEST_CASE("embedded loop: rollouts without room wait, and no batch begins before they are sent") {
  LoopRun run(4);
  run.link.room = 3;
  run.grant(0, {0, 1, 2, 3});
  run.grant(1, {0, 1, 2, 3});
  run.turns(20);
  CHECK(run.link.sent.size() == 3);
  CHECK(run.sampler.batches.size() == 1);
  run.link.room = 8;
  run.turns(4);
  CHECK(run.link.sent.size() == 8);
  CHECK(run.sampler.batches.size() == 2);
}

TEST_CASE("embedded loop: nothing is sampled from weights that did not install as published") {
  LoopRun run(2);
  run.grant(0, {0, 1});
  run.turns(2);
  CHECK(run.sampler.batches.size() == 1);
  run.sampler.damaged_installs = 1;
  run.link.events.push_back(
      bridge::WeightsReady{bridge::make_snapshot("run", 1, 6, make_tensors(6))});
  run.grant(1, {0, 1});
  run.turns(5);
  CHECK(run.link.committed ==
        std::vector<int64_t>{5, 6});  // the trainer judges the hash, and offers again
  CHECK(run.sampler.batches.size() == 1);
  run.link.events.push_back(
      bridge::WeightsReady{bridge::make_snapshot("run", 1, 6, make_tensors(6))});
  run.turns(3);
  CHECK(run.sampler.batches.size() == 2);
}

TEST_CASE(
    "embedded loop: a batch that stops for new weights goes on under them, with new samples") {
  LoopRun run(4);
  run.grant(0, {0, 1, 2});
  run.turns(1);
  run.sampler.before_token = [&] {
    run.link.events.push_back(
        bridge::WeightsReady{bridge::make_snapshot("run", 1, 6, make_tensors(6))});
    run.grant(1, {0, 1, 2, 3});
    run.sampler.before_token = [] {};
  };
  run.turns(1);
  CHECK(run.link.committed == std::vector<int64_t>{5});
  CHECK(run.sampler.unfinished() == 2);
  run.turns(4);
  CHECK(run.link.committed == std::vector<int64_t>{5, 6});
  // Two that were held and as many new ones as a batch has room for.
  CHECK(run.sampler.batches == std::vector<Samples>{{{0, 0}, {0, 1}, {0, 2}},
                                                    {{0, 1}, {0, 2}, {1, 0}, {1, 1}},
                                                    {{1, 2}, {1, 3}}});
  CHECK(run.link.sent.size() == 7);
}

TEST_CASE("embedded loop: a refused worker ends with the trainer's words") {
  LoopRun run(4);
  run.link.events.push_back(bridge::Failed{"fenced", "a newer incarnation is in"});
  CHECK_THROWS_WITH(run.loop.turn(),
                    Catch::Contains("fenced") && Catch::Contains("a newer incarnation"));
}

}  // namespace
}  // namespace ringside::rl
