// Guards evaluation by the rollout workers, over the bridge and in one process: figures that differ
// from those of the generator of rank 0, weights of another step, samples lost with a worker, a run
// that waits for workers that cannot evaluate.
#include <atomic>
#include <cmath>
#include <fstream>
#include <thread>

#include "engine/io/hf_directory.h"
#include "rl/rollouts/live_source.h"
#include "rl/worker/decoder_sampler.h"
#include "rl/worker/run_loop.h"
#include "tests/support/letter_tokenizer.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_model.h"
#include "tests/support/training_cases.h"

namespace fs = std::filesystem;

namespace ringside::test {
namespace {

void write_prompts(const fs::path& path, const std::vector<std::string>& prompts) {
  std::ofstream file(path);
  for (const std::string& prompt : prompts) {
    file << R"({"prompt": ")" << prompt << R"(", "answer": "a"})"
         << "\n";
  }
}

class EvaluatedModel {
 public:
  EvaluatedModel() {
    fs::create_directories(path("model"));
    engine::ModelConfig config = tiny_config(32);
    config.eos_token_ids = {1};
    engine::save_decoder(random_decoder(config, at::kFloat, 11, 0.4), path("model"), at::kFloat);
    write_file(directory_.path() / "model/tokenizer.json", letter_tokenizer());
    write_prompts(path("train.jsonl"), {"abc", "bcd", "hello", "zyxwv"});
    write_prompts(path("seen.jsonl"), {"abc", "bcd", "hello"});
    write_prompts(path("unseen.jsonl"), {"q", "rst", "uvwxy", "left out"});
  }
  fs::path path(const std::string& name) const { return directory_.path() / name; }

  // Greedy completions end at a letter or after 12 tokens; the reward is their length.
  rl::Config config(const Words& more) const {
    Words words{"model.path=" + path("model").string(),
                "data.train=" + path("train.jsonl").string(),
                "data.eval=" + path("seen.jsonl").string(),
                "eval.sets={unseen: " + path("unseen.jsonl").string() + "}",
                "eval.every=1",
                "eval.max_prompts=3",
                "rollout.prompts_per_step=4",
                "rollout.group_size=4",
                "rollout.reward=length",
                "rollout.stop=d",
                "rollout.max_completion_tokens=12",
                "optimizer.learning_rate=0.02",
                "optimizer.warmup_steps=0",
                "train.steps=2",
                "log.samples=0"};
    words.insert(words.end(), more.begin(), more.end());
    rl::Config config = rl::load_config_or_throw({}, words);
    rl::factor_context_parallel(config);
    return config;
  }

 private:
  TemporaryDirectory directory_;
};

// Leaves for good when it is to make its second batch with held-out samples.
class LeavingSampler final : public rl::DecoderSampler {
 public:
  LeavingSampler(const rl::Config& config, const std::string& id, std::atomic<int>& batches)
      : DecoderSampler(config, id), batches_(batches) {}

  std::vector<bridge::Rollout> sample(const std::vector<bridge::GrantedSample>& samples,
                                      int64_t version,
                                      const std::function<bool()>& should_stop) override {
    if (samples.front().held_out >= 0 && ++batches_ == 2) {
      throw std::runtime_error("killed");
    }
    return DecoderSampler::sample(samples, version, should_stop);
  }

