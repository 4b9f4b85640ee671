// Guards how work is shared out: several workers get fair shares, none idles while work waits, a
// worker that does not answer loses its samples to others, and the largest step fits into messages
// that the worker can read.
#include <catch2/catch.hpp>
#include <random>

#include "tests/rollout_bridge/started_trainer.h"

namespace ringside::bridge {
namespace {

using namespace test;
using std::chrono::milliseconds;
using Samples = std::set<std::pair<int64_t, int32_t>>;

TEST_CASE("workers that are ready share a step in proportion to their capacity", "[grants]") {
  StartedTrainer trainer({{"a", 256}, {"b", 256}, {"c", 512}});
  trainer.grant(groups(0, 32, 8, 0));
  CHECK(trainer.in_flight("a") == 64);
  CHECK(trainer.in_flight("b") == 64);
  CHECK(trainer.in_flight("c") == 128);
  Samples all;
  for (const std::string worker : {"a", "b", "c"}) {
    const Samples samples = trainer.take_credits(worker);
    std::map<int64_t, int> of_group;
    for (const auto& [group, sample] : samples) {
      ++of_group[group];
    }
    for (const auto& [group, count] : of_group) {
      CHECK(count == 8);  // whole groups
    }
    all.insert(samples.begin(), samples.end());
  }
  CHECK(all.size() == 256);
}

// In synchronous training every worker installs each version at its own time: the first one that is
// ready must not take what the others would work on a moment later.
TEST_CASE("the share of a worker that still takes the weights is kept for it", "[grants]") {
  StartedTrainer trainer({{"a", 64}, {"b", 64}});
  trainer.publish(1);
  trainer.grant(groups(0, 8, 8, 1));
  CHECK(trainer.in_flight("a") + trainer.in_flight("b") == 0);
  trainer.commit("a", 1);
  trainer.ready("a", 1);
  CHECK(trainer.in_flight("a") == 32);
  SECTION("it comes and finds half of the step") {
    trainer.commit("b", 1);
    trainer.ready("b", 1);
    CHECK(trainer.in_flight("b") == 32);
  }
  SECTION("it does not come: the other one does not idle") {
    Samples work = trainer.take_credits("a");
    int done = 0;
    for (; done < 64; ++done) {
      REQUIRE_FALSE(work.empty());
      const auto [group, sample] = *work.begin();
      work.erase(work.begin());
      trainer.say("a", encode_rollout(rollout_under(1, group, sample, 8)));
      work.merge(trainer.take_credits("a"));
    }
    CHECK(trainer.state().counters().accepted == 64);
  }
}

TEST_CASE("a worker that joins in the middle of a step gets a share of what waits", "[grants]") {
  StartedTrainer trainer({{"a", 8}});
  trainer.grant(groups(0, 8, 4, 0));
  CHECK(trainer.in_flight("a") == 8);
  trainer.bring_in("b", 0, 16);
  CHECK(trainer.in_flight("a") == 8);
  CHECK(trainer.in_flight("b") == 16);
  CHECK(trainer.take_credits("a") ==
        Samples{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 0}, {1, 1}, {1, 2}, {1, 3}});
}

TEST_CASE("a group that is larger than a worker's capacity is sampled in parts", "[grants]") {
  StartedTrainer trainer({{"a", 4}});
  trainer.grant(groups(0, 1, 10, 0));
  CHECK(trainer.in_flight("a") == 4);
  trainer.bring_in("b", 0, 3);
  CHECK(trainer.in_flight("b") == 3);
  const Samples first = trainer.take_credits("a");
  REQUIRE(first.size() == 4);
  for (const auto& [group, sample] : first) {
    CHECK(trainer.deliver("a", rollout_under(0, group, sample, 10)).status == "ACCEPTED");
    CHECK(trainer.in_flight("a") <= 4);
  }
  CHECK(trainer.in_flight("a") == 3);  // the last three of the group
}

TEST_CASE("fewer groups than workers are split over them", "[grants]") {
  StartedTrainer trainer({});
  for (const std::string worker : {"a", "b", "c", "d"}) {
    trainer.bring_in(worker, 0, 16);
  }
  trainer.grant(groups(0, 1, 8, 0));
  for (const std::string worker : {"a", "b", "c", "d"}) {
    CHECK(trainer.in_flight(worker) == 2);
  }
}

// Workers of different size and speed, some of which come late.
TEST_CASE("no ready worker idles while work waits, and none is given more than it takes",
          "[grants]") {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 rng(seed);
    const TempDir dir;
    DirectTrainer trainer(trainer_options(dir));
    trainer.publish(0);
    std::map<std::string, int64_t> capacity;
    const auto join = [&] {
      const std::string id = "w" + std::to_string(capacity.size());
      capacity[id] = 1 + static_cast<int64_t>(rng() % 40);
      trainer.bring_in(id, 0, capacity[id]);
    };
    join();
    const int32_t size = 1 + static_cast<int32_t>(rng() % 12);
    trainer.grant(groups(0, 40, size, 0));
    const int64_t total = 40 * size;
    std::map<std::string, Samples> held;
    for (int64_t done = 0; done < total;) {
      if (rng() % 20 == 0 && capacity.size() < 5) {
        join();
      }
      int64_t in_flight = 0;
      for (const auto& [id, most] : capacity) {
        held[id].merge(trainer.take_credits(id));
        REQUIRE(trainer.in_flight(id) == static_cast<int64_t>(held[id].size()));
        REQUIRE(trainer.in_flight(id) <= most);
        in_flight += trainer.in_flight(id);
      }
      if (done + in_flight < total) {
        for (const auto& [id, most] : capacity) {
          REQUIRE(trainer.in_flight(id) > 0);
        }
      }
      auto worker = held.begin();
      std::advance(worker, rng() % held.size());
      if (worker->second.empty()) {
        continue;
      }
      const auto [group, sample] = *worker->second.begin();
      worker->second.erase(worker->second.begin());
      trainer.say(worker->first, encode_rollout(rollout_under(0, group, sample, size)));
      ++done;
    }
    CHECK(trainer.state().counters().accepted == static_cast<uint64_t>(total));
    CHECK(trainer.state().counters().duplicate == 0);
  }
}

