// Guards the bound on memory: workers that keep to the windows they are told never have more under
// way than the trainer has room for, however fast they send, and none of them starves.
#include <catch2/catch.hpp>
#include <random>

#include "rollout_bridge/trainer/byte_budget.h"
#include "tests/rollout_bridge/direct_trainer.h"

namespace ringside::bridge {
namespace {

using namespace test;
using std::chrono::milliseconds;

constexpr int64_t kKiB = 1024;

TEST_CASE("windows are shares of what is free, and only what is sent lowers them", "[flow]") {
  ByteBudget budget(1000 * kKiB, 400 * kKiB);
  budget.join("a");
  CHECK(budget.window("a") == 0);
  CHECK(budget.raise("a") == 400 * kKiB);  // the largest window
  budget.join("b");
  budget.join("c");
  CHECK(budget.raise("b") == 1000 * kKiB / 3);
  CHECK(budget.raise("c") == 600 * kKiB - 1000 * kKiB / 3);  // what is left
  CHECK(budget.promised() == 1000 * kKiB);
  CHECK(budget.raise("a") == 400 * kKiB);  // more than its share now, but promised
  budget.arrived("a", 300 * kKiB);
  budget.enqueue(300 * kKiB);
  CHECK(budget.window("a") == 0);  // 100 KiB would not hold the largest rollout
  CHECK(budget.raise("a") == 0);   // nothing is free
  CHECK(budget.fits(0));
  CHECK_FALSE(budget.fits(1));  // of one that sends beyond its window
  budget.dequeue(300 * kKiB);
  CHECK(budget.is_low("a"));
  CHECK(budget.raise("a") == 1000 * kKiB / 3);
  budget.release("b");
  CHECK(budget.window("b") == 0);
  budget.leave("c");
  CHECK(budget.promised() == 1000 * kKiB / 3);
  CHECK(budget.peak() == 1000 * kKiB);
  CHECK_THROWS_AS(ByteBudget(0, 1), std::invalid_argument);
}

TEST_CASE("one rollout larger than all the memory goes alone", "[flow]") {
  ByteBudget budget(100, 50);
  budget.join("a");
  CHECK(budget.fits(101));
  budget.enqueue(1);
  CHECK_FALSE(budget.fits(101));
  CHECK(budget.fits(99));
}

Rollout sized_rollout(int64_t group, int32_t sample, int32_t size, std::size_t tokens) {
  Rollout r;
  r.rollout_id = std::to_string(group) + "/" + std::to_string(sample);
  r.group_id = group;
  r.group_size = size;
  r.sample_index = sample;
  r.prompt_ids = {1};
  r.completion_ids.assign(tokens, 7);
  r.logprobs.assign(tokens, -1.0F);
  r.versions = {{0, 0, static_cast<int64_t>(tokens)}};
  r.trainer_term = 1;
  return r;
}

// A worker by the book that sends as soon as it may: it keeps what it has made until its window
// takes it.
struct Eager {
  std::string id;
  int64_t window = 0;
  int64_t unacked = 0;
  std::deque<Rollout> made;
};

class Crowd {
 public:
  Crowd(int workers, int64_t budget)
      : trainer_([&] {
          TrainerOptions o = trainer_options(dir_);
          o.max_queued_bytes = static_cast<uint64_t>(budget);
          return o;
        }()) {
    trainer_.publish(0);
    for (int i = 0; i < workers; ++i) {
      workers_.push_back({"w" + std::to_string(i), 0, 0, {}});
      trainer_.bring_in(workers_.back().id, 0, 64);
    }
  }
  DirectTrainer& trainer() { return trainer_; }
  std::vector<Eager>& workers() { return workers_; }

