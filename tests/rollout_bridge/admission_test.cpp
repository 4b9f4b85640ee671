// Guards what the trainer's side refuses at its door: rollouts that the owner's policy does not
// take are neither journalled nor acknowledged and are sampled again, a worker that makes nothing
// else is told to leave, a journal cannot bring them back, and a worker of other settings does not
// join.
#include <catch2/catch.hpp>

#include "rollout_bridge/protocol/settings.h"
#include "tests/rollout_bridge/direct_trainer.h"

namespace ringside::bridge {
namespace {

using namespace test;

// Takes token ids below its bound.
class SmallVocabulary final : public AdmissionPolicy {
 public:
  Status admit(const Rollout& rollout) override {
    for (const int64_t id : rollout.completion_ids) {
      if (id >= 100) {
        return Error{Reason::kVocabulary,
                     "rollout '" + rollout.rollout_id + "': id " + std::to_string(id)};
      }
    }
    return Success{};
  }
  Status admit_held_out(const Rollout& rollout, int64_t /*held_out*/) override {
    return admit(rollout);
  }
};

TrainerOptions with_admission(const TempDir& dir, int32_t ungranted_size = 2) {
  TrainerOptions options = trainer_options(dir, ungranted_size);
  options.admission = std::make_shared<SmallVocabulary>();
  return options;
}

Rollout with_id(int64_t id, int64_t group, int32_t sample, int32_t size, uint32_t seed = 1) {
  Rollout r = rollout_under(0, group, sample, size, seed);
  r.completion_ids.assign(r.completion_ids.size(), id);
  r.kept_sets = {};
  return r;
}

std::size_t credited(DirectTrainer& trainer, const std::string& worker) {
  std::size_t samples = 0;
  for (const auto& credit : trainer.bodies<CreditBody>(worker, MessageType::kCredit)) {
    for (const auto& group : credit.groups) {
      samples += group.sample_indices.size();
    }
  }
  return samples;
}

bool says(TrainerState& state, const std::string& text) {
  for (const BridgeEvent& event : state.drain_events()) {
    if (event.text.find(text) != std::string::npos) {
      return true;
    }
  }
  return false;
}

// The last ERROR for a worker without a session.
std::optional<ErrorBody> last_refusal(TrainerState& state) {
  std::optional<ErrorBody> found;
  for (const auto& [identity, out] : state.strays()) {
    const Frame frame = std::as_bytes(std::span(out.header));
    found = parse_message(std::span(&frame, 1), {}).value().body<ErrorBody>().value();
  }
  return found;
}

// The options of the next start of the trainer, which goes on from the weights of the first.
TrainerOptions restarted(TrainerOptions options) {
  options.trainer_term = 2;
  options.newest_of_term = {{1, 100}};
  return options;
}

TEST_CASE(
    "a rollout that the admission refuses is not journalled, and its sample is asked for again",
    "[admission]") {
  const TempDir dir;
  {
    DirectTrainer trainer(with_admission(dir));
    trainer.publish(0);
    trainer.bring_in("a", 0);
    trainer.grant(groups(0, 1, 1, 0));
    REQUIRE(credited(trainer, "a") == 1);
    const uint64_t before = trainer.state().counters().journal_bytes;
    trainer.say("a", encode_rollout(with_id(100, 0, 0, 1)));
    const auto acks = trainer.bodies<AckBody>("a", MessageType::kAck);
    REQUIRE(acks.size() == 1);
    CHECK(acks[0].status == "REJECTED");
    CHECK(acks[0].reason == "vocabulary");
    CHECK(trainer.rejected(Reason::kVocabulary) == 1);
    CHECK(trainer.state().counters().journal_bytes == before);
    CHECK_FALSE(trainer.pop().has_value());
    CHECK(trainer.state().workers().at(0).in_flight_samples == 1);  // asked for again
    CHECK(trainer.deliver("a", with_id(99, 0, 0, 1, 2)).status == "ACCEPTED");
  }
  DirectTrainer again(restarted(with_admission(dir, 1)));
  REQUIRE(again.pop().has_value());
  CHECK_FALSE(again.pop().has_value());
}

TEST_CASE("a worker whose samples are all refused is told to leave, naming the reason",
          "[admission]") {
  const TempDir dir;
  TrainerOptions options = with_admission(dir);
  options.max_attempts = 100;
  DirectTrainer trainer(options);
  trainer.publish(0);
  trainer.bring_in("a", 0, 64);
  trainer.grant(groups(0, 4, 8, 0));
  uint32_t sent = 0;
  const auto refuse = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const int64_t group = sent / 8 % 4;
      trainer.say("a",
                  encode_rollout(with_id(500, group, static_cast<int32_t>(sent % 8), 8, 2 + sent)));
      ++sent;
    }
  };
  refuse(15);
  CHECK(trainer.state_of("a") == "ready");
  CHECK(trainer.deliver("a", with_id(1, 3, 7, 8)).status == "ACCEPTED");  // begins the count anew
  refuse(15);
  CHECK(trainer.state_of("a") == "ready");
  CHECK_FALSE(last_refusal(trainer.state()).has_value());
  (void)trainer.state().drain_events();
  refuse(1);
  CHECK(trainer.state_of("a").empty());
  const auto error = last_refusal(trainer.state());
  REQUIRE(error.has_value());
  CHECK(error->fatal);
  CHECK(error->reason == "vocabulary");
  CHECK(error->detail.find("16 rollouts in a row were refused") != std::string::npos);
  CHECK(error->detail.find("id 500") != std::string::npos);
  CHECK(says(trainer.state(), "16 rollouts in a row were refused"));
  trainer.bring_in("b", 0, 64);  // its samples are for others
  CHECK(credited(trainer, "b") == 31);
}

