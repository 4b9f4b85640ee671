// Training on top_p and top_k over the sets that the sampler kept: the trainer's log-probs are
// those of the sampler, and every layout trains to the same weights.
#include <ATen/ATen.h>

#include "rl/data/rollout_file.h"
#include "tests/rl/small_runs.h"

namespace ringside::test {
namespace {

const Words kKept{"algorithm.logprobs_over=kept", "rollout.top_p=0.8", "rollout.top_k=12",
                  "rollout.temperature=0.9"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_CASE("old log-probs over recorded sets are the sampler's, at sp 1, 2 and 4", "[kept]") {
  const SmallModel model;
  const std::vector<Words> layouts{
      {},
      {"parallel.ulysses_parallel_size=2"},
      {"parallel.ringattn_parallel_size=2", "parallel.ulysses_parallel_size=2"}};
  for (const Words& layout : layouts) {
    INFO(layout.size());
    const TemporaryDirectory run_dir;
    const auto metrics = live_run(
        model.config(with(with(kKept, layout), {"train.steps=1", "train.num_mini_batches=2"})),
        run_dir.path());
    const auto figure = [&](const char* name) { return metrics.front().at(name).get<double>(); };
    CHECK(figure("sampling/sampling_logp_difference/max") < 1e-4);
    CHECK(figure("token_mult_prob_error") == Approx(1.0).margin(1e-5));
    // Sets of a vocabulary of 32 words: some of one, none of more than top_k.
    CHECK(figure("kept_sets/mean_size") > 1.5);
    CHECK(figure("kept_sets/max_size") <= 12);
    const double tokens = 16 * figure("completions/mean_length");
    CHECK(figure("kept_sets/bytes") == Approx(4 * tokens * (1 + figure("kept_sets/mean_size"))));
  }
}

TEST_CASE("kept sets train to the same weights at every layout", "[kept]") {
  const SmallModel model;
  const TemporaryDirectory run_dir;
  live_run(model.config(with(kKept, {"train.steps=2", "log.rollouts=true"})), run_dir.path());
  const auto rollouts = run_dir.path() / "rollouts.jsonl";
  const Words training =
      with(kKept, {"train.steps=2", "model.dtype=float64", "train.num_mini_batches=2",
                   "algorithm.kl_coef=0.1", "algorithm.entropy_coef=0.01",
                   "model.reference_path=" + model.path("reference")});
  const RecordedRun one = recorded_run(model.config(training), rollouts);
  const std::vector<Words> layouts{
      {"sp.shared_prefix=false"},
      {"parallel.ulysses_parallel_size=2"},
      {"parallel.ringattn_parallel_size=2", "parallel.ulysses_parallel_size=2"},
      {"parallel.data_parallel_shard_size=2"},
      {"parallel.tensor_parallel_size=3"},
      {"parallel.pipeline_parallel_size=2"},
      {"train.tokens_per_micro_batch=4096", "model.logit_chunk_mb=1"}};
  for (const Words& layout : layouts) {
    INFO(layout.front());
    CHECK(difference(one, recorded_run(model.config(with(training, layout)), rollouts)) < 1e-10);
  }
  CHECK(difference(one, recorded_run(model.config(with(training, {"algorithm.kl_coef=0.2"})),
                                     rollouts)) > 1e-6);
  // Policy and reference of the same weights are equal over the whole vocabulary.
  const RecordedRun same = recorded_run(
      model.config(with(kKept, {"train.steps=1", "model.dtype=float64", "algorithm.kl_coef=0.1"})),
      rollouts);
  CHECK(same.metrics.front().at("kl").get<double>() == Approx(0.0).margin(1e-15));
  // Another order of the samples takes their sets along.
  const RecordedRun shuffled =
      recorded_run(model.config(with(training, {"train.shuffle_mini_batches=true"})), rollouts);
  CHECK(shuffled.metrics.front().at("sampling/sampling_logp_difference/max").get<double>() < 1e-4);
}

TEST_CASE("a rollout without kept sets is refused where log-probs are over them", "[kept]") {
  const SmallModel model;
  const TemporaryDirectory run_dir;
  live_run(model.config({"train.steps=1", "log.rollouts=true"}), run_dir.path());
  CHECK_THROWS_WITH(
      recorded_run(model.config(kKept), run_dir.path() / "rollouts.jsonl"),
      Catch::Contains(
          "rollouts.jsonl:1: rollout '0/0': brings no kept set for completion token 0"));
}

}  // namespace
}  // namespace ringside::test
