// Guards the table of states in PROTOCOL.md: each transition, what it does to a worker's grants and
// which deadline holds; and that what a worker may not send is refused by a name that is counted.
#include <catch2/catch.hpp>

#include "tests/rollout_bridge/direct_trainer.h"

namespace ringside::bridge {
namespace {

using namespace test;
using std::chrono::milliseconds;

std::size_t granted(DirectTrainer& trainer, const std::string& worker) {
  std::size_t samples = 0;
  for (const auto& credit : trainer.bodies<CreditBody>(worker, MessageType::kCredit)) {
    for (const auto& group : credit.groups) {
      samples += group.sample_indices.size();
    }
  }
  return samples;
}

TEST_CASE("a worker walks from JOIN to BYE", "[states]") {
  const TempDir dir;
  DirectTrainer trainer(trainer_options(dir));
  trainer.hello("a");
  CHECK(trainer.state_of("a") == "join");
  trainer.ready("a", -1);  // nothing is installed
  CHECK(trainer.state_of("a") == "join");
  trainer.publish(0);
  CHECK(trainer.state_of("a") == "sync");
  trainer.ready("a", 0);   // not committed yet
  trainer.ready("a", -1);  // nothing is installed still
  CHECK(trainer.state_of("a") == "sync");
  trainer.commit("a", 0);
  CHECK(trainer.state_of("a") == "sync");
  trainer.grant(groups(0, 1, 4, 0));
  CHECK(granted(trainer, "a") == 0);
  trainer.ready("a", 0);
  CHECK(trainer.state_of("a") == "ready");
  CHECK(granted(trainer, "a") == 4);
  trainer.publish(1);
  CHECK(trainer.state_of("a") == "ready");  // works on while it stages
  trainer.commit("a", 1);
  CHECK(trainer.state_of("a") == "sync");
  trainer.ready("a", 1);
  CHECK(trainer.state_of("a") == "ready");
  CHECK(trainer.state().workers().at(0).version == 1);
  trainer.say("a", make_payload(MessageType::kBye, EndBody{"done"}));
  CHECK(trainer.state_of("a") == "bye");
  CHECK(trainer.bodies<EndBody>("a", MessageType::kBye).size() == 1);
  trainer.state().sweep();
  CHECK(trainer.state_of("a").empty());
  CHECK(trainer.state().counters().left_workers == 1);
  CHECK(trainer.state().counters().lost_workers == 0);
}

TEST_CASE("a worker that joins with the newest weights is in SYNC, with a later offer as well",
          "[states]") {
  const TempDir dir;
  DirectTrainer trainer(trainer_options(dir));
  trainer.publish(3);
  trainer.hello("a");
  CHECK(trainer.state_of("a") == "sync");  // an offer is out
  CHECK(trainer.bodies<WeightsBody>("a", MessageType::kWeightsOffer).size() == 1);
}

TEST_CASE("PAUSED keeps the grants, gets no more, and has a deadline of its own", "[states]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.worker_timeout = milliseconds(1000000);
  options.progress_timeout = milliseconds(2000);
  options.pause_timeout = milliseconds(60000);
  DirectTrainer trainer(options);
  trainer.publish(0);
  trainer.bring_in("a", 0, 8);
  trainer.grant(groups(0, 1, 4, 0));
  CHECK(granted(trainer, "a") == 4);
  trainer.heartbeat("a", "paused", 5000);  // its own code is silent: it waits for its server
  CHECK(trainer.state_of("a") == "paused");
  trainer.grant(groups(1, 1, 4, 0));
  CHECK(granted(trainer, "a") == 0);
  CHECK(trainer.state().workers().at(0).in_flight_samples == 4);
  CHECK(trainer.deliver("a", rollout_under(0, 0, 0, 4)).status == "ACCEPTED");
  trainer.heartbeat("a", "ready");
  CHECK(trainer.state_of("a") == "ready");
  CHECK(granted(trainer, "a") == 4);
  trainer.heartbeat("a", "paused");
  trainer.commit("a", 0);
  CHECK(trainer.state_of("a") == "sync");
  trainer.heartbeat("a", "paused");
  CHECK(trainer.state_of("a") == "sync");
  trainer.ready("a", 0);
  trainer.heartbeat("a", "paused");
  CHECK(trainer.state_of("a") == "paused");
  trainer.ready("a", 0);
  CHECK(trainer.state_of("a") == "ready");
  trainer.heartbeat("a", "paused");
  trainer.advance(options.pause_timeout / 2);
  trainer.tick();
  CHECK(trainer.state_of("a") == "paused");
  trainer.advance(options.pause_timeout);
  trainer.tick();
  CHECK(trainer.state_of("a").empty());
  CHECK(trainer.state().counters().lost_workers == 1);
}

TEST_CASE("QUARANTINED from every state that installs, and out by a commit that verifies",
          "[states]") {
  const TempDir dir;
  DirectTrainer trainer(trainer_options(dir));
  trainer.publish(0);
  trainer.grant(groups(0, 2, 4, 0));
  const std::string wrong(32, '0');
  for (const std::string from : {"sync", "ready", "paused"}) {
    trainer.hello(from);
    if (from != "sync") {
      trainer.commit(from, 0), trainer.ready(from, 0);
    }
    if (from == "paused") {
      trainer.heartbeat(from, "paused");
    }
    CHECK(trainer.state_of(from) == from);
    trainer.say(from, make_payload(MessageType::kCommitted, WeightsBody{0, wrong}));
    CHECK(trainer.state_of(from) == "quarantined");
    trainer.heartbeat(from, "ready");
    trainer.ready(from, 0);
    CHECK(trainer.state_of(from) == "quarantined");
    trainer.commit(from, 0);
    CHECK(trainer.state_of(from) == "sync");
    trainer.say(from, make_payload(MessageType::kStaged, StagedBody{0, wrong, "dense", 0}));
    CHECK(trainer.state_of(from) == "quarantined");
    trainer.say(from, make_payload(MessageType::kBye, EndBody{""}));
    trainer.state().sweep();
  }
}

TEST_CASE("workers come and go: BYE gives the groups back at once", "[states]") {
  const TempDir dir;
  DirectTrainer trainer(trainer_options(dir));
  trainer.publish(0);
  trainer.bring_in("a", 0);
  trainer.grant(groups(0, 1, 4, 0));
  REQUIRE(granted(trainer, "a") == 4);
  CHECK(trainer.deliver("a", rollout_under(0, 0, 2, 4)).status == "ACCEPTED");
  trainer.bring_in("b", 0);
  CHECK(granted(trainer, "b") == 0);
  trainer.say("a", make_payload(MessageType::kBye, EndBody{""}));
  trainer.tick();
  CHECK(granted(trainer, "b") == 3);                            // not the one that is here
  trainer.say("a", encode_rollout(rollout_under(0, 0, 0, 4)));  // after BYE it counts for nothing
  CHECK(trainer.state_of("a") == "bye");
  CHECK(trainer.state().counters().received == 1);
  trainer.hello("a");  // the answer still waits: the new session is in
  CHECK(trainer.state_of("a") == "sync");
  CHECK(trainer.state().counters().lost_workers == 0);
}

TEST_CASE("what a worker may not send is refused by name", "[states]") {
  const TempDir dir;
  DirectTrainer trainer(trainer_options(dir));
  trainer.publish(2);
  trainer.bring_in("a", 2);
  trainer.grant(groups(0, 1, 4, 0));
  REQUIRE(granted(trainer, "a") == 4);
  trainer.bring_in("b", 2);
  const auto refused = [&](const std::string& worker, const Rollout& r, Reason reason) {
    const uint64_t before = trainer.rejected(reason);
    const AckBody ack = trainer.deliver(worker, r);
    INFO(reason_name(reason));
    CHECK(ack.status == "REJECTED");
    CHECK(ack.reason == reason_name(reason));
    CHECK(ack.rollout_id == r.rollout_id);
    CHECK(trainer.rejected(reason) == before + 1);
  };
  refused("a", rollout_under(2, 7, 0, 4), Reason::kUnknownGroup);
  refused("b", rollout_under(2, 0, 0, 4), Reason::kNotGranted);
  CHECK(trainer.state().workers().at(0).in_flight_samples == 4);  // still a's
  refused("a", rollout_under(1, 0, 0, 4), Reason::kUnknownVersion);
  CHECK(granted(trainer, "a") == 0);  // deliver() has read it
  Rollout mixed = rollout_under(2, 0, 0, 4);
  const auto length = static_cast<int64_t>(mixed.completion_ids.size());
  REQUIRE(length > 1);
  mixed.versions = {{2, 0, 1}, {3, 1, length}};
  refused("a", mixed, Reason::kUnknownVersion);
  trainer.publish(3);
  CHECK(trainer.deliver("a", mixed).status == "ACCEPTED");
  Rollout future = rollout_under(2, 0, 1, 4);
  future.trainer_term = 2;
  refused("a", future, Reason::kWrongRun);
  CHECK(trainer.state().counters().accepted == 1);
}

// The sample of a rollout that is refused is asked for again, of the worker that held it only.
TEST_CASE("a refused rollout gives back its own worker's sample and no other's", "[states]") {
  const TempDir dir;
  DirectTrainer trainer(trainer_options(dir));
  trainer.publish(0);
  trainer.bring_in("a", 0);
  trainer.grant(groups(0, 1, 1, 0));
  REQUIRE(granted(trainer, "a") == 1);
  trainer.bring_in("b", 0);
  Payload broken = encode_rollout(rollout_under(0, 0, 0, 1));
  Rollout body = rollout_under(0, 0, 0, 1);
  body.temperature = 0;
  broken.body = make_payload(MessageType::kRollout, body).body;
  trainer.say("b", broken);
  CHECK(granted(trainer, "b") == 0);
  CHECK(granted(trainer, "a") == 0);
  CHECK(trainer.state().workers().at(0).in_flight_samples == 1);
  trainer.say("a", broken);
  CHECK(granted(trainer, "a") + granted(trainer, "b") == 1);
  CHECK(trainer.rejected(Reason::kInvalidField) == 2);
}

TEST_CASE("late rollouts of a worker that was given up are judged by what is missing", "[states]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.progress_timeout = milliseconds(2000);
  DirectTrainer trainer(options);
  trainer.publish(0);
  trainer.bring_in("a", 0);
  trainer.grant(groups(0, 1, 2, 0));
  REQUIRE(granted(trainer, "a") == 2);
  trainer.heartbeat("a", "ready", 1999);
  CHECK(trainer.state_of("a") == "ready");
  trainer.heartbeat("a", "ready", 2001);  // the thread lives, its code hangs
  CHECK(trainer.state_of("a").empty());
  trainer.bring_in("b", 0);
  REQUIRE(granted(trainer, "b") == 2);
  CHECK(trainer.deliver("b", rollout_under(0, 0, 0, 2, 2)).status == "ACCEPTED");
  trainer.hello("a");
  CHECK(trainer.deliver("a", rollout_under(0, 0, 0, 2)).status == "DUPLICATE");
  CHECK(trainer.deliver("a", rollout_under(0, 0, 1, 2)).status == "ACCEPTED");  // first of the two
  CHECK(trainer.deliver("b", rollout_under(0, 0, 1, 2, 2)).status == "DUPLICATE");
  CHECK(trainer.state().counters().accepted == 2);
}

// Over sockets: a worker whose code hangs while its thread lives.
TEST_CASE("a worker that hangs is given up, stays away, and comes back with its code",
          "[states][endpoint]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.progress_timeout = milliseconds(400);
  TestTrainer trainer(options);
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  WorkerEndpoint hanging(worker_options(trainer.rollout_address(), "hanging"));
  std::vector<Grant> work;
  trainer.grant(groups(0, 1, 2, 0));
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (work.empty() && std::chrono::steady_clock::now() < until) {
    const auto event = hanging.poll(milliseconds(20));
    if (!event) {
      continue;
    }
    if (const auto* ready = std::get_if<WeightsReady>(&*event)) {
      (void)hanging.commit_weights(0, root_hash_of(named(*ready->snapshot)));
    }
    if (const auto* granted = std::get_if<Granted>(&*event)) {
      work = granted->groups;
    }
  }
  REQUIRE(work.size() == 1);
  REQUIRE(eventually([&] { return trainer.counters().lost_workers == 1; }));  // nobody polls it
  TestWorker other(trainer.rollout_address(), "other");
  CHECK(collect(trainer, 2).size() == 2);
  // Without progress it has no time of a next connection (worker_state_test).
  REQUIRE(eventually(
      [&] { return hanging.report().why.find("lack of progress") != std::string::npos; }));
  CHECK(trainer.workers().size() == 1);
  CHECK(trainer.counters().lost_workers == 1);
  for (int32_t sample = 0; sample < 2; ++sample) {  // it wakes up
    REQUIRE(hanging.send_rollout(rollout_under(0, 0, sample, 2, 2), kPatience).ok());
  }
  CHECK(eventually([&] { return hanging.pending() == 0; }));
  CHECK(trainer.counters().duplicate == 2);
  CHECK_FALSE(trainer.pop(milliseconds(50)).has_value());
}

TEST_CASE("a paused endpoint gets no work until it resumes", "[states][endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  WorkerEndpoint worker(worker_options(trainer.rollout_address(), "a"));
  std::size_t samples = 0;
  const auto listen = [&](auto enough) {
    return eventually([&] {
      while (const auto event = worker.poll(milliseconds(5))) {
        if (const auto* ready = std::get_if<WeightsReady>(&*event)) {
          (void)worker.commit_weights(0, root_hash_of(named(*ready->snapshot)));
        }
        if (const auto* granted = std::get_if<Granted>(&*event)) {
          for (const auto& group : granted->groups) {
            samples += group.sample_indices.size();
          }
        }
      }
      return enough();
    });
  };
  const auto state = [&] {
    const auto workers = trainer.workers();
    return workers.empty() ? std::string() : workers.at(0).state;
  };
  REQUIRE(listen([&] { return state() == "ready"; }));
  worker.pause();
  REQUIRE(listen([&] { return state() == "paused"; }));
  trainer.grant(groups(0, 1, 2, 0));
  const auto later = std::chrono::steady_clock::now() + milliseconds(300);
  REQUIRE(listen([&] { return std::chrono::steady_clock::now() > later; }));
  CHECK(samples == 0);
  worker.resume();
  REQUIRE(listen([&] { return samples == 2; }));
  CHECK(state() == "ready");
}

TEST_CASE("a full journal means BUSY, said once, and nothing is lost", "[states]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.journal.max_bytes = 6000;
  DirectTrainer trainer(options);
  trainer.publish(0);
  trainer.bring_in("a", 0, 64);
  trainer.grant(groups(0, 32, 1, 0));
  int64_t taken = 0;
  while (trainer.deliver("a", rollout_under(0, taken, 0, 1)).status == "ACCEPTED") {
    ++taken;
  }
  REQUIRE(taken > 3);
  REQUIRE(taken < 32);
  for (int again = 0; again < 3; ++again) {
    CHECK(trainer.deliver("a", rollout_under(0, taken, 0, 1)).status == "BUSY");
  }
  CHECK(trainer.state().counters().journal_refused == 4);
  CHECK(trainer.state().counters().journal_bytes <= options.journal.max_bytes);
  trainer.state().checkpointed(taken);  // of a group each
  CHECK(trainer.deliver("a", rollout_under(0, taken, 0, 1)).status == "ACCEPTED");
  int waits = 0, goes_on = 0;
  for (const BridgeEvent& event : trainer.state().drain_events()) {
    waits += event.text.find("limit 6000") != std::string::npos ? 1 : 0;
    goes_on += event.text == "journal: takes rollouts again" ? 1 : 0;
  }
  CHECK(waits == 1);
  CHECK(goes_on == 1);
}

}  // namespace
}  // namespace ringside::bridge
