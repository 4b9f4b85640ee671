// Replayed routes in training: they reach every token at every layout, and take back what a router
// that differs at the worker does to the log-probs.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <random>

#include "engine/io/hf_directory.h"
#include "rl/data/rollout_file.h"
#include "rl/rollouts/rollout_log.h"
#include "rl/worker/decoder_sampler.h"
#include "tests/rl/small_runs.h"
#include "tests/support/letter_tokenizer.h"
#include "tests/support/tiny_model.h"
#include "tests/support/training_cases.h"

namespace fs = std::filesystem;

namespace ringside::test {
namespace {

const fs::path kGoldens = fs::path(RINGSIDE_SOURCE_DIR) / "tests/goldens/regression";
constexpr int64_t kExperts = 6, kPerToken = 2;

// Three layers, of which the middle one has an MLP; routers whose choices are close, so that a
// small change of the router changes many of them, and experts that differ much.
engine::ModelConfig model_config() {
  engine::ModelConfig config = tiny_config(32);
  config.model_type = "qwen3_moe";
  config.num_hidden_layers = 3;
  config.eos_token_ids = {1};
  config.experts = {.count = kExperts,
                    .per_token = kPerToken,
                    .intermediate_size = 16,
                    .normalise_weights = true};
  config.blocks = {{.channel_mixer = engine::ChannelMixerKind::kExperts},
                   {.channel_mixer = engine::ChannelMixerKind::kMlp},
                   {.channel_mixer = engine::ChannelMixerKind::kExperts}};
  return config;
}

// Calls `change` with the router's matrix of each layer that has one.
void edit_routers(engine::Decoder& decoder, const std::function<void(at::Tensor)>& change) {
  const at::NoGradGuard no_grad;
  for (engine::ParamUnit* unit : decoder.units()) {
    for (const engine::NamedSlice& slice : unit->storage().slices()) {
      if (slice.name.ends_with("mlp.gate.weight")) {
        change(slice.values);
      }
    }
    unit->changed();
  }
}

class ModelDirectory {
 public:
  ModelDirectory() {
    engine::Decoder decoder = random_decoder(model_config(), at::kFloat, 11, 0.4);
    edit_routers(decoder, [](at::Tensor router) { router.mul_(0.02); });
    fs::create_directories(path("model"));
    engine::save_decoder(decoder, path("model"), at::kFloat);
    write_file(directory_.path() / "model/tokenizer.json", letter_tokenizer());
    std::string prompts;
    for (const char* prompt : {"abc", "bcd", "hello", "zyxwv"}) {
      prompts += std::string(R"({"prompt": ")") + prompt + R"(", "answer": "a"})" + "\n";
    }
    write_file(directory_.path() / "train.jsonl", prompts);
  }
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

 private:
  TemporaryDirectory directory_;
};

// The recorded rollouts of the goldens with routes for this model.
std::vector<bridge::Rollout> rollouts_with_routes() {
  auto rollouts = rl::read_rollout_file(kGoldens / "plain.jsonl", 4);
  for (bridge::Rollout& rollout : rollouts) {
    // Of a token and its place, so that a group's prompt has the same routes.
    std::vector<int64_t> ids = rollout.prompt_ids;
    ids.insert(ids.end(), rollout.completion_ids.begin(), rollout.completion_ids.end());
    rollout.routed_experts = {{0, 2}, kPerToken, 1, {}};
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      for (int64_t layer = 0; layer < 2; ++layer) {
        const int64_t first = (ids[i] + 3 * static_cast<int64_t>(i) + layer) % kExperts;
        rollout.routed_experts.ids.push_back(static_cast<uint8_t>(first));
        rollout.routed_experts.ids.push_back(static_cast<uint8_t>((first + 2) % kExperts));
      }
    }
  }
  return rollouts;
}

RecordedRun trained_with(const ModelDirectory& files, const fs::path& rollouts, Words words) {
  for (const char* word : {"rollout.prompts_per_step=4", "rollout.group_size=4", "train.steps=2",
                           "train.tokens_per_micro_batch=64", "model.dtype=float64",
                           "train.num_mini_batches=2", "optimizer.learning_rate=0.01"}) {
    words.insert(words.begin(), word);
  }
  words.push_back("model.path=" + files.path("model"));
  rl::Config config = rl::load_config_or_throw({}, words);
  rl::factor_context_parallel(config);
  return recorded_run(config, rollouts);
}

TEST_CASE("replayed routes train to the same weights at every layout", "[routes]") {
  const ModelDirectory files;
  const TemporaryDirectory directory;
  const fs::path with = directory.path() / "with.jsonl";
  const auto rollouts = rollouts_with_routes();
  rl::RolloutLog(with, 0).write(1, rollouts, std::vector<int64_t>(rollouts.size() + 1, 0), {});
  const Words replay{"algorithm.router_replay=rollout"};
  const RecordedRun one = trained_with(files, with, replay);
  const double changed = one.metrics.front().at("router/changed_routes").get<double>();
  CHECK(changed > 0.3);
  CHECK(changed < 1.0);
  CHECK(difference(one, trained_with(files, with, {})) > 1e-4);
  const std::vector<Words> layouts{
      {"sp.shared_prefix=false"},
      {"model.recompute=full"},
      {"parallel.ulysses_parallel_size=2", "model.recompute=selective"},
      {"parallel.ringattn_parallel_size=2"},
      {"parallel.ringattn_parallel_size=2", "sp.ring_impl=all_gather", "sp.shared_prefix=false"},
      {"parallel.ringattn_parallel_size=2", "parallel.ulysses_parallel_size=2"},
      {"parallel.data_parallel_replicate_size=2"},
      {"parallel.data_parallel_shard_size=2"},
      {"parallel.tensor_parallel_size=3", "model.recompute=full"}};
  for (Words words : layouts) {
    INFO(words.front());
    words.insert(words.end(), replay.begin(), replay.end());
    const RecordedRun other = trained_with(files, with, words);
    CHECK(difference(one, other) < 1e-10);
    // It counts tokens that are computed.
    const bool shared = std::ranges::find(words, "sp.shared_prefix=false") == words.end();
    const double here = other.metrics.front().at("router/changed_routes").get<double>();
    CHECK((std::abs(here - changed) < 1e-12) == shared);
  }
}

TEST_CASE("ranks without tokens take part in the exchange of the experts' rows", "[routes]") {
  const ModelDirectory files;
  const TemporaryDirectory directory;
  const fs::path with = directory.path() / "with.jsonl";
  const auto rollouts = rollouts_with_routes();
  rl::RolloutLog(with, 0).write(1, rollouts, std::vector<int64_t>(rollouts.size() + 1, 0), {});
  for (const char* replay : {"none", "rollout", "recompute"}) {
    INFO(replay);
    // One rollout an optimizer step, and one sample a step that is scored for the log: one of two
    // data-parallel ranks has none.
    Words words{std::string("algorithm.router_replay=") + replay, "rollout.prompts_per_step=1",
                "train.num_mini_batches=4", "log.samples=1", "log.samples_after=true"};
    const RecordedRun one = trained_with(files, with, words);
    words.insert(words.end(),
                 {"parallel.data_parallel_shard_size=2", "parallel.expert_parallel_size=2"});
    CHECK(difference(one, trained_with(files, with, words)) < 1e-10);
  }
}

TEST_CASE("training replays the routes of the old policy's pass", "[routes]") {
  const ModelDirectory files;
  const fs::path rollouts = kGoldens / "plain.jsonl";
  const RecordedRun none = trained_with(files, rollouts, {});
  CHECK_FALSE(none.metrics.front().contains("router/changed_routes"));
  const Words replay{"algorithm.router_replay=recompute"};
  const RecordedRun one = trained_with(files, rollouts, replay);
  // The second mini-batch's weights differ from the old policy's.
  CHECK(one.metrics.front().at("router/changed_routes").get<double>() > 0.0);
  CHECK(difference(one, none) > 1e-6);
  const RecordedRun two =
      trained_with(files, rollouts,
                   {replay[0], "parallel.ringattn_parallel_size=2",
                    "parallel.ulysses_parallel_size=2", "model.recompute=selective"});
  CHECK(difference(one, two) < 1e-10);
  CHECK(difference(one, trained_with(files, rollouts,
                                     {replay[0], "parallel.tensor_parallel_size=2"})) < 1e-10);
}

TEST_CASE("a rollout without routes is refused where they are replayed", "[routes]") {
  const ModelDirectory files;
  CHECK_THROWS_WITH(
      trained_with(files, kGoldens / "plain.jsonl", {"algorithm.router_replay=rollout"}),
      Catch::Contains("plain.jsonl:1: rollout '0/0': brings no routed experts"));
}

// A worker whose routers differ from those that it installed.
class PerturbedSampler final : public rl::DecoderSampler {
 public:
  using rl::DecoderSampler::DecoderSampler;

