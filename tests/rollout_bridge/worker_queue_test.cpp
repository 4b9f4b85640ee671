// Guards the owner of a worker's granted samples: one that is lost, or filtered out of a grant
// while nobody holds it, is waited for as long as the run lasts; one that is queued twice is
// sampled twice.
#include "rollout_bridge/worker/worker_queue.h"

#include <catch2/catch.hpp>

#include "tests/rollout_bridge/direct_trainer.h"

using namespace ringside::bridge;
using namespace ringside::bridge::test;

namespace {

// Takes up to `room` rollouts.
class CountingLink final : public TrainerLink {
 public:
  std::optional<WorkerEvent> next_event() override { return std::nullopt; }
  bool has_room() const override { return sent.size() < room; }
  Status send(const Rollout& rollout) override {
    if (!has_room()) {
      return Error{Reason::kTimeout, "full"};
    }
    if (Status s = validate(rollout); !s) {
      return s;
    }
    sent.push_back(rollout);
    return Success{};
  }
  Status commit_weights(int64_t, const std::string&) override { return Success{}; }
  void pause() override {}
  void resume() override {}
  void set_queue_depth(int64_t samples) override { depth = samples; }

  std::size_t room = 1000;
  std::vector<Rollout> sent;
  int64_t depth = -1;
};

Granted grant_of(int64_t group, std::vector<int32_t> samples, int32_t attempt = 0) {
  return {{{group, 4, 0, attempt, std::move(samples)}}};
}

std::vector<int32_t> indices(const std::vector<GrantedSample>& samples) {
  std::vector<int32_t> out;
  for (const GrantedSample& s : samples) {
    out.push_back(s.sample_index);
  }
  return out;
}

Rollout rollout_of(const GrantedSample& sample) {
  return rollout_under(0, sample.group_id, sample.sample_index, sample.group_size);
}

}  // namespace

TEST_CASE("worker queue: samples are started in the order granted, each once", "[worker]") {
  WorkerQueue queue;
  queue.on_granted(grant_of(3, {0, 1, 2}));
  queue.on_granted(grant_of(3, {1, 3}));  // 1 is held
  CHECK(indices(queue.start(2)) == std::vector<int32_t>{0, 1});
  queue.on_granted(grant_of(3, {0}));  // being sampled
  CHECK(indices(queue.start(9)) == std::vector<int32_t>{2, 3});
  CHECK(queue.held() == 4);
}

TEST_CASE("worker queue: a withdrawn sample is dropped if it is queued and finished if it is begun",
          "[worker]") {
  WorkerQueue queue;
  queue.on_granted(grant_of(3, {0, 1, 2}));
  const auto started = queue.start(1);
  queue.on_granted({{}, {{.group_id = 3, .sample_indices = {0, 2}}}});
  CHECK(queue.held() == 2);
  CHECK(indices(queue.start(9)) == std::vector<int32_t>{1});
  queue.finish(rollout_of(started[0]));
  queue.on_granted(grant_of(3, {2}));  // granted again
  CHECK(indices(queue.start(9)) == std::vector<int32_t>{2});
  queue.on_granted({{}, {{.group_id = 9, .sample_indices = {0}}}});  // never granted
}

TEST_CASE("worker queue: a new session drops what is queued and takes it when granted again",
          "[worker]") {
  WorkerQueue queue;
  queue.on_granted(grant_of(3, {0, 1, 2}));
  const auto started = queue.start(1);
  queue.on_connected(1);
  CHECK(queue.queued() == 0);
  queue.on_granted(grant_of(3, {0, 1, 2}, 1));
  const auto more = queue.start(9);
  CHECK(indices(more) == std::vector<int32_t>{1, 2});  // 0 is being sampled
  CHECK(more[0].attempt == 1);
  CountingLink link;
  queue.finish(rollout_of(started[0]));
  CHECK(queue.deliver(link).empty());
  CHECK(link.sent.size() == 1);
  CHECK(link.depth == 2);
}

