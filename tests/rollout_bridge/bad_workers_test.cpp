// Guards a run against workers that break the protocol: text that is not UTF-8, ids used twice,
// bodies that cannot be read, weights that are never staged, another protocol version. None of them
// may end the trainer, lose a sample or starve a worker that keeps the rules.
#include <catch2/catch.hpp>

#include "tests/rollout_bridge/started_trainer.h"

namespace ringside::bridge {
namespace {

using namespace test;
using std::chrono::milliseconds;
using Samples = std::set<std::pair<int64_t, int32_t>>;

constexpr const char* kNotUtf8 = "\xff\xfe";

void never_time_out(TrainerOptions& options) { options.worker_timeout = milliseconds(100000000); }

// The ROLLOUT of a valid rollout with its body changed, as a worker may send it.
template <class Change>
Payload spoiled(const Rollout& rollout, Change change) {
  Rollout body = rollout;
  change(body);
  Payload payload = encode_rollout(rollout);
  payload.body = make_payload(MessageType::kRollout, body).body;
  return payload;
}

// A ROLLOUT whose body names no group and no sample.
Payload nameless(const std::string& rollout_id) {
  Payload payload = encode_rollout(rollout_under(0, 0, 0, 4));
  payload.body = make_payload(MessageType::kRollout,
                              std::map<std::string, std::string>{{"rollout_id", rollout_id},
                                                                 {"group_id", "no number"},
                                                                 {"sample_index", "none"}})
                     .body;
  return payload;
}

AckBody answer_to(DirectTrainer& trainer, const std::string& worker, const Payload& payload) {
  (void)trainer.bodies<AckBody>(worker, MessageType::kAck);
  trainer.say(worker, payload);
  const auto acks = trainer.bodies<AckBody>(worker, MessageType::kAck);
  return acks.empty() ? AckBody{} : acks.back();
}

// The last ERROR that waits for a routing id without a session, or for one that was ended.
std::optional<ErrorBody> last_error(TrainerState& state) {
  std::optional<ErrorBody> found;
  for (const auto& [identity, out] : state.strays()) {
    const Frame frame = std::as_bytes(std::span(out.header));
    found = parse_message(std::span(&frame, 1), {}).value().body<ErrorBody>().value();
  }
  return found;
}

TEST_CASE("a rollout with text that is not UTF-8 is rejected and its sample is asked for again",
          "[bad-workers]") {
  StartedTrainer trainer({{"w", 4}});
  trainer.grant(groups(0, 1, 1, 0));
  const Rollout good = rollout_under(0, 0, 0, 1);
  std::string field;
  Payload payload;
  SECTION("rollout_id") {
    field = "rollout_id";
    payload = spoiled(good, [](Rollout& b) { b.rollout_id = kNotUtf8; });
  }
  SECTION("prompt_id") {
    field = "prompt_id";
    payload = spoiled(good, [](Rollout& b) { b.prompt_id = kNotUtf8; });
  }
  SECTION("the name of a reward") {
    field = "rewards";
    payload = spoiled(good, [](Rollout& b) { b.rewards[0].first = kNotUtf8; });
  }
  SECTION("finish_reason") {
    field = "finish_reason";
    payload = spoiled(good, [](Rollout& b) { b.finish_reason = FinishReason::kStop; });
    payload.body.replace(payload.body.find("stop"), 4, "\xff\xfe\xff\xfe");
  }
  const AckBody ack = answer_to(trainer, "w", payload);
  CHECK(ack.status == "REJECTED");
  CHECK(ack.reason == "invalid_field");
  CHECK(ack.detail.find(field) != std::string::npos);
  CHECK(ack.rollout_id == (field == "rollout_id" ? "" : good.rollout_id));
  CHECK(trainer.in_flight("w") == 1);
  for (const BridgeEvent& event : trainer.state().drain_events()) {
    CHECK(clip_text(event.text) == event.text);
  }
  CHECK(trainer.deliver("w", rollout_under(0, 0, 0, 1, 2)).status == "ACCEPTED");
}

TEST_CASE("a journal with text that is not UTF-8 starts, and the sample is made again",
          "[bad-workers]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  {
    Journal journal({{.directory = options.journal.directory}, "run"});
    const int64_t groups[] = {0};
    journal.grant(groups);
    const Payload payload =
        spoiled(rollout_under(0, 0, 0, 1), [](Rollout& b) { b.rewards[0].first = kNotUtf8; });
    const Header header{payload.type, "run", 1, "w", 1, 1};
    REQUIRE(journal.append(0, flatten(pack_header(header, payload), payload)).ok());
  }
  options.trainer_term = 2;
  options.newest_of_term = {{1, 100}};
  DirectTrainer trainer(options);
  CHECK(trainer.events_with("1 records hold no rollout") == 1);
  trainer.publish(0);
  trainer.bring_in("w", 0);
  trainer.grant(groups(0, 1, 1, 0));
  CHECK(trainer.take_credits("w") == Samples{{0, 0}});
}

// Found by the simulator: no checkpoint came, because no rollout was accepted.
TEST_CASE("rollouts of lost weights make room in a journal with a limit", "[bad-workers]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.journal.max_bytes = 12000;
  const auto fill = [&](int64_t term) {
    DirectTrainer trainer(options);
    trainer.publish(0);
    trainer.bring_in("w", 0, 64);
    trainer.grant(groups(0, 16, 4, 0));
    for (const auto& [group, sample] : trainer.take_credits("w")) {
      Rollout r = rollout_under(0, group, sample, 4);
      r.rollout_id.append("-").append(std::to_string(term));
      r.trainer_term = term;
      trainer.say("w", encode_rollout(r));
    }
    return trainer.state().counters().accepted;
  };
  const uint64_t first = fill(1);
  REQUIRE(first > 4);
  REQUIRE(first < 64);  // the journal is full
  options.trainer_term = 2;
  options.newest_of_term = {{1, -1}};  // from the weights before version 0
  CHECK(fill(2) + 2 >= first);
}

TEST_CASE("a rollout_id that another sample has is rejected and the sample is asked for again",
          "[bad-workers]") {
  StartedTrainer trainer({{"w", 8}});
  trainer.grant(groups(0, 2, 2, 0));
  const auto named = [](int64_t group, int32_t sample, const std::string& id) {
    Rollout r = rollout_under(0, group, sample, 2);
    r.rollout_id = id;
    return r;
  };
  REQUIRE(trainer.deliver("w", named(0, 0, "id-0")).status == "ACCEPTED");
  (void)trainer.take_credits("w");
  trainer.say("w", encode_rollout(named(0, 1, "id-0")));
  CHECK(trainer.take_credits("w") == Samples{{0, 1}});
  const AckBody ack = trainer.deliver("w", named(1, 0, "id-0"));
  CHECK(ack.status == "REJECTED");
  CHECK(ack.reason == "invalid_field");
  CHECK(ack.detail.find("sample 0 of group 0") != std::string::npos);
  CHECK(trainer.deliver("w", named(0, 0, "id-0")).status == "DUPLICATE");
  CHECK(trainer.deliver("w", named(0, 1, "id-1")).status == "ACCEPTED");
  CHECK(trainer.deliver("w", named(1, 0, "id-2")).status == "ACCEPTED");
  CHECK(trainer.deliver("w", named(1, 1, "id-3")).status == "ACCEPTED");
}

// It numbers its rollouts from 0 and comes back: a few are refused, and no sample is lost.
TEST_CASE("a worker that starts to count its rollouts anew does not stall the run",
          "[bad-workers]") {
  StartedTrainer trainer({{"w", 4}});
  int number = 0;
  const auto answer_all = [&] {
    int accepted = 0;
    for (int round = 0; round < 12; ++round) {
      for (const auto& [group, sample] : trainer.take_credits("w")) {
        Rollout r = rollout_under(0, group, sample, 4);
        r.rollout_id = "w-" + std::to_string(number++);
        trainer.say("w", encode_rollout(r));
      }
      accepted = static_cast<int>(trainer.state().counters().accepted);
    }
    return accepted;
  };
  trainer.grant(groups(0, 2, 4, 0));
  REQUIRE(answer_all() == 8);
  number = 0;
  trainer.bring_in("w", 0);
  trainer.grant(groups(2, 2, 4, 0));
  CHECK(answer_all() == 16);
  CHECK(trainer.state().counters().duplicate == 0);
}

TEST_CASE("a worker whose bodies cannot be read is told to leave after 16 of them",
          "[bad-workers]") {
  StartedTrainer trainer({{"bad", 64}});
  trainer.grant(groups(0, 16, 4, 0));
  for (int i = 0; i < 15; ++i) {
    trainer.say("bad", nameless("r"));
  }
  CHECK(trainer.state_of("bad") == "ready");
  trainer.say("bad", nameless("r"));
  CHECK(trainer.state_of("bad").empty());
  const auto error = last_error(trainer.state());
  REQUIRE(error.has_value());
  CHECK(error->fatal);
  CHECK(error->reason == "malformed");
}

// Each CREDIT that names everything held would double what a worker that answers every CREDIT says.
TEST_CASE("unreadable bodies are answered by no more samples than they stood for",
          "[bad-workers]") {
  StartedTrainer trainer({{"bad", 8}}, [](TrainerOptions& o) { o.max_refused_in_row = 1000; });
  trainer.grant(groups(0, 2, 4, 0));
  std::size_t held = trainer.take_credits("bad").size();
  REQUIRE(held == 8);
  std::size_t credited = 0;
  for (int i = 0; i < 80; ++i) {
    trainer.say("bad", nameless("r"));
    credited += trainer.take_credits("bad").size();
  }
  CHECK(credited <= 80);
  CHECK(credited >= 8);
}

TEST_CASE("a lost sample of an unreadable body is made again by the same worker", "[bad-workers]") {
  StartedTrainer trainer({{"w", 4}});
  trainer.grant(groups(0, 1, 4, 0));
  REQUIRE(trainer.take_credits("w").size() == 4);
  trainer.say("w", nameless("r"));  // it stood for sample 3
  for (int32_t i = 0; i < 3; ++i) {
    CHECK(trainer.deliver("w", rollout_under(0, 0, i, 4)).status == "ACCEPTED");
  }
  trainer.say("w", make_payload(MessageType::kHeartbeat, HeartbeatBody{"ready", 0, 0, 0, 0}));
  CHECK(trainer.in_flight("w") == 1);
  CHECK(trainer.deliver("w", rollout_under(0, 0, 3, 4)).status == "ACCEPTED");
}

TEST_CASE("samples of unreadable bodies go to an idle worker that keeps the rules",
          "[bad-workers]") {
  StartedTrainer trainer({{"bad", 64}, {"good", 64}}, never_time_out);
  trainer.grant(groups(0, 8, 4, 0));
  std::size_t bad_was_granted = 0;
  Samples work;
  for (int round = 0; round < 200 && trainer.state().counters().accepted < 32; ++round) {
    if (const Samples mine = trainer.take_credits("good"); !mine.empty()) {
      work = mine;
    }
    for (const auto& [group, sample] : std::exchange(work, {})) {
      trainer.say("good", encode_rollout(rollout_under(0, group, sample, 4)));
      work.merge(trainer.take_credits("good"));
    }
    const Samples wrong = trainer.take_credits("bad");
    bad_was_granted += wrong.size();
    for (std::size_t i = 0; i < wrong.size(); ++i) {
      trainer.say("bad", nameless("r"));
    }
  }
  CHECK(trainer.state().counters().accepted == 32);
  CHECK(bad_was_granted <= 16 + 16);
}

// After a refusal a worker gets one sample at a time while another one could make it.
TEST_CASE("a refused worker gets one sample at a time until one is accepted", "[bad-workers]") {
  StartedTrainer trainer({{"a", 8}, {"b", 16}}, never_time_out);
  trainer.grant(groups(0, 2, 4, 0));
  const Samples of_a = trainer.take_credits("a");
  REQUIRE(of_a.size() == 4);
  for (const auto& [group, sample] : of_a) {
    trainer.say("a", spoiled(rollout_under(0, group, sample, 4),
                             [](Rollout& b) { b.prompt_id = kNotUtf8; }));
  }
  CHECK(trainer.in_flight("a") <= 1);
  trainer.grant(groups(2, 4, 4, 0));
  CHECK(trainer.in_flight("a") <= 1);
  CHECK(trainer.in_flight("b") >= 12);
  const Samples one = trainer.take_credits("a");
  REQUIRE(one.size() == 1);
  const auto [group, sample] = *one.begin();
  CHECK(trainer.deliver("a", rollout_under(0, group, sample, 4)).status == "ACCEPTED");
  CHECK(trainer.in_flight("a") >= 4);  // and then whole groups again
}

TEST_CASE("a worker that never stages the weights keeps no share after the deadline",
          "[bad-workers]") {
  StartedTrainer trainer({{"good", 64}}, never_time_out);
  trainer.hello("mute", 64);
  trainer.grant(groups(0, 8, 4, 0));
  CHECK(trainer.in_flight("good") == 16);
  for (int i = 0; i < 11; ++i) {
    trainer.advance(milliseconds(1000));
    trainer.heartbeat("mute", "sync");
    trainer.tick();
  }
  CHECK(trainer.in_flight("good") == 32);
  CHECK(trainer.events_with("worker mute has not installed") == 1);
  // New weights do not begin the deadline anew.
  trainer.publish(1);
  trainer.commit("good", 1);
  trainer.ready("good", 1);
  trainer.grant(groups(8, 8, 4, 0));
  CHECK(trainer.in_flight("good") == 64);
  trainer.commit("mute", 1);
  trainer.ready("mute", 1);
  trainer.grant(groups(16, 8, 4, 0));
  CHECK(trainer.in_flight("mute") == 32);  // it came in the end
}

TEST_CASE("a worker's capacity counts up to what may be in flight at all", "[bad-workers]") {
  StartedTrainer trainer({{"good", 64}, {"boaster", 1 << 24}},
                         [](TrainerOptions& o) { o.max_queued_rollouts = 64; });
  trainer.grant(groups(0, 8, 4, 0));
  CHECK(trainer.in_flight("good") == 16);
  CHECK(trainer.in_flight("boaster") == 16);
}

TEST_CASE("a worker of another protocol version is told to leave and named in the log once",
          "[bad-workers]") {
  StartedTrainer trainer({});
  const Payload hello = make_payload(MessageType::kHello, HelloBody{4, -1, -1, "", "old", 0});
  std::string packed = pack_header({hello.type, "", -1, "old", 1, 1}, hello);
  const std::size_t at = packed.find("\xa1v") + 2;  // the value of the key "v"
  REQUIRE(packed[at] == static_cast<char>(kProtoVersion));
  packed[at] = 1;
  for (int i = 0; i < 100; ++i) {
    const Frame frame = std::as_bytes(std::span(packed));
    trainer.state().on_message("old/1", "", parse_message(std::span(&frame, 1), {}), Clock::now());
  }
  const auto error = last_error(trainer.state());
  REQUIRE(error.has_value());
  CHECK(error->reason == "unsupported");
  CHECK(error->fatal);
  const std::size_t lines = trainer.events_with("protocol version 1");
  CHECK(lines >= 1);
  CHECK(lines <= 7);  // the 1st, 2nd, 4th ... 64th
}

}  // namespace
}  // namespace ringside::bridge