  std::string install(const bridge::WeightSnapshot& snapshot) override {
    const std::string root = DecoderSampler::install(snapshot);
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
    edit_routers(decoder(), [&](at::Tensor router) {
      router.add_(at::randn(router.sizes(), generator, router.options()), 0.002);
    });
    return root;
  }
};

// The first step's metrics of a live run with that worker.
nlohmann::json live_step(const ModelDirectory& files, const std::string& replay) {
  rl::Config config = rl::load_config_or_throw(
      {}, {"model.path=" + files.path("model"), "data.train=" + files.path("train.jsonl"),
           "rollout.prompts_per_step=4", "rollout.group_size=4", "rollout.reward=length",
           "rollout.max_completion_tokens=40", "train.steps=1", "log.samples=0",
           "algorithm.router_replay=" + replay});
  rl::factor_context_parallel(config);
  const TemporaryDirectory run_dir;
  return live_run<PerturbedSampler>(config, run_dir.path()).front();
}

TEST_CASE("replay takes back what a perturbed router of the worker does", "[routes]") {
  const ModelDirectory files;
  const auto kl = [](const nlohmann::json& step) {
    return step.at("rollout_corr/k3_kl").get<double>();
  };
  const nlohmann::json without = live_step(files, "none");
  const nlohmann::json with = live_step(files, "rollout");
  WARN("k3 between worker and trainer without replay " << kl(without) << ", with replay "
                                                       << kl(with) << ", changed routes "
                                                       << with.at("router/changed_routes"));
  CHECK(kl(without) > 1e-4);
  CHECK(with.at("router/changed_routes").get<double>() > 0.01);
  CHECK(kl(with) < kl(without) / 10);
}

}  // namespace
}  // namespace ringside::test