TEST_CASE("rollouts that nobody asked for do not count towards leaving", "[admission]") {
  const TempDir dir;
  DirectTrainer trainer(with_admission(dir));
  trainer.publish(0);
  trainer.bring_in("a", 0);
  for (uint32_t i = 0; i < 40; ++i) {  // late ones of groups that are over
    CHECK(trainer.deliver("a", with_id(1, 7, 0, 1, i)).reason == "unknown_group");
  }
  CHECK(trainer.state_of("a") == "ready");
}

TEST_CASE(
    "nothing in a journal stops a start: what would be refused now is dropped and sampled again",
    "[admission]") {
  const TempDir dir;
  {
    DirectTrainer trainer(trainer_options(dir));  // admits all
    trainer.publish(0);
    trainer.bring_in("a", 0);
    trainer.grant(groups(0, 2, 2, 0));
    CHECK(trainer.deliver("a", with_id(5, 0, 0, 2)).status == "ACCEPTED");
    CHECK(trainer.deliver("a", with_id(1000, 0, 1, 2)).status == "ACCEPTED");
    CHECK(trainer.deliver("a", with_id(2000, 1, 0, 2)).status == "ACCEPTED");
  }
  DirectTrainer trainer(restarted(with_admission(dir)));
  CHECK(trainer.rejected(Reason::kVocabulary) == 2);
  CHECK(says(
      trainer.state(),
      "journal: 2 rollouts dropped (vocabulary), their samples are asked for again; the first: "));
  const auto kept = trainer.pop();
  REQUIRE(kept.has_value());
  CHECK(kept->sample_index == 0);
  CHECK_FALSE(trainer.pop().has_value());
  trainer.publish(0);
  trainer.bring_in("a", 0);
  trainer.grant(groups(0, 2, 2, 0));
  CHECK(credited(trainer, "a") == 3);
}

Settings trainer_settings() {
  Settings settings;
  settings.temperature = 1.0;
  settings.top_p = 1.0;
  settings.top_k = 0;
  settings.vocab_size = 48;
  settings.max_prompt_tokens = 16;
  settings.max_completion_tokens = 12;
  settings.stop_ids = {{2}};
  settings.seed = 1;
  settings.reward_names = {{"exact_match", "length"}};
  settings.reward_options = "separator \"\"";
  settings.prompts = "aa";
  settings.tokenizer = "bb";
  return settings;
}

