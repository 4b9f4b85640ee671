// Completions that go on under new weights: each token has the version that drew it, and the
// log-prob that these weights give it.
#include <ATen/core/grad_mode.h>

#include <map>

#include "engine/io/hf_directory.h"
#include "rl/config/load.h"
#include "rl/publish/weight_snapshot.h"
#include "rl/worker/decoder_sampler.h"
#include "rl/worker/shadow_model.h"
#include "tests/support/catch.h"
#include "tests/support/letter_tokenizer.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace ringside::test {
namespace {

using Snapshot = std::shared_ptr<const bridge::WeightSnapshot>;

// A model, its prompts, and versions of its weights.
class PartialRun {
 public:
  PartialRun() {
    std::filesystem::create_directories(path("model"));
    engine::save_decoder(decoder_, path("model"), at::kFloat);
    write_file(path("model") + "/tokenizer.json", letter_tokenizer());
    write_file(path("train.jsonl"), R"({"prompt": "abc", "answer": "a"})"
                                    "\n"
                                    R"({"prompt": "hello", "answer": "a"})"
                                    "\n");
    config = rl::load_config_or_throw(
        {}, {"model.path=" + path("model"), "data.train=" + path("train.jsonl"),
             "rollout.reward=length", "rollout.max_completion_tokens=12",
             "algorithm.max_staleness=2", "rollout.partial_rollout=true"});
  }

  // The next version: other weights than before.
  Snapshot publish(int64_t version, int64_t trainer_term = 1) {
    const at::NoGradGuard no_grad;
    for (engine::ParamUnit* unit : decoder_.units()) {
      unit->flat().add_(0.01);
      unit->changed();
    }
    return rl::snapshot_weights(decoder_, at::kFloat, "run", trainer_term, version);
  }

  std::vector<bridge::GrantedSample> samples() const {
    std::vector<bridge::GrantedSample> samples(4);
    for (int32_t i = 0; i < 4; ++i) {
      samples[i].group_id = i / 2;
      samples[i].group_size = 2;
      samples[i].sample_index = i % 2;
    }
    return samples;
  }
  rl::Config config;

 private:
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

  TemporaryDirectory directory_;
  engine::Decoder decoder_ = [] {
    engine::ModelConfig shape = tiny_config(32);
    shape.eos_token_ids = {1};
    return random_decoder(shape, at::kFloat, 11, 0.3);
  }();
};

// Stops before token `after` (0: the first one) of a call.
std::function<bool()> stop_before(int after) {
  return [asked = 0, after]() mutable { return asked++ == after; };
}

TEST_CASE("partial rollouts: each token has the log-prob of the version that drew it") {
  PartialRun run;
  rl::DecoderSampler sampler(run.config, "w");
  std::map<int64_t, rl::ShadowModel> policies;
  std::vector<bridge::Rollout> rollouts;
  for (const int64_t version : {3, 4, 5}) {
    const Snapshot snapshot = run.publish(version);
    sampler.install(*snapshot);
    policies.emplace(version, run.config).first->second.install(snapshot);
    const bool is_first = version == 3, is_last = version == 5;
    auto made = sampler.sample(is_first ? run.samples() : std::vector<bridge::GrantedSample>{},
                               version, stop_before(is_last ? 99 : 4));
    rollouts.insert(rollouts.end(), made.begin(), made.end());
  }
  CHECK(sampler.unfinished() == 0);
  REQUIRE(rollouts.size() == 4);
  int64_t with_three = 0;
  for (const bridge::Rollout& rollout : rollouts) {
    std::vector<int64_t> ids = rollout.prompt_ids;
    ids.insert(ids.end(), rollout.completion_ids.begin(), rollout.completion_ids.end());
    with_three += rollout.versions.size() == 3 ? 1 : 0;
    CHECK(rollout.versions.back().end == std::ssize(rollout.completion_ids));
    for (const bridge::VersionSpan& span : rollout.versions) {
      const auto scores = policies.at(span.version).score(ids, 1.0);
      for (int64_t t = span.begin; t < span.end; ++t) {
        INFO("version " << span.version << ", token " << t);
        CHECK(rollout.logprobs[t] ==
              Approx(scores[rollout.prompt_ids.size() - 1 + t]).margin(2e-5));
      }
    }
  }
  CHECK(with_three > 0);
}

TEST_CASE("partial rollouts: a restarted trainer gets completions of its own versions alone") {
  PartialRun run;
  rl::DecoderSampler sampler(run.config, "w");
  sampler.install(*run.publish(3, 1));
  const std::size_t complete = sampler.sample(run.samples(), 3, stop_before(2)).size();
  REQUIRE(complete < 4);
  const Snapshot restarted = run.publish(3, 2);
  sampler.install(*restarted);
  const auto rollouts = sampler.sample({}, 3, stop_before(99));
  REQUIRE(rollouts.size() == 4 - complete);
  rl::DecoderSampler fresh(run.config, "w");
  fresh.install(*restarted);
  std::map<std::string, std::vector<int64_t>> expected;
  for (const bridge::Rollout& rollout : fresh.sample(run.samples(), 3, stop_before(99))) {
    expected[rollout.rollout_id] = rollout.completion_ids;
  }
  for (const bridge::Rollout& rollout : rollouts) {
    REQUIRE(rollout.versions.size() == 1);
    CHECK(rollout.versions[0].end == std::ssize(rollout.completion_ids));
    CHECK(rollout.completion_ids == expected.at(rollout.rollout_id));
  }
}

TEST_CASE("partial rollouts: without the key a batch is completed") {
  PartialRun run;
  run.config.rollout.partial_rollout = false;
  rl::DecoderSampler sampler(run.config, "w");
  sampler.install(*run.publish(3));
  CHECK(sampler.sample(run.samples(), 3, stop_before(0)).size() == 4);
  CHECK(sampler.unfinished() == 0);
}

}  // namespace
}  // namespace ringside::test