TEST_CASE("worker queue: a rollout of a later start than the one that granted it is dropped",
          "[worker]") {
  WorkerQueue queue;
  queue.on_connected(1);
  queue.on_granted(grant_of(3, {0, 1, 2}));
  const auto started = queue.start(3);
  queue.on_connected(2);
  queue.on_granted(grant_of(3, {2}));  // the second start asks for one again
  for (const GrantedSample& sample : started) {
    Rollout rollout = rollout_of(sample);
    rollout.trainer_term = sample.sample_index == 0 ? 1 : 2;
    queue.finish(rollout);
  }
  CountingLink link;
  CHECK(queue.deliver(link).empty());
  CHECK(queue.held() == 0);
  REQUIRE(link.sent.size() == 2);
  CHECK(link.sent[0].sample_index == 0);
  CHECK(link.sent[1].sample_index == 2);
}

TEST_CASE("worker queue: a sample put back after a new session is kept only if granted again",
          "[worker]") {
  WorkerQueue queue;
  queue.on_granted(grant_of(3, {0, 1, 2}));
  const auto started = queue.start(2);
  queue.on_connected(1);
  queue.on_granted(grant_of(3, {1}, 2));
  queue.put_back(started[0]);
  queue.put_back(started[1]);
  const auto again = queue.start(9);
  REQUIRE(indices(again) == std::vector<int32_t>{1});
  CHECK(again[0].attempt == 2);
  queue.on_granted(grant_of(3, {0}));
  CHECK(indices(queue.start(9)) == std::vector<int32_t>{0});
}

TEST_CASE("worker queue: without room at the link rollouts wait and none is lost", "[worker]") {
  WorkerQueue queue;
  queue.on_granted(grant_of(3, {0, 1, 2, 3}));
  for (const GrantedSample& s : queue.start(4)) {
    queue.finish(rollout_of(s));
  }
  CountingLink link;
  link.room = 1;
  CHECK(queue.deliver(link).empty());
  CHECK(queue.has_made());
  CHECK(queue.held() == 3);
  queue.on_connected(1);  // a new session changes nothing about what is made
  queue.on_granted(grant_of(3, {1, 2, 3}));
  CHECK(queue.queued() == 0);
  link.room = 4;
  CHECK(queue.deliver(link).empty());
  CHECK_FALSE(queue.has_made());
  CHECK(queue.held() == 0);
  REQUIRE(link.sent.size() == 4);
  for (int32_t i = 0; i < 4; ++i) {
    CHECK(link.sent[static_cast<std::size_t>(i)].sample_index == i);
  }
}

TEST_CASE("worker queue: a rollout that may not be sent goes out as a failed sample", "[worker]") {
  WorkerQueue queue;
  queue.on_granted(grant_of(3, {0}));
  Rollout broken = rollout_of(queue.start(1)[0]);
  broken.logprobs.pop_back();
  queue.finish(broken);
  CountingLink link;
  const auto refused = queue.deliver(link);
  REQUIRE(refused.size() == 1);
  CHECK_THAT(refused[0], Catch::Contains(broken.rollout_id) && Catch::Contains("logprobs"));
  REQUIRE(link.sent.size() == 1);
  CHECK(link.sent[0].finish_reason == FinishReason::kError);
  CHECK(link.sent[0].rollout_id == broken.rollout_id);
  CHECK(link.sent[0].prompt_ids == broken.prompt_ids);
  CHECK(link.sent[0].completion_ids.empty());
  CHECK(queue.held() == 0);
}

TEST_CASE("worker queue: a rollout of a sample that was not started is a mistake", "[worker]") {
  WorkerQueue queue;
  queue.on_granted(grant_of(3, {0}));
  CHECK_THROWS_WITH(queue.finish(rollout_under(0, 3, 0, 4)), Catch::Contains("was not started"));
}
