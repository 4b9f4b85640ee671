// Small runs of reinforcement learning for tests: a model directory with prompts, live runs with an
// embedded worker, and runs from recorded rollouts, at any layout.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "engine/io/hf_directory.h"
#include "engine/io/safetensors.h"
#include "rl/setup/sharding.h"
#include "rl/worker/decoder_sampler.h"
#include "rl/worker/run_loop.h"
#include "tests/support/letter_tokenizer.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_model.h"
#include "tests/support/training_cases.h"

namespace ringside::test {

// A random model of letters, and prompts.
class SmallModel {
 public:
  SmallModel() {
    engine::ModelConfig config = tiny_config(32);
    config.eos_token_ids = {1};
    std::filesystem::create_directories(path("model"));
    std::filesystem::create_directories(path("reference"));
    engine::save_decoder(random_decoder(config, at::kFloat, 11, 0.4), path("model"), at::kFloat);
    engine::save_decoder(random_decoder(config, at::kFloat, 12, 0.4), path("reference"),
                         at::kFloat);
    write_file(directory_.path() / "model/tokenizer.json", letter_tokenizer());
    std::string prompts;
    for (const char* prompt : {"abc", "bcd", "hello", "zyxwv"}) {
      prompts += std::string(R"({"prompt": ")") + prompt + R"(", "answer": "a"})" + "\n";
    }
    write_file(directory_.path() / "train.jsonl", prompts);
  }
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

  // `words` behind the settings of a small run.
  rl::Config config(const Words& words) const {
    Words all{"model.path=" + path("model"),
              "data.train=" + path("train.jsonl"),
              "rollout.prompts_per_step=4",
              "rollout.group_size=4",
              "rollout.reward=length",
              "rollout.max_completion_tokens=24",
              "train.tokens_per_micro_batch=96",
              "optimizer.learning_rate=0.01",
              "log.samples=0"};
    all.insert(all.end(), words.begin(), words.end());
    rl::Config config = rl::load_config_or_throw({}, all);
    rl::factor_context_parallel(config);
    return config;
  }

 private:
  TemporaryDirectory directory_;
};

// A live run with one embedded worker, in `run_dir`. Returns its metrics.
template <typename Sampler = rl::DecoderSampler>
std::vector<nlohmann::json> live_run(const rl::Config& config,
                                     const std::filesystem::path& run_dir) {
  const std::filesystem::path endpoint_file = run_dir / "bridge/endpoint.json";
  std::string error;
  {
    std::jthread worker([&](const std::stop_token& stop) {
      try {
        const rl::WorkerSettings settings{"worker", endpoint_file,
                                          [stop] { return stop.stop_requested(); }};
        Sampler sampler(config, settings.worker_id);
        bridge::WorkerEndpoint endpoint(
            rl::worker_options(config, settings, sampler.shared_settings()));
        rl::EmbeddedLoop loop(endpoint, sampler, settings, rl::samples_per_batch(config),
                              settings.now);
        rl::run_loop(loop, endpoint, settings);
      } catch (const std::exception& e) {
        error = e.what();
      }
    });
    run_ranks(
        rl::mesh_shape(config.parallel),
        [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
          train_live(config, run_dir, mesh, comms);
        },
        std::chrono::seconds(60), rl::sharding_axes(config.parallel));
  }
  REQUIRE(error == "");
  return metrics_of(run_dir);
}

struct RecordedRun {
  std::vector<nlohmann::json> metrics;
  std::vector<at::Tensor> weights;  // of the final model
};

// A run from recorded rollouts.
inline RecordedRun recorded_run(const rl::Config& config, const std::filesystem::path& rollouts) {
  const TemporaryDirectory run_dir;
  run_ranks_in_memory(
      rl::mesh_shape(config.parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        train(config, rollouts, run_dir.path(), mesh, comms);
      },
      rl::sharding_axes(config.parallel));
  RecordedRun run{metrics_of(run_dir.path()), {}};
  for (const std::string& name : tensor_files(run_dir.path())) {
    if (name.starts_with("checkpoint-final")) {
      const engine::SafetensorsFile file(run_dir.path() / name);
      for (std::size_t i = 0; i < file.entries().size(); ++i) {
        run.weights.push_back(file.tensor(i).clone());
      }
    }
  }
  return run;
}

// The largest difference of their weights.
inline double difference(const RecordedRun& a, const RecordedRun& b) {
  REQUIRE(a.weights.size() == b.weights.size());
  REQUIRE_FALSE(a.weights.empty());
  double worst = 0;
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    const at::Tensor apart = a.weights[i].to(at::kDouble) - b.weights[i].to(at::kDouble);
    worst = std::max(worst, apart.abs().max().item<double>());
  }
  return worst;
}

}  // namespace ringside::test