 private:
  std::atomic<int>& batches_;
};

using MakeSampler = std::function<std::unique_ptr<rl::DecoderSampler>(const std::string& id)>;

// A worker on a thread; `error` is why it ended by itself.
std::jthread start_worker(const rl::Config& config, const fs::path& run_dir, const std::string& id,
                          const MakeSampler& make, std::string& error) {
  return std::jthread([=, &error](const std::stop_token& stop) {
    try {
      const rl::WorkerSettings settings{id, run_dir / "bridge/endpoint.json",
                                        [stop] { return stop.stop_requested(); }};
      const auto sampler = make(id);
      bridge::WorkerEndpoint endpoint(
          rl::worker_options(config, settings, sampler->shared_settings()));
      rl::EmbeddedLoop loop(endpoint, *sampler, settings, 4, settings.now);
      rl::run_loop(loop, endpoint, settings);
    } catch (const std::exception& e) {
      error = e.what();
    }
  });
}

struct Evaluated {
  std::vector<nlohmann::json> steps;
  std::vector<std::string> errors;  // of the workers
};

Evaluated run(const rl::Config& config, const rl::Config& of_workers,
              const std::vector<MakeSampler>& workers) {
  const TemporaryDirectory run_dir;
  Evaluated found;
  found.errors.resize(workers.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < workers.size(); ++i) {
      threads.push_back(start_worker(of_workers, run_dir.path(), "worker" + std::to_string(i),
                                     workers[i], found.errors[i]));
    }
    run_ranks(
        rl::mesh_shape(config.parallel),
        [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
          train_live(config, run_dir.path(), mesh, comms);
        },
        std::chrono::seconds(60));
  }
  found.steps = metrics_of(run_dir.path());
  return found;
}

MakeSampler plain(const rl::Config& config) {
  return
      [config](const std::string& id) { return std::make_unique<rl::DecoderSampler>(config, id); };
}

const std::vector<std::string> kFigures{
    "eval_reward",    "eval/reward_ci95",   "eval/pass@1",       "eval/length",
    "eval/truncated", "eval/unseen/reward", "eval/unseen/length"};

void check_equal(const Evaluated& one, const Evaluated& other) {
  REQUIRE(one.steps.size() == other.steps.size());
  for (std::size_t step = 0; step < one.steps.size(); ++step) {
    for (const std::string& name : kFigures) {
      CAPTURE(step, name);
      REQUIRE(one.steps[step].contains(name));
      REQUIRE(other.steps[step].contains(name));
      CHECK(one.steps[step].at(name) == other.steps[step].at(name));
    }
  }
}

TEST_CASE("greedy evaluation by a worker equals that of rank 0's generator at every step",
          "[evaluation]") {
  const EvaluatedModel model;
  const rl::Config by_workers = model.config({"eval.by=workers"});
  const rl::Config embedded = model.config({});
  const Evaluated one = run(by_workers, by_workers, {plain(by_workers)});
  const Evaluated other = run(embedded, embedded, {plain(embedded)});
  CHECK(one.errors == std::vector<std::string>{""});
  REQUIRE(one.steps.size() == 3);  // the first: before training
  check_equal(one, other);
  // The steps' weights give other completions: an evaluation of another version would differ.
  CHECK(one.steps[0].at("eval/unseen/length") != one.steps[1].at("eval/unseen/length"));
  CHECK(one.steps[1].at("eval/unseen/length") != one.steps[2].at("eval/unseen/length"));
  CHECK(one.steps[2].at("bridge/evaluated") == 12);  // before training and after step 1
  CHECK(one.steps[2].at("rollouts/accepted") == 32);
}

TEST_CASE("sampled evaluation by a worker draws what rank 0's generator draws", "[evaluation]") {
  const EvaluatedModel model;
  const Words sampled{"eval.samples=3", "eval.temperature=1", "train.steps=1"};
  Words words = sampled;
  words.emplace_back("eval.by=workers");
  const rl::Config by_workers = model.config(words);
  const rl::Config embedded = model.config(sampled);
  const Evaluated one = run(by_workers, by_workers, {plain(by_workers)});
  check_equal(one, run(embedded, embedded, {plain(embedded)}));
  CHECK(one.steps[1].contains("eval/pass@3"));
}

TEST_CASE("held-out samples of a worker that is lost are made by another", "[evaluation]") {
  const EvaluatedModel model;
  const rl::Config by_workers =
      model.config({"eval.by=workers", "bridge.heartbeat_s=0.1", "bridge.worker_timeout_s=1"});
  const rl::Config embedded = model.config({});
  std::atomic<int> batches{0};
  const MakeSampler leaving = [&](const std::string& id) {
    return std::make_unique<LeavingSampler>(by_workers, id, batches);
  };
  const Evaluated one = run(by_workers, by_workers, {leaving, leaving});
  CHECK(std::count(one.errors.begin(), one.errors.end(), "killed") == 1);
  CHECK(one.steps.back().at("bridge/lost_workers") == 1);
  check_equal(one, run(embedded, embedded, {plain(embedded)}));
}

TEST_CASE("an evaluation that no worker can do is left out and training goes on", "[evaluation]") {
  const EvaluatedModel model;
  const rl::Config by_workers = model.config({"eval.by=workers", "eval.timeout_s=0.2"});
  const rl::Config of_worker = model.config({"eval.every=0", "eval.max_prompts=0"});
  const Evaluated one = run(by_workers, of_worker, {plain(of_worker)});
  for (const nlohmann::json& step : one.steps) {
    CHECK_FALSE(step.contains("eval_reward"));
  }
  CHECK(one.steps.back().at("step") == 2);
  CHECK(one.steps.back().contains("loss"));
}

TEST_CASE("a source says why an evaluation has no answer", "[evaluation]") {
  const EvaluatedModel model;
  const rl::Config config = model.config({"eval.by=workers"});
  const TemporaryDirectory run_dir;
  run_ranks(
      rl::mesh_shape(config.parallel), [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        rl::TrainingRun run({config, run_dir.path(), 1}, mesh, comms);
        const auto source = rl::make_live_source(config, run.state().run_id, run_dir.path(), 0, 1);
        run.ranks().export_weights(run.policy().decoder(), source->weight_sink(0, 1));
        const rl::HeldOutAnswers answers =
            source->evaluate({6, 2, std::chrono::milliseconds(100), [] { return 0; }});
        CHECK(answers.samples.empty());
        CHECK(answers.missing ==
              "12 of 12 completions are missing; 0 of 0 connected workers have the held-out "
              "prompts");
        CHECK(source->weight_sink(0, 2));  // the last step's weights are evaluated
      });
}

TEST_CASE("recorded rollouts come without workers that could evaluate", "[evaluation]") {
  const EvaluatedModel model;
  const rl::Config config = model.config({"eval.by=workers"});
  const TemporaryDirectory run_dir;
  const fs::path rollouts = fs::path(RINGSIDE_SOURCE_DIR) / "tests/goldens/regression/plain.jsonl";
  CHECK_THROWS_WITH(run_ranks(rl::mesh_shape(config.parallel),
                              [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
                                rl::TrainingRun run({config, run_dir.path(), 1}, mesh, comms);
                                const auto source = rl::make_file_source(rollouts, config);
                                rl::train_rl(run, source.get());
                              }),
                    Catch::Contains("eval.by is workers, but this run has none"));
}

}  // namespace
}  // namespace ringside::test