  // Reads what the trainer said to the worker and does what it asks for.
  void read(Eager& worker, std::mt19937& rng) {
    Session& session = trainer_.state().sessions().at(worker.id + "/1");
    std::deque<Outgoing> messages = std::exchange(session.outbox, {});
    for (const Outgoing& out : messages) {
      std::vector<Frame> frames = {std::as_bytes(std::span(out.header))};
      for (const Buffer& buffer : out.payload.buffers) {
        frames.push_back(buffer.bytes);
      }
      const auto message = parse_message(frames, {}).value();
      if (out.payload.type == MessageType::kWelcome) {
        worker.window = message.body<WelcomeBody>().value().window_bytes;
      } else if (out.payload.type == MessageType::kAck) {
        const auto ack = message.body<AckBody>().value();
        CHECK(ack.status == "ACCEPTED");
        worker.unacked -= sizes_.at(ack.rollout_id);
        worker.window = ack.window_bytes;
      } else if (out.payload.type == MessageType::kCredit) {
        const auto credit = message.body<CreditBody>().value();
        worker.window = credit.window_bytes;
        for (const Grant& g : credit.groups) {
          for (const int32_t s : g.sample_indices) {
            worker.made.push_back(sized_rollout(g.group_id, s, g.group_size, 1 + rng() % 4000));
            sizes_[worker.made.back().rollout_id] =
                static_cast<int64_t>(wire_bytes(worker.made.back()));
          }
        }
      }
    }
  }
  // True when the worker may send its next rollout, which is then on its way.
  bool send(Eager& worker) {
    if (worker.made.empty() || worker.window == 0) {
      return false;
    }
    const int64_t bytes = sizes_.at(worker.made.front().rollout_id);
    if (worker.unacked > 0 && worker.unacked + bytes > worker.window) {
      return false;
    }
    worker.unacked += bytes;
    trainer_.say(worker.id, encode_rollout(worker.made.front()));
    worker.made.pop_front();
    return true;
  }

