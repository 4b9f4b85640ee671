// Guards evaluation by workers at the trainer: held-out samples that reach a worker without the
// prompts, wait behind training, are trained on or journalled, come from other weights, or are lost
// with their worker.
#include <catch2/catch.hpp>

#include "tests/rollout_bridge/direct_trainer.h"

namespace ringside::bridge {
namespace {

using namespace test;
using std::chrono::milliseconds;
using Samples = std::set<std::pair<int64_t, int32_t>>;

constexpr int64_t kFirst = kFirstHeldOutGroup;

Settings held_out_settings(const std::string& fingerprint = "these") {
  Settings settings;
  settings.held_out = fingerprint;
  return settings;
}

TrainerOptions evaluating_options(const TempDir& dir) {
  TrainerOptions options = trainer_options(dir);
  options.settings = held_out_settings();
  return options;
}

void bring_in(DirectTrainer& trainer, const std::string& worker, const Settings& settings) {
  trainer.hello(worker, settings);
  trainer.commit(worker, 0);
  trainer.ready(worker, 0);
}

Rollout held_out_rollout(int64_t prompt, int32_t sample, int32_t samples, int64_t version = 0) {
  Rollout r =
      rollout_under(version, kFirst + prompt, sample, samples, static_cast<uint32_t>(7 + sample));
  r.rewards = {{"exact_match", prompt + 0.5 * sample}};
  r.turn_offsets = {0};
  r.turn_rewards = {0.25 * sample};
  r.finish_reason = FinishReason::kLength;
  return r;
}

TEST_CASE("held-out prompts go before training, to the workers that have them", "[evaluation]") {
  const TempDir dir;
  DirectTrainer trainer(evaluating_options(dir));
  trainer.publish(0);
  trainer.grant(groups(0, 4, 2, 0));
  trainer.state().open_evaluation(2, 2);
  bring_in(trainer, "other", {});
  CHECK(trainer.take_credits("other") == Samples{{0, 0}, {0, 1}, {1, 0}, {1, 1}});
  bring_in(trainer, "a", held_out_settings());
  std::vector<int64_t> numbers;
  for (const auto& credit : trainer.bodies<CreditBody>("a", MessageType::kCredit)) {
    for (const Grant& group : credit.groups) {
      numbers.push_back(group.held_out);
      CHECK(group.group_id == kFirst + group.held_out);
      CHECK(group.sample_indices == std::vector<int32_t>{0, 1});
      CHECK(group.min_version == 0);
    }
  }
  CHECK(numbers == std::vector<int64_t>{0, 1});
  const EvaluationProgress progress = trainer.state().evaluation();
  CHECK(progress.samples == 4);
  CHECK(progress.missing == 4);
  CHECK(progress.workers == 2);
  CHECK(progress.evaluating == 1);
}

TEST_CASE("a worker with other held-out prompts is refused", "[evaluation]") {
  const TempDir dir;
  DirectTrainer trainer(evaluating_options(dir));
  trainer.hello("a", held_out_settings("others"));
  CHECK(trainer.state_of("a").empty());
  CHECK(trainer.events_with("the fingerprint of held-out prompts is 'others', the trainer's is "
                            "'these'") == 1);
}

TEST_CASE("an evaluation returns every sample once and leaves the journal alone", "[evaluation]") {
  const TempDir dir;
  {
    DirectTrainer trainer(evaluating_options(dir));
    trainer.publish(0);
    bring_in(trainer, "a", held_out_settings());
    trainer.state().open_evaluation(2, 2);
    const uint64_t journalled = trainer.state().counters().journal_bytes;
    for (const int64_t prompt : {1, 0}) {
      for (const int32_t sample : {1, 0}) {
        CHECK_FALSE(trainer.state().take_evaluation().has_value());
        CHECK(trainer.deliver("a", held_out_rollout(prompt, sample, 2)).status == "ACCEPTED");
      }
    }
    CHECK(trainer.deliver("a", held_out_rollout(0, 0, 2)).status == "DUPLICATE");
    CHECK(trainer.state().counters().journal_bytes == journalled);
    CHECK(trainer.state().counters().accepted == 0);
    CHECK(trainer.state().counters().evaluated == 4);
    CHECK_FALSE(trainer.pop().has_value());
    const auto samples = trainer.state().take_evaluation();
    REQUIRE(samples.has_value());
    REQUIRE(samples->size() == 4);
    for (std::size_t i = 0; i < 4; ++i) {
      const HeldOutSample& sample = (*samples)[i];
      CHECK(sample.prompt == static_cast<int64_t>(i / 2));
      CHECK(sample.rewards.at(0).second == static_cast<double>(i / 2) + 0.5 * (i % 2));
      CHECK(sample.turn_rewards == std::vector<double>{0.25 * (i % 2)});
      CHECK(sample.tokens > 0);
      CHECK(sample.finish_reason == FinishReason::kLength);
    }
    CHECK_FALSE(trainer.state().take_evaluation().has_value());  // it is over
    CHECK(trainer.in_flight("a") == 0);
  }
  TrainerOptions later = evaluating_options(dir);
  later.trainer_term = 2;
  DirectTrainer again(later);
  CHECK_FALSE(again.pop().has_value());
}

TEST_CASE("samples of a worker that is lost or leaves are made by another", "[evaluation]") {
  const TempDir dir;
  DirectTrainer trainer(evaluating_options(dir));
  trainer.publish(0);
  bring_in(trainer, "a", held_out_settings());
  trainer.state().open_evaluation(1, 3);
  CHECK(trainer.take_credits("a").size() == 3);
  CHECK(trainer.deliver("a", held_out_rollout(0, 0, 3)).status == "ACCEPTED");
  bring_in(trainer, "b", held_out_settings());
  CHECK(trainer.take_credits("b").empty());
  trainer.state().on_unreachable("a/1");
  trainer.tick();
  CHECK(trainer.take_credits("b") == Samples{{kFirst, 1}, {kFirst, 2}});
  CHECK(trainer.deliver("b", held_out_rollout(0, 1, 3)).status == "ACCEPTED");
  CHECK(trainer.deliver("b", held_out_rollout(0, 2, 3)).status == "ACCEPTED");
  CHECK(trainer.state().take_evaluation().has_value());
}

TEST_CASE("a sample of other weights is made again, and never by the training rules",
          "[evaluation]") {
  const TempDir dir;
  DirectTrainer trainer(evaluating_options(dir));
  trainer.publish(0);
  trainer.publish(1);
  trainer.hello("a", held_out_settings());
  trainer.commit("a", 1);
  trainer.ready("a", 1);
  trainer.state().open_evaluation(1, 1);
  CHECK(trainer.take_credits("a") == Samples{{kFirst, 0}});
  CHECK(trainer.deliver("a", held_out_rollout(0, 0, 1, 0)).status == "STALE");
  CHECK(trainer.take_credits("a").empty());  // its CREDIT was read with the answer
  CHECK(trainer.in_flight("a") == 1);
  Rollout of_earlier_start = held_out_rollout(0, 0, 1, 1);
  of_earlier_start.trainer_term = 0;
  CHECK(trainer.deliver("a", of_earlier_start).status == "STALE");
  CHECK(trainer.deliver("a", held_out_rollout(0, 0, 2, 1)).reason == "invalid_field");
  CHECK(trainer.deliver("a", held_out_rollout(5, 0, 1, 1)).reason == "unknown_group");
  CHECK(trainer.deliver("a", held_out_rollout(0, 0, 1, 1)).status == "ACCEPTED");
}

TEST_CASE("a failed sample is tried as often as a training sample, then counts without a reward",
          "[evaluation]") {
  const TempDir dir;
  DirectTrainer trainer(evaluating_options(dir));
  trainer.publish(0);
  bring_in(trainer, "a", held_out_settings());
  trainer.state().open_evaluation(1, 1);
  Rollout failed = held_out_rollout(0, 0, 1);
  failed.finish_reason = FinishReason::kError;
  CHECK(trainer.deliver("a", failed).status == "REQUEUED");
  CHECK(trainer.deliver("a", failed).status == "REQUEUED");
  CHECK(trainer.deliver("a", failed).status == "ACCEPTED");
  const auto samples = trainer.state().take_evaluation();
  REQUIRE(samples.has_value());
  CHECK(samples->at(0).rewards.empty());
  CHECK(samples->at(0).finish_reason == FinishReason::kError);
}

TEST_CASE("what is missing when an evaluation ends is not made any more", "[evaluation]") {
  const TempDir dir;
  DirectTrainer trainer(evaluating_options(dir));
  trainer.publish(0);
  bring_in(trainer, "a", held_out_settings());
  trainer.state().open_evaluation(1, 2);
  CHECK(trainer.take_credits("a").size() == 2);
  trainer.state().end_evaluation();
  CHECK(trainer.in_flight("a") == 0);
  CHECK(trainer.deliver("a", held_out_rollout(0, 0, 2)).status == "DUPLICATE");
  trainer.state().open_evaluation(1, 1);
  CHECK(trainer.take_credits("a") == Samples{{kFirst + 1, 0}});  // an id of its own
  CHECK(trainer.deliver("a", held_out_rollout(0, 1, 2)).status == "DUPLICATE");
  CHECK(trainer.deliver("a", held_out_rollout(1, 0, 1)).status == "ACCEPTED");
}

TEST_CASE("an evaluation needs weights and held-out prompts", "[evaluation]") {
  const TempDir dir;
  DirectTrainer trainer(evaluating_options(dir));
  CHECK_THROWS_WITH(trainer.state().open_evaluation(1, 1), Catch::Contains("published weights"));
  trainer.publish(0);
  CHECK_THROWS_WITH(trainer.state().open_evaluation(0, 1), Catch::Contains("0 prompts"));
  const TempDir other;
  DirectTrainer without(trainer_options(other));
  without.publish(0);
  CHECK_THROWS_WITH(without.state().open_evaluation(1, 1), Catch::Contains("Settings::held_out"));
}

}  // namespace
}  // namespace ringside::bridge
