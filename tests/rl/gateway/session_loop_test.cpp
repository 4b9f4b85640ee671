// Guards the loop of a worker whose samples are sessions, with a link, a model and a harness of the
// test's own: a session that is lost or made twice, tokens under the wrong version, a failing batch
// that ends the worker.
#include "rl/worker/session_loop.h"

#include <catch2/catch.hpp>
#include <future>
#include <stdexcept>
#include <thread>

#include "tests/rl/fake_link.h"
#include "tests/rollout_bridge/direct_trainer.h"

namespace ringside::rl {
namespace {

using namespace bridge::test;
using std::chrono::milliseconds;

// Answers every request with two tokens.
class FakeModel final : public SessionModel {
 public:
  std::string install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) override {
    version_ = snapshot->manifest.version;
    return is_damaged ? "damaged" : snapshot->manifest.root_hash;
  }
  void submit(std::vector<std::shared_ptr<WaitingRequest>> requests) override {
    std::move(requests.begin(), requests.end(), std::back_inserter(waiting_));
  }
  bool work() override {
    if (is_slow || waiting_.empty()) {
      return false;
    }
    for (const auto& request : std::exchange(waiting_, {})) {
      if (is_broken) {
        request->fail(std::make_exception_ptr(std::runtime_error("out of memory")));
      } else {
        request->answer({{{7, 8}, {-1.0F, -2.0F}, version_, 1}, true});
      }
    }
    return true;
  }
  std::size_t running() const override { return waiting_.size(); }
  void drop_requests() override { waiting_.clear(); }

  bool is_broken = false, is_slow = false, is_damaged = false;

 private:
  std::vector<std::shared_ptr<WaitingRequest>> waiting_;
  int64_t version_ = -1;
};

class FakeMaker final : public SessionMaker {
 public:
  std::shared_ptr<Session> session_of(const bridge::GrantedSample& sample) override {
    const std::string id = std::to_string(sample.group_id) + std::to_string(sample.sample_index);
    return std::make_shared<Session>(id, sample, nullptr,
                                     SessionLimits{.max_turns = 9, .max_new_tokens = 9}, 1,
                                     StatedSampling{});
  }
  bridge::Rollout rollout_of(const Session& session, int64_t version) override {
    const bridge::GrantedSample& sample = session.sample();
    bridge::Rollout rollout =
        rollout_under(version, sample.group_id, sample.sample_index, sample.group_size);
    rollout.trainer_term = -1;  // nobody says one, as in failed_rollout()
    session.write(rollout);
    return rollout;
  }
  void check_harness() override { ++checks; }
  int checks = 0;
};

class LoopRun {
 public:
  LoopRun() {
    link.events.push_back(bridge::Connected{"run", 1});
    publish(5);
  }
  void publish(int64_t version) {
    link.events.push_back(
        bridge::WeightsReady{bridge::make_snapshot("run", 1, version, make_tensors(version))});
  }
  void grant(int64_t group, std::vector<int32_t> samples) {
    link.events.push_back(bridge::Granted{{{group, 4, 0, 0, std::move(samples)}}});
  }
  void turns(int count) {
    for (int i = 0; i < count; ++i) {
      now += loop.turn();
    }
  }
  // A request of a session that continues `end` with the token `id`, in a thread of its own.
  std::future<int64_t> begin(const std::shared_ptr<Session>& session, int64_t end, int64_t id) {
    const ChatTurns::Context context{end, {id}};
    auto requests = session->begin(context, 4, 1);
    return std::async(std::launch::async, [=, this, requests = std::move(requests)] {
      return session->record(context, desk.sample(requests).front());
    });
  }
  // The same, until it is answered.
  int64_t ask(const std::shared_ptr<Session>& session, int64_t end, int64_t id) {
    auto asked = begin(session, end, id);
    while (asked.wait_for(milliseconds(1)) != std::future_status::ready) {
      turns(1);
    }
    return asked.get();
  }

