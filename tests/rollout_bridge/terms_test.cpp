// Guards who may say what: a session is one worker under one routing id, rollouts of an earlier
// trainer start count only if that start is known and asked for them, and what is refused is
// refused before it is journalled and without harm to anybody else's work.
#include <catch2/catch.hpp>
#include <fstream>

#include "tests/rollout_bridge/started_trainer.h"

namespace ringside::bridge {
namespace {

using namespace test;

// The next ERROR for a peer without a session; an empty one when there is none.
ErrorBody next_error(DirectTrainer& trainer) {
  auto& strays = trainer.state().strays();
  if (strays.empty()) {
    return {};
  }
  const Outgoing out = strays.front().second;
  strays.pop_front();
  const Frame frame = std::as_bytes(std::span(out.header));
  return parse_message(std::span(&frame, 1), {}).value().body<ErrorBody>().value();
}

Payload hello_of(int64_t capacity) {
  return make_payload(MessageType::kHello, HelloBody{capacity, -1, -1, "", "direct", 0});
}

TEST_CASE("HELLO under a routing id that names another worker is refused", "[terms]") {
  StartedTrainer trainer({{"a", 32}});
  trainer.grant(groups(0, 8, 4, 0));
  REQUIRE(trainer.in_flight("a") == 32);
  const std::vector<Header> strangers = {{MessageType::kHello, "run", 1, "b", 1, 1},
                                         {MessageType::kHello, "run", 1, "a", 2, 1}};
  for (const Header& header : strangers) {
    trainer.say_as("a/1", header, hello_of(4));
    const ErrorBody error = next_error(trainer);
    CHECK(error.reason == "invalid_field");
    CHECK(error.fatal);
    CHECK(error.detail.find("a/1") != std::string::npos);
    CHECK(trainer.state_of("a") == "ready");  // its session is as it was
    CHECK(trainer.state().sessions().size() == 1);
  }
  trainer.state().on_unreachable("a/1");
  trainer.bring_in("c", 0, 32);
  CHECK(trainer.in_flight("c") == 32);  // nothing is orphaned
}

TEST_CASE(
    "a message under another worker's name ends the session, and its samples are asked for anew",
    "[terms]") {
  StartedTrainer trainer({{"a", 4}});
  trainer.grant(groups(0, 1, 4, 0));
  REQUIRE(trainer.in_flight("a") == 4);
  trainer.say_as("a/1", {MessageType::kHeartbeat, "run", 1, "b", 1, 4},
                 make_payload(MessageType::kHeartbeat, HeartbeatBody{"ready", 0, 0, 0, 0}));
  CHECK(next_error(trainer).reason == "invalid_field");
  trainer.bring_in("c", 0, 4);
  CHECK(trainer.in_flight("c") == 4);
}

TEST_CASE("a second HELLO on the same connection starts the session anew", "[terms]") {
  StartedTrainer trainer({{"a", 4}});
  trainer.grant(groups(0, 1, 4, 0));
  REQUIRE(trainer.take_credits("a").size() == 4);
  trainer.hello("a");
  CHECK(trainer.state_of("a") == "sync");
  CHECK(trainer.in_flight("a") == 0);
  const Outgoing& welcome = trainer.state().sessions().at("a/1").outbox.front();
  const Frame frame = std::as_bytes(std::span(welcome.header));
  CHECK(parse_message(std::span(&frame, 1), {}).value().header().seq == 1);
  trainer.commit("a", 0);
  trainer.ready("a", 0);
  CHECK(trainer.take_credits("a").size() == 4);
}

TrainerOptions options_of_start(const TempDir& dir, int64_t trainer_term,
                                std::map<int64_t, int64_t> newest_of_term = {}) {
  TrainerOptions options = trainer_options(dir);
  options.trainer_term = trainer_term;
  options.newest_of_term = std::move(newest_of_term);
  return options;
}

Rollout rollout_of_start(int64_t trainer_term, int64_t version, int64_t group, int32_t sample,
                         uint32_t seed = 1) {
  Rollout r = rollout_under(version, group, sample, 4, seed);
  r.trainer_term = trainer_term;
  return r;
}

TEST_CASE("a first start takes no rollout of an earlier one", "[terms]") {
  StartedTrainer trainer({{"a", 4}});
  trainer.grant(groups(0, 1, 4, 0));
  const uint64_t before = trainer.state().counters().journal_bytes;
  for (const int64_t group : {0, 7}) {
    const AckBody ack = trainer.deliver("a", rollout_of_start(0, 0, group, 0));
    CHECK(ack.status == "REJECTED");
    CHECK(ack.reason == "wrong_run");
  }
  CHECK(trainer.rejected(Reason::kWrongRun) == 2);
  CHECK(trainer.state().counters().accepted == 0);
  CHECK(trainer.state().counters().journal_bytes == before);
}

TEST_CASE("after a restart, only groups granted by the previous trainer are accepted", "[terms]") {
  const TempDir dir;
  {
    DirectTrainer first(options_of_start(dir, 1));
    first.publish(0);
    first.grant(groups(0, 2, 4, 0));
    first.grant(groups(int64_t{1} << 40, 1, 4, 0));
    first.state().checkpointed(1);  // of group 0
  }
  DirectTrainer second(options_of_start(dir, 2, {{1, 0}}));
  second.hello("a");
  CHECK(second.deliver("a", rollout_of_start(1, 0, 0, 0)).status == "DUPLICATE");
  CHECK(second.deliver("a", rollout_of_start(1, 0, 1, 0)).status == "ACCEPTED");
  CHECK(second.deliver("a", rollout_of_start(1, 0, int64_t{1} << 40, 0)).status == "ACCEPTED");
  const uint64_t before = second.state().counters().journal_bytes;
  const AckBody ack = second.deliver("a", rollout_of_start(1, 0, 2, 0));
  CHECK(ack.status == "REJECTED");
  CHECK(ack.reason == "unknown_group");
  CHECK(second.rejected(Reason::kUnknownGroup) == 1);
  CHECK(second.state().counters().journal_bytes == before);
}

TEST_CASE("a rollout of weights that a restart lost is refused alone, its group goes on",
          "[terms]") {
  const TempDir dir;
  {
    DirectTrainer first(options_of_start(dir, 1));
    first.publish(0);
    first.grant(groups(0, 1, 4, 0));
  }
  DirectTrainer second(options_of_start(dir, 2, {{1, 3}}));
  second.publish(3);
  second.bring_in("a", 3, 4);
  second.bring_in("b", 3, 4);
  second.grant(groups(0, 1, 4, 3));
  second.grant(groups(1, 1, 4, 3));
  const auto held = second.take_credits("a");
  REQUIRE(held.size() == 4);
  const int64_t group = held.begin()->first;
  CHECK(second.deliver("a", rollout_of_start(2, 3, group, 0)).status == "ACCEPTED");
  // Of group 0 by the other worker: newer than what survived, and older than what the group wants.
  const uint64_t before = second.state().counters().journal_bytes;
  for (const int64_t version : {4, 2}) {
    const AckBody ack = second.deliver("b", rollout_of_start(1, version, 0, 1));
    CHECK(ack.status == "STALE");
    CHECK(ack.reason == "stale");
  }
  CHECK(second.rejected(Reason::kStale) == 2);
  CHECK(second.state().counters().journal_bytes == before);
  CHECK(second.state().counters().accepted == 1);
  CHECK(second.in_flight("a") == 3);
  CHECK(second.deliver("b", rollout_of_start(1, 3, 0, 1)).status == "ACCEPTED");  // these survived
}

TEST_CASE("a rollout older than its group allows is asked for again, its siblings stay",
          "[terms]") {
  const TempDir dir;
  DirectTrainer trainer(options_of_start(dir, 1));
  for (const int64_t version : {0, 1, 2}) {
    trainer.publish(version);
  }
  trainer.bring_in("a", 2, 4);
  trainer.grant(groups(0, 1, 4, 1));
  REQUIRE(trainer.take_credits("a").size() == 4);
  CHECK(trainer.deliver("a", rollout_of_start(1, 1, 0, 0)).status == "ACCEPTED");
  Rollout mixed = rollout_of_start(1, 2, 0, 1);
  const auto length = static_cast<int64_t>(mixed.completion_ids.size());
  REQUIRE(length > 1);
  mixed.versions = {{0, 0, 1}, {2, 1, length}};
  trainer.say("a", encode_rollout(mixed));
  CHECK(trainer.take_credits("a") == std::set<std::pair<int64_t, int32_t>>{{0, 1}});
  CHECK(trainer.rejected(Reason::kStale) == 1);
  CHECK(trainer.state().counters().accepted == 1);
  CHECK(trainer.in_flight("a") == 3);
}

TEST_CASE("a journal's rollouts of lost weights or of an unknown start are not taken up",
          "[terms]") {
  const TempDir dir;
  {
    DirectTrainer first(options_of_start(dir, 1));
    for (const int64_t version : {0, 1}) {
      first.publish(version);
    }
    first.bring_in("a", 1, 8);
    first.grant(groups(0, 2, 4, 0));
    for (const int64_t version : {0, 1}) {
      REQUIRE(first.deliver("a", rollout_of_start(1, version, version, 0)).status == "ACCEPTED");
    }
  }
  {
    DirectTrainer second(options_of_start(dir, 2, {{1, 0}}));
    CHECK(second.events_with("1 rollouts of the journal") == 1);
    const auto taken = second.pop();
    REQUIRE(taken.has_value());
    CHECK(taken->group_id == 0);
    CHECK_FALSE(second.pop().has_value());
    second.publish(0);
    second.bring_in("a", 0, 8);
    second.grant(groups(0, 2, 4, 0));
    CHECK(second.take_credits("a").contains({1, 0}));  // sampled again
    CHECK(second.deliver("a", rollout_of_start(2, 0, 1, 0, 9)).status == "ACCEPTED");
  }
  DirectTrainer third(options_of_start(dir, 3, {{2, 0}}));  // of the first start nobody knows
  const auto taken = third.pop();
  REQUIRE(taken.has_value());
  CHECK(taken->trainer_term == 2);
  CHECK_FALSE(third.pop().has_value());
}

// What a later version of the program may read out of it is not cut down to what this one knows.
TEST_CASE("the journal holds a rollout's frames as they came", "[terms]") {
  const TempDir dir;
  Payload payload = encode_rollout(rollout_of_start(1, 0, 0, 0));
  payload.add("later", "U8", {5}, Buffer::own(std::vector<uint8_t>{'l', 'a', 't', 'e', 'r'}));
  {
    DirectTrainer trainer(options_of_start(dir, 1));
    trainer.publish(0);
    trainer.bring_in("a", 0, 4);
    trainer.grant(groups(0, 1, 4, 0));
    trainer.say("a", payload);
    REQUIRE(trainer.state().counters().accepted == 1);
  }
  const auto flat = flatten(pack_header({payload.type, "run", 1, "a", 1, 4}, payload), payload);
  std::ifstream in(dir.path() / "journal" / "journal.bin", std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  CHECK(file.find(std::string(flat.begin(), flat.end())) != std::string::npos);
  DirectTrainer next(options_of_start(dir, 2, {{1, 0}}));
  const auto replayed = next.pop();
  REQUIRE(replayed.has_value());
  CHECK(*replayed == rollout_of_start(1, 0, 0, 0));
}

// The other ranks of the trainer decode what the worker has encoded: nothing is encoded again.
TEST_CASE("a step's rollouts are taken as the bytes that came, also out of the journal",
          "[terms]") {
  const TempDir dir;
  Payload payload = encode_rollout(rollout_under(0, 0, 0, 1));
  payload.add("later", "U8", {5}, Buffer::own(std::vector<uint8_t>{'l', 'a', 't', 'e', 'r'}));
  const auto flat = flatten(pack_header({payload.type, "run", 1, "a", 1, 4}, payload), payload);
  {
    DirectTrainer trainer(options_of_start(dir, 1));
    trainer.publish(0);
    trainer.bring_in("a", 0, 4);
    trainer.grant(groups(0, 1, 1, 0));
    trainer.say("a", payload);
    CHECK(trainer.state().take(1) == std::vector<FlatRollout>{flat});
  }
  TrainerOptions again = options_of_start(dir, 2, {{1, 0}});
  again.policy = HandGrants(1).policy();
  DirectTrainer next(again);
  next.grant(groups(0, 1, 1, 0));
  CHECK(next.state().take(1) == std::vector<FlatRollout>{flat});
}

TEST_CASE("weights of long ago verify, and of a wrong root the truth is said", "[terms]") {
  const TempDir dir;
  DirectTrainer trainer(options_of_start(dir, 1));
  for (int64_t version = 0; version < 100; ++version) {
    trainer.publish(version);
  }
  trainer.hello("old");
  trainer.commit("old", 3);
  CHECK(trainer.state_of("old") == "sync");
  CHECK(trainer.events_with("quarantined") == 0);
  const std::string wrong(32, '0');
  trainer.say("old", make_payload(MessageType::kCommitted, WeightsBody{3, wrong}));
  CHECK(trainer.state_of("old") == "quarantined");
  CHECK(trainer.events_with("version 3 was published with root") == 1);
  trainer.say("old", make_payload(MessageType::kCommitted, WeightsBody{500, wrong}));
  CHECK(trainer.events_with("version 500 was never published") == 1);
}

// A ROLLOUT body with one field of another type.
struct MistypedBody {
  std::string rollout_id = "r";
  int64_t group_id = 0;
  int64_t sample_index = 2;
  std::string temperature = "hot";
  MSGPACK_DEFINE_MAP(rollout_id, group_id, sample_index, temperature);
};

TEST_CASE("a rollout whose body does not parse holds no sample for ever", "[terms]") {
  StartedTrainer trainer({{"a", 4}});
  trainer.grant(groups(0, 1, 4, 0));
  REQUIRE(trainer.take_credits("a").size() == 4);
  Payload broken = encode_rollout(rollout_of_start(1, 0, 0, 2));
  SECTION("it still names its sample") {
    broken.body = make_payload(MessageType::kRollout, MistypedBody{}).body;
    trainer.say("a", broken);
    const auto acks = trainer.bodies<AckBody>("a", MessageType::kAck);
    REQUIRE(acks.size() == 1);
    CHECK(acks[0].status == "REJECTED");
    CHECK(acks[0].reason == "malformed");
    CHECK(acks[0].rollout_id == "r");
    CHECK(trainer.in_flight("a") == 4);  // sample 2 is asked for again
    CHECK(trainer.deliver("a", rollout_of_start(1, 0, 0, 2)).status == "ACCEPTED");
  }
  SECTION("it names none: the sample that is left in the end is asked for again") {
    broken.body =
        make_payload(MessageType::kRollout, std::map<std::string, std::string>{{"group_id", "x"}})
            .body;
    trainer.say("a", broken);
    CHECK(trainer.take_credits("a").empty());
    for (int32_t sample = 0; sample < 3; ++sample) {
      trainer.say("a", encode_rollout(rollout_of_start(1, 0, 0, sample)));
    }
    CHECK(trainer.take_credits("a") == std::set<std::pair<int64_t, int32_t>>{{0, 3}});
    CHECK(trainer.deliver("a", rollout_of_start(1, 0, 0, 3)).status == "ACCEPTED");
  }
  CHECK(trainer.rejected(Reason::kMalformed) == 1);
}

}  // namespace
}  // namespace ringside::bridge