void be_patient(TrainerOptions& options) {
  options.worker_timeout = milliseconds(100000000);
  options.assignment_timeout = milliseconds(5000);
}

TEST_CASE("a worker that heartbeats and never answers loses its samples to another", "[grants]") {
  StartedTrainer trainer({{"mute", 8}, {"good", 8}}, be_patient);
  trainer.grant(groups(0, 2, 4, 0));
  const Samples lost = trainer.take_credits("mute");
  REQUIRE(lost.size() == 4);
  for (const auto& [group, sample] : trainer.take_credits("good")) {
    REQUIRE(trainer.deliver("good", rollout_under(0, group, sample, 4)).status == "ACCEPTED");
  }
  trainer.advance(milliseconds(4900));
  trainer.heartbeat("mute", "ready");
  trainer.tick();
  CHECK(trainer.in_flight("mute") == 4);
  CHECK(trainer.events_with("has not answered") == 0);
  trainer.advance(milliseconds(200));
  trainer.tick();
  CHECK(trainer.in_flight("mute") == 0);
  CHECK(trainer.take_credits("good") == lost);
  CHECK(trainer.events_with("worker mute has not answered for 4 samples") == 1);
  CHECK(trainer.state().counters().reassigned == 4);
  // Until it answers it gets nothing while another worker is ready.
  trainer.grant(groups(2, 4, 4, 0));
  CHECK(trainer.in_flight("mute") == 0);
  CHECK(trainer.in_flight("good") == 8);
  // Late, and first: it counts, and the worker takes part again.
  const auto [group, sample] = *lost.begin();
  CHECK(trainer.deliver("mute", rollout_under(0, group, sample, 4)).status == "ACCEPTED");
  CHECK(trainer.in_flight("mute") == 8);
  CHECK(trainer.deliver("good", rollout_under(0, group, sample, 4, 2)).status == "DUPLICATE");
  CHECK(trainer.state_of("mute") == "ready");
}