  test::FakeLink link;
  SessionLoop::Clock::time_point now{};
  SessionDesk desk{std::chrono::hours(10), [this] { return now; }};
  FakeModel model;
  FakeMaker maker;
  SessionLoop loop{
      link, desk, model, maker, 3, {"w", {}, [] { return false; }}, [this] { return now; }};
};

TEST_CASE("session loop: every granted sample is a session, and an ended one is a rollout") {
  LoopRun run;
  run.grant(0, {0, 1});
  run.turns(2);
  const auto first = run.desk.claim(milliseconds(0)), second = run.desk.claim(milliseconds(0));
  REQUIRE(second != nullptr);
  CHECK(run.desk.claim(milliseconds(0)) == nullptr);
  const int64_t end = run.ask(first, 0, 3);
  run.publish(6);
  run.turns(1);
  run.ask(first, end, 4);
  first->end({.rewards = {{"reward", 2.0}}});
  run.turns(2);
  REQUIRE(run.link.sent.size() == 1);
  const bridge::Rollout& rollout = run.link.sent[0];
  CHECK(rollout.prompt_ids == std::vector<int64_t>{3});
  CHECK(rollout.completion_ids == std::vector<int64_t>{7, 8, 4, 7, 8});
  CHECK(rollout.versions == std::vector<bridge::VersionSpan>{{5, 0, 2}, {6, 2, 5}});
  CHECK(rollout.rewards.front().second == 2.0);
  CHECK(run.link.committed == std::vector<int64_t>{5, 6});
  run.now += std::chrono::hours(11);  // the time of the second session is over
  run.turns(1);
  REQUIRE(run.link.sent.size() == 2);
  CHECK(run.link.sent[1].finish_reason == bridge::FinishReason::kError);
  CHECK(run.maker.checks > 0);
}

TEST_CASE("session loop: a reconnect neither ends a session nor opens it again") {
  LoopRun run;
  run.grant(0, {0});
  run.turns(2);
  const auto session = run.desk.claim(milliseconds(0));
  run.link.events.push_back(bridge::Disconnected{"cut"});
  run.link.events.push_back(bridge::Connected{"run", 1});
  run.grant(0, {0});
  run.turns(2);
  CHECK(run.desk.open_sessions() == 1);
  run.ask(session, 0, 3);
  session->end({.rewards = {{"reward", 1.0}}});
  run.turns(2);
  CHECK(run.link.sent.size() == 1);
}

TEST_CASE("session loop: a batch that cannot be sampled refuses its requests and no others") {
  LoopRun run;
  run.grant(0, {0});
  run.turns(2);
  const auto session = run.desk.claim(milliseconds(0));
  run.model.is_broken = true;
  CHECK_THROWS_WITH(run.ask(session, 0, 3), Catch::Contains("out of memory"));
  run.model.is_broken = false;
  CHECK(run.ask(session, 0, 3) == 3);
}

TEST_CASE(
    "session loop: weights wait for the requests that run, and new requests for the weights") {
  LoopRun run;
  run.grant(0, {0, 1});
  run.turns(2);
  const auto first = run.desk.claim(milliseconds(0)), second = run.desk.claim(milliseconds(0));
  run.model.is_slow = true;
  auto before = run.begin(first, 0, 3);
  while (run.model.running() == 0) {
    std::this_thread::sleep_for(milliseconds(1));
    run.turns(1);
  }
  run.publish(6);
  run.turns(1);
  auto after = run.begin(second, 0, 3);
  std::this_thread::sleep_for(milliseconds(20));
  run.turns(3);
  CHECK(run.model.running() == 1);
  CHECK(run.link.committed == std::vector<int64_t>{5});
  run.model.is_slow = false;
  while (after.wait_for(milliseconds(1)) != std::future_status::ready) {
    run.turns(1);
  }
  before.get();
  after.get();
  for (const auto& session : {first, second}) {
    session->end({.rewards = {{"reward", 1.0}}});
  }
  run.turns(2);
  REQUIRE(run.link.sent.size() == 2);
  CHECK(run.link.sent[0].versions.front().version == 5);
  CHECK(run.link.sent[1].versions.front().version == 6);
}

TEST_CASE("session loop: requests that the model has not answered are refused when the loop ends") {
  std::future<int64_t> asked;  // outlives the model, whose end answers it at the latest
  LoopRun run;
  run.grant(0, {0});
  run.turns(2);
  run.model.is_slow = true;
  asked = run.begin(run.desk.claim(milliseconds(0)), 0, 3);
  while (run.model.running() == 0) {
    std::this_thread::sleep_for(milliseconds(1));
    run.turns(1);
  }
  { const SessionLoop ends{run.link, run.desk, run.model, run.maker, 3, {"w", {}, {}}, {}}; }
  REQUIRE(asked.wait_for(std::chrono::seconds(5)) == std::future_status::ready);
  CHECK_THROWS_WITH(asked.get(), "the run is over");
}

TEST_CASE("session loop: a session that nobody has claimed is closed with its grant") {
  LoopRun run;
  run.grant(0, {0, 1});
  run.turns(2);
  const auto claimed = run.desk.claim(milliseconds(0));
  run.link.events.push_back(bridge::Connected{"run", 1});
  run.turns(1);
  CHECK(run.desk.open_sessions() == 1);
  CHECK(run.desk.find(claimed->id()) == claimed);
  run.grant(0, {0, 1});
  run.grant(1, {0});
  run.turns(2);
  CHECK(run.desk.unclaimed_sessions() == 2);
  run.link.events.push_back(
      bridge::Granted{{}, {{.group_id = 0, .sample_indices = {0, 1}}}});  // others make them
  run.turns(2);
  CHECK(run.desk.unclaimed_sessions() == 1);
  CHECK(run.desk.claim(milliseconds(0))->sample().group_id == 1);
  CHECK(run.desk.find(claimed->id()) == claimed);
}

TEST_CASE("session loop: no more sessions than most_unclaimed wait for a harness") {
  LoopRun run;
  run.grant(0, {0, 1, 2, 3});
  run.turns(2);
  CHECK(run.desk.unclaimed_sessions() == 3);
  CHECK(run.desk.claim(milliseconds(0))->sample().sample_index == 0);
  run.turns(2);
  CHECK(run.desk.unclaimed_sessions() == 3);
  CHECK(run.desk.open_sessions() == 4);
}

TEST_CASE("session loop: a session without samples is of the start that would have sampled it") {
  LoopRun run;
  run.grant(0, {0});
  run.turns(2);
  const auto session = run.desk.claim(milliseconds(0));
  run.link.events.push_back(bridge::Connected{"run", 2});
  run.link.events.push_back(
      bridge::WeightsReady{bridge::make_snapshot("run", 2, 6, make_tensors(6))});
  run.turns(2);
  session->end({.rewards = {}, .failure = "tool broke"});
  run.turns(2);
  CHECK(run.link.sent.empty());  // the second start has not asked for it
  CHECK(run.desk.open_sessions() == 0);
}

TEST_CASE("session loop: nothing is opened under weights that did not install as published") {
  LoopRun run;
  run.model.is_damaged = true;
  run.grant(0, {0});
  run.turns(3);
  CHECK(run.desk.open_sessions() == 0);
}

TEST_CASE("session loop: rollouts without room wait, and no session is opened before") {
  LoopRun run;
  run.link.room = 0;
  run.grant(0, {0});
  run.turns(2);
  run.desk.claim(milliseconds(0))->end({.rewards = {}, .failure = "tool broke"});
  run.turns(1);
  run.grant(0, {1});
  run.turns(2);
  CHECK(run.desk.open_sessions() == 0);
  run.link.room = 9;
  run.turns(2);
  CHECK(run.link.sent.size() == 1);
  CHECK(run.desk.open_sessions() == 1);
}

}  // namespace
}  // namespace ringside::rl