TEST_CASE("a worker whose settings would make training wrong does not join; both values are named",
          "[admission][settings]") {
  struct Case {
    void (*change)(Settings&);
    const char* sentence;
  };
  const std::vector<Case> cases = {
      {[](Settings& s) { s.temperature = 2.0; }, "temperature is 2, the trainer's is 1"},
      {[](Settings& s) { s.top_p = 0.9; }, "top_p is 0.9, the trainer's is 1"},
      {[](Settings& s) { s.top_k = 5; }, "top_k is 5, the trainer's is 0"},
      {[](Settings& s) { s.vocab_size = 1000; }, "vocab_size is 1000, the trainer's is 48"},
      {[](Settings& s) { s.seed = 7; }, "seed is 7, the trainer's is 1"},
      {[](Settings& s) { s.prompts = "cc"; },
       "fingerprint of prompts is 'cc', the trainer's is 'aa'"},
      {[](Settings& s) { s.tokenizer = "cc"; },
       "fingerprint of tokenizer is 'cc', the trainer's is 'bb'"},
      {[](Settings& s) { s.reward_names = {{"own"}}; },
       "reward_names is ['own'], the trainer's is ['exact_match', 'length']"},
  };
  for (const Case& c : cases) {
    const TempDir dir;
    TrainerOptions options = trainer_options(dir);
    options.settings = trainer_settings();
    DirectTrainer trainer(options);
    Settings settings = trainer_settings();
    c.change(settings);
    trainer.hello("a", settings);
    CHECK(trainer.state_of("a").empty());
    const auto error = last_refusal(trainer.state());
    REQUIRE(error.has_value());
    CHECK(error->fatal);
    CHECK(error->reason == "settings");
    CHECK_THAT(error->detail, Catch::Contains(c.sentence));
    CHECK(says(trainer.state(), c.sentence));
  }
}

TEST_CASE("settings that may differ are said, and those not stated are not compared",
          "[admission][settings]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.settings = trainer_settings();
  DirectTrainer trainer(options);
  Settings settings = trainer_settings();
  settings.max_completion_tokens = 300;
  settings.stop_ids = {{2, 3}};
  trainer.hello("a", settings);
  CHECK(trainer.state_of("a") == "join");
  const auto welcome = trainer.bodies<WelcomeBody>("a", MessageType::kWelcome);
  REQUIRE(welcome.size() == 1);
  CHECK(static_cast<const Settings&>(welcome[0].settings) == trainer_settings());
  const auto events = trainer.state().drain_events();
  const auto said = [&](const std::string& text) {
    return std::any_of(events.begin(), events.end(),
                       [&](const auto& e) { return e.text.find(text) != std::string::npos; });
  };
  CHECK(said("max_completion_tokens is 300, the trainer's is 12"));
  CHECK(said("stop_ids is [2, 3], the trainer's is [2]"));
  trainer.hello("foreign");  // states nothing
  CHECK(trainer.state_of("foreign") == "join");
}

// Over sockets: the worker's owner learns it as a failure.
TEST_CASE("a refused worker fails with the trainer's words", "[admission][settings][endpoint]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.settings = trainer_settings();
  TestTrainer trainer(options);
  WorkerOptions other = worker_options(trainer.rollout_address(), "w");
  other.settings = trainer_settings();
  other.settings.top_p = 0.9;
  WorkerEndpoint worker(other);
  const auto event = worker.poll(kPatience);
  REQUIRE(event.has_value());
  REQUIRE(std::holds_alternative<Failed>(*event));
  CHECK(std::get<Failed>(*event).reason == "settings");
  CHECK_THAT(std::get<Failed>(*event).detail, Catch::Contains("top_p is 0.9, the trainer's is 1"));
}

}  // namespace
}  // namespace ringside::bridge