TEST_CASE("the only worker keeps work that is overdue, and the log says so", "[grants]") {
  StartedTrainer trainer({{"slow", 8}}, be_patient);
  trainer.grant(groups(0, 1, 4, 0));
  REQUIRE(trainer.take_credits("slow").size() == 4);
  trainer.advance(milliseconds(5100));
  for (int again = 0; again < 3; ++again) {
    trainer.tick();
  }
  CHECK(trainer.events_with("no other worker is ready") == 1);
  CHECK(trainer.in_flight("slow") == 4);
  CHECK(trainer.take_credits("slow").empty());
  CHECK(trainer.state().counters().reassigned == 0);
  trainer.advance(milliseconds(5100));
  trainer.tick();
  CHECK(trainer.events_with("no other worker is ready") == 1);
  trainer.bring_in("other", 0, 8);  // who could have sampled it comes at last
  trainer.tick();
  CHECK(trainer.in_flight("slow") == 0);
  CHECK(trainer.take_credits("other").size() == 4);
  CHECK(trainer.state().counters().reassigned == 4);
}

// Answers what the worker was granted: every sample, by rollouts that keep the rules.
std::size_t answer(StartedTrainer& trainer, const std::string& worker, int32_t size) {
  const Samples samples = trainer.take_credits(worker);
  for (const auto& [group, sample] : samples) {
    trainer.say(worker, encode_rollout(rollout_under(0, group, sample, size)));
  }
  return samples.size();
}

Samples withdrawn_from(DirectTrainer& trainer, const std::string& worker) {
  Samples samples;
  for (const CreditBody& credit : trainer.bodies<CreditBody>(worker, MessageType::kCredit)) {
    for (const Withdrawal& group : credit.withdrawn) {
      for (const int32_t sample : group.sample_indices) {
        samples.insert({group.group_id, sample});
      }
    }
  }
  return samples;
}

TEST_CASE("an idle worker takes over late samples, half of them at a time", "[grants]") {
  StartedTrainer trainer({{"fast", 32}, {"slow", 32}}, be_patient);
  trainer.grant(groups(0, 8, 4, 0));
  const Samples of_slow = trainer.take_credits("slow");
  REQUIRE(of_slow.size() == 16);
  trainer.advance(milliseconds(100));
  REQUIRE(answer(trainer, "fast", 4) == 16);
  trainer.advance(milliseconds(90));
  trainer.tick();
  CHECK(trainer.in_flight("fast") == 0);  // twice its own time has not passed
  for (const int64_t expected : {8, 4, 2, 1, 1}) {
    trainer.advance(milliseconds(20));
    trainer.tick();
    CHECK(trainer.in_flight("fast") == expected);
    const Samples withdrawn = withdrawn_from(trainer, "slow");
    CHECK(withdrawn.size() == static_cast<std::size_t>(expected));
    CHECK(std::includes(of_slow.begin(), of_slow.end(), withdrawn.begin(), withdrawn.end()));
    CHECK(answer(trainer, "fast", 4) == static_cast<std::size_t>(expected));
  }
  CHECK(trainer.state().counters().accepted == 32);
  CHECK(trainer.state().counters().taken_over == 16);
  // What the slow worker had begun comes too late and does no harm.
  const auto [group, sample] = *of_slow.begin();
  CHECK(trainer.deliver("slow", rollout_under(0, group, sample, 4, 2)).status == "DUPLICATE");
}

TEST_CASE("of two rollouts of a sample that was taken over the first counts", "[grants]") {
  StartedTrainer trainer({{"fast", 4}, {"slow", 4}}, be_patient);
  trainer.grant(groups(0, 2, 4, 0));
  trainer.advance(milliseconds(100));
  REQUIRE(answer(trainer, "fast", 4) == 4);
  trainer.advance(milliseconds(200));
  trainer.tick();
  const Samples taken = trainer.take_credits("fast");
  REQUIRE(taken.size() == 2);
  const auto [group, sample] = *taken.begin();
  CHECK(trainer.deliver("slow", rollout_under(0, group, sample, 4)).status == "ACCEPTED");
  CHECK(trainer.in_flight("fast") == 1);
  CHECK(trainer.deliver("fast", rollout_under(0, group, sample, 4, 2)).status == "DUPLICATE");
}