 private:
  TempDir dir_;
  DirectTrainer trainer_;
  std::vector<Eager> workers_;
  std::map<std::string, int64_t> sizes_;
};

TEST_CASE("eight workers that send as fast as they may stay within the trainer's memory",
          "[flow]") {
  for (const int64_t budget : {300 * kKiB, 2000 * kKiB}) {
    for (uint32_t seed = 0; seed < 4; ++seed) {
      std::mt19937 rng(seed);
      Crowd crowd(8, budget);
      crowd.trainer().grant(groups(0, 60, 8, 0));
      uint64_t collected = 0;
      for (int round = 0; collected < 480 && round < 200000; ++round) {
        Eager& worker = crowd.workers()[rng() % 8];
        crowd.read(worker, rng);
        while (crowd.send(worker) && rng() % 4 != 0) {
        }
        // A trainer that is slower than they are.
        if (rng() % 8 == 0 && crowd.trainer().state().collect()) {
          collected = crowd.trainer().state().counters().accepted;
        }
        if (round % 50 == 0) {
          crowd.trainer().heartbeat(worker.id, "ready", 0,
                                    static_cast<int64_t>(worker.made.size()));
        }
        const BridgeCounters c = crowd.trainer().state().counters();
        REQUIRE(c.queued_bytes + c.promised_bytes <= static_cast<uint64_t>(budget));
      }
      const BridgeCounters c = crowd.trainer().state().counters();
      CHECK(collected == 480);
      CHECK(c.busy == 0);
      CHECK(c.peak_bytes <= static_cast<uint64_t>(budget));
      CHECK(2 * c.peak_bytes > static_cast<uint64_t>(budget));  // it was used
    }
  }
}

TEST_CASE("a trainer whose queue fills up closes the windows and opens them again", "[flow]") {
  std::mt19937 rng(1);
  Crowd crowd(2, 300 * kKiB);
  crowd.trainer().grant(groups(0, 20, 8, 0));
  const auto send_all = [&] {
    for (bool any = true; any;) {
      any = false;
      for (Eager& worker : crowd.workers()) {
        crowd.read(worker, rng);
        any = crowd.send(worker) || any;
      }
    }
  };
  send_all();
  for (const Eager& worker : crowd.workers()) {
    CHECK((worker.made.empty() || worker.window < 64 * kKiB));
  }
  const uint64_t full = crowd.trainer().state().counters().accepted;
  CHECK(full > 4);
  CHECK(full < 160);
  while (crowd.trainer().state().collect()) {
    send_all();
  }
  CHECK(crowd.trainer().state().counters().accepted == 160);
  CHECK(crowd.trainer().state().counters().busy == 0);
}

TEST_CASE("no work goes to a worker without room for what comes of it", "[flow]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.max_queued_bytes = 100 * kKiB;  // a first window is 64 KiB
  DirectTrainer trainer(options);
  trainer.publish(0);
  trainer.bring_in("a", 0);
  trainer.bring_in("b", 0);
  trainer.grant(groups(0, 2, 4, 0));
  const auto in_flight = [&] {
    const auto workers = trainer.state().workers();
    return std::pair(workers.at(0).in_flight_samples, workers.at(1).in_flight_samples);
  };
  CHECK(in_flight() == std::pair<int64_t, int64_t>(4, 0));
  trainer.say("a", make_payload(MessageType::kBye, EndBody{""}));
  CHECK(in_flight() == std::pair<int64_t, int64_t>(0, 4));
}

TEST_CASE("a worker that holds all the work it takes learns when its window opens", "[flow]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.max_queued_bytes = 64 * kKiB;
  DirectTrainer trainer(options);
  trainer.publish(0);
  trainer.bring_in("a", 0, 4);
  trainer.grant(groups(0, 1, 4, 0));
  const AckBody ack = trainer.deliver("a", sized_rollout(0, 0, 4, 4000));
  CHECK(ack.status == "ACCEPTED");
  CHECK(ack.window_bytes == 0);  // the queue holds half of all there is
  trainer.heartbeat("a", "paused");
  REQUIRE(trainer.state().collect());
  const auto credits = trainer.bodies<CreditBody>("a", MessageType::kCredit);
  REQUIRE(credits.size() == 1);
  CHECK(credits[0].groups.empty());
  CHECK(credits[0].window_bytes == 64 * kKiB);
}

// A client that knows only WELCOME's window: the queue's bound holds by BUSY, and all arrives.
TEST_CASE("a worker that ignores windows is held by BUSY", "[flow]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.max_queued_bytes = 200 * kKiB;
  DirectTrainer trainer(options);
  trainer.publish(0);
  trainer.bring_in("old", 0, 64);
  trainer.grant(groups(0, 1, 32, 0));
  int accepted = 0, busy = 0;
  for (int32_t sample = 0; sample < 32; ++sample) {
    const Rollout r = sized_rollout(0, sample, 32, 2000);
    while (trainer.deliver("old", r).status == "BUSY") {
      ++busy;
      REQUIRE(trainer.state().counters().queued_bytes <= options.max_queued_bytes);
      REQUIRE(trainer.state().collect());
    }
    ++accepted;
  }
  CHECK(accepted == 32);
  CHECK(busy > 0);
  CHECK(trainer.state().counters().accepted == 32);
}

// Over sockets, the C++ endpoint: with hardly any memory everything arrives, and BUSY is never
// said.
TEST_CASE("endpoints keep to the windows they are told", "[flow][endpoint]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.max_queued_bytes = 200 * kKiB;
  TestTrainer trainer(options);
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  std::vector<std::unique_ptr<TestWorker>> workers;
  for (int i = 0; i < 8; ++i) {
    workers.push_back(std::make_unique<TestWorker>(trainer.rollout_address(),
                                                   "w" + std::to_string(i), Habit{.tokens = 3000}));
  }
  REQUIRE(trainer.wait_for_commit(0, 8, kPatience));
  trainer.grant(groups(0, 40, 4, 0));
  CHECK(collect(trainer, 160).size() == 160);
  const BridgeCounters counters = trainer.counters();
  CHECK(counters.busy == 0);
  CHECK(counters.peak_bytes <= options.max_queued_bytes);
  CHECK(counters.accepted == 160);
}

TEST_CASE("a rollout counts with the bytes of all its frames", "[flow]") {
  bool routed = false;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Rollout r = make_rollout(seed, 1, 2, seed);
    uint64_t bytes = 0;
    const Payload payload = encode_rollout(r);
    for (const FrameSpec& spec : payload.specs) {
      bytes += spec.bytes;
    }
    INFO(seed);
    CHECK(wire_bytes(r) == bytes);
    routed = routed || !r.routed_experts.empty();
  }
  CHECK(routed);
}

TEST_CASE("a rollout that no message holds is refused", "[flow]") {
  const Rollout r = make_rollout(1, 0, 2, 1);
  Limits limits;
  limits.max_message_bytes = limits.max_header_bytes + wire_bytes(r);
  CHECK(validate(r, limits).ok());
  --limits.max_message_bytes;
  CHECK_FALSE(validate(r, limits).ok());
}

}  // namespace
}  // namespace ringside::bridge