TEST_CASE("a worker that lost late samples gets smaller shares while it is slower", "[grants]") {
  StartedTrainer trainer({{"fast", 128}, {"slow", 128}}, be_patient);
  std::vector<int64_t> shares;
  for (int64_t step = 0; step < 12; ++step) {
    trainer.grant(groups(16 * step, 16, 4, 0));
    shares.push_back(trainer.in_flight("slow"));
    Samples held = trainer.take_credits("slow");
    const auto all = static_cast<uint64_t>(64 * (step + 1));
    for (int round = 0; trainer.state().counters().accepted < all && round < 1000; ++round) {
      trainer.advance(milliseconds(100));
      answer(trainer, "fast", 4);  // any number of samples in 100 ms
      if (!held.empty()) {         // one sample in 100 ms
        const auto [group, sample] = *held.begin();
        held.erase(held.begin());
        trainer.say("slow", encode_rollout(rollout_under(0, group, sample, 4)));
      }
      trainer.tick();
    }
    REQUIRE(trainer.state().counters().accepted == all);
    (void)trainer.take_credits("slow");
  }
  CHECK(shares.front() == 32);
  CHECK(shares.back() <= 8);
  CHECK(shares.back() >= 1);
}

TEST_CASE("a sample is left with its worker as long as others need for theirs", "[grants]") {
  StartedTrainer trainer({{"a", 4}, {"b", 4}}, be_patient);
  trainer.grant(groups(0, 2, 4, 0));
  trainer.advance(milliseconds(1000));
  REQUIRE(answer(trainer, "a", 4) == 4);
  trainer.advance(milliseconds(900));
  trainer.tick();
  CHECK(trainer.in_flight("b") == 4);
  CHECK(answer(trainer, "b", 4) == 4);
  CHECK(trainer.state().counters().taken_over == 0);
}

// It may have lost what it had in hand, and has nothing to send that would prove it well.
TEST_CASE("a worker that was passed over gets work again when the one in its place does not answer",
          "[grants]") {
  StartedTrainer trainer({{"a", 4}}, be_patient);
  trainer.grant(groups(0, 1, 4, 0));
  REQUIRE(trainer.take_credits("a").size() == 4);
  trainer.bring_in("b", 0, 4);
  trainer.advance(milliseconds(5100));
  trainer.tick();
  REQUIRE(trainer.take_credits("b").size() == 4);
  trainer.grant(groups(1, 1, 4, 0));
  CHECK(trainer.in_flight("a") == 0);
  trainer.advance(milliseconds(5100));
  trainer.tick();
  CHECK(trainer.take_credits("a").size() == 4);
  CHECK(trainer.in_flight("b") == 0);
}

// All that is said to a worker must parse under the limits that both sides have.
TEST_CASE("a step of 16,384 prompts with 64 samples each goes out in messages that can be read",
          "[grants]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.max_queued_rollouts = 2 << 20;  // what a run of such steps asks for
  DirectTrainer trainer(options);
  trainer.publish(0);
  trainer.bring_in("a", 0, 1 << 20);
  trainer.grant(groups(0, 16384, 64, 0));
  CHECK(trainer.in_flight("a") == 1 << 20);
  const Session& session = trainer.state().sessions().at("a/1");
  for (const Outgoing& out : session.outbox) {
    REQUIRE(out.header.size() <= options.limits.max_header_bytes);
  }
  CHECK(session.outbox.size() < 256);  // far below what a worker may let pile up
  CHECK(trainer.take_credits("a").size() == 1 << 20);
}

TEST_CASE("groups of the largest size fit into messages as well", "[grants]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.max_queued_rollouts = 1 << 20;
  DirectTrainer trainer(options);
  trainer.publish(0);
  trainer.bring_in("a", 0, 1 << 16);
  trainer.grant(groups(0, 16, options.limits.max_group_size, 0));
  CHECK(trainer.take_credits("a").size() == 1 << 16);
}

TEST_CASE("a frame 0 that is too long is an error where it is made", "[grants]") {
  CreditBody credit;
  for (int64_t g = 0; g < 2000; ++g) {
    credit.groups.push_back({g, 4, 0, 0, {0, 1, 2, 3}});
  }
  const Payload payload = make_payload(MessageType::kCredit, credit);
  CHECK_THROWS_WITH(pack_header({payload.type, "run", 1, "a", 1, 1}, payload),
                    Catch::Contains("CREDIT") && Catch::Contains("65536"));
}

TEST_CASE("a worker may offer twice the largest step", "[grants]") {
  const TempDir dir;
  DirectTrainer trainer(trainer_options(dir));
  trainer.hello("two-steps", 1 << 21);
  CHECK(trainer.state_of("two-steps") == "join");
  trainer.hello("more", (1 << 24) + 1);
  CHECK(trainer.state_of("more").empty());
}

}  // namespace
}  // namespace ringside::bridge
