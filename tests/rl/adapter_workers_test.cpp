// Guards several adapters over the bridge, in one process: versions in which adapters are mixed up,
// prompts sampled by another adapter than their own, workers with other adapters than the trainer.
#include <ATen/core/grad_mode.h>

#include <fstream>
#include <thread>

#include "engine/io/hf_directory.h"
#include "rl/config/adapter_names.h"
#include "rl/publish/weight_snapshot.h"
#include "rl/worker/decoder_sampler.h"
#include "rl/worker/run_loop.h"
#include "rollout_bridge/weights/snapshot.h"
#include "tests/support/letter_tokenizer.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_model.h"
#include "tests/support/training_cases.h"

namespace fs = std::filesystem;

namespace ringside::test {
namespace {

// A base, and prompts of two adapters with opposite tasks: completions of the letters a to m, and
// of all others.
class Tenants {
 public:
  Tenants() {
    fs::create_directories(path("model"));
    engine::ModelConfig config = tiny_config(32);
    config.eos_token_ids = {1};
    engine::save_decoder(random_decoder(config, at::kFloat, 11, 0.4), path("model"), at::kFloat);
    write_file(directory_.path() / "model/tokenizer.json", letter_tokenizer());
    std::ofstream prompts(path("train.jsonl"));
    for (const std::string text : {"abc", "xyz", "hello", "q"}) {
      prompts << R"({"prompt": ")" << text << R"(", "adapter": "low", "answer": "abcdefghijklm"})"
              << "\n";
      prompts << R"({"prompt": ")" << text
              << R"(", "adapter": "high", "answer": "nopqrstuvwxyz0123"})"
              << "\n";
    }
    std::ofstream(path("reward.py")) << "def among(completions, answers, **_):\n"
                                        "    return [sum(c in a for c in t) / max(1, len(t)) for "
                                        "t, a in zip(completions, answers)]\n";
  }
  fs::path path(const std::string& name) const { return directory_.path() / name; }

  rl::Config config(const Words& more) const {
    Words words{"model.path=" + path("model").string(),
                "data.train=" + path("train.jsonl").string(),
                "lora.rank=4",
                "lora.publish=adapter",
                "lora.adapters=low, high",
                "rollout.prompts_per_step=4",
                "rollout.group_size=8",
                "rollout.reward=python(" + path("reward.py").string() + ":among)",
                "rollout.max_completion_tokens=6",
                "optimizer.learning_rate=0.02",
                "optimizer.warmup_steps=0",
                "eval.every=0",
                "log.samples=0",
                "log.progress=lines"};
    words.insert(words.end(), more.begin(), more.end());
    return rl::load_config_or_throw({}, words);
  }

 private:
  TemporaryDirectory directory_;
};

// Trains with one worker in a thread. Returns what ended the worker by itself.
std::string run_live(const rl::Config& config, const rl::Config& of_worker, const fs::path& dir) {
  std::string error;
  std::jthread worker([&](const std::stop_token& stop) {
    try {
      const rl::WorkerSettings settings{"worker", dir / "bridge/endpoint.json",
                                        [stop] { return stop.stop_requested(); }};
      rl::DecoderSampler sampler(of_worker, "worker");
      bridge::WorkerEndpoint endpoint(
          rl::worker_options(of_worker, settings, sampler.shared_settings()));
      rl::EmbeddedLoop loop(endpoint, sampler, settings, 32, settings.now);
      rl::run_loop(loop, endpoint, settings);
    } catch (const std::exception& e) {
      error = e.what();
    }
  });
  run_ranks(
      {},
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        train_live(config, dir, mesh, comms);
      },
      std::chrono::seconds(60));
  return error;
}

double mean_of(const std::vector<nlohmann::json>& steps, const std::string& name, std::size_t first,
               std::size_t count) {
  double sum = 0.0;
  for (std::size_t step = first; step < first + count; ++step) {
    sum += steps.at(step).at(name).get<double>();
  }
  return sum / static_cast<double>(count);
}

TEST_CASE("two adapters over one base learn opposite tasks from the workers' samples") {
  const Tenants tenants;
  const rl::Config config = tenants.config({"train.steps=30"});
  const TemporaryDirectory dir;
  CHECK(run_live(config, config, dir.path()) == "");
  const auto steps = metrics_of(dir.path());
  REQUIRE(steps.size() == 30);
  for (const std::string name : {"adapter/low/reward", "adapter/high/reward"}) {
    CAPTURE(name, mean_of(steps, name, 0, 3), mean_of(steps, name, 27, 3));
    CHECK(mean_of(steps, name, 27, 3) > mean_of(steps, name, 0, 3) + 0.2);
    // The sampler's own log-probs are those of the adapter that trains on them.
    CHECK(steps[29].at(name.substr(0, name.rfind('/')) + "/sampling/sampling_logp_difference/max") <
          1e-3);
  }
}

TEST_CASE("a version of several adapters installs each into its own decoder, and proves it") {
  const Tenants tenants;
  const rl::Config config = tenants.config({});
  const auto models = [&](double first) {
    auto all = rl::make_worker_models(config, c10::Device(c10::kCPU));
    const at::NoGradGuard no_grad;
    for (auto& [name, decoder] : all) {
      decoder->adapters()->unit().flat().fill_(first++);
      decoder->adapters()->unit().changed();
    }
    return all;
  };
  const auto trainer = models(1);
  const auto worker = models(7);
  CHECK(trainer[0].decoder->units() == trainer[1].decoder->units());  // one base
  std::vector<engine::PrefixedStages> published;
  std::vector<rl::PrefixedDecoder> installed;
  for (std::size_t i = 0; i < trainer.size(); ++i) {
    const std::string prefix = rl::adapter_prefix(trainer[i].name);
    published.push_back({prefix, {trainer[i].decoder.get()}});
    installed.push_back({prefix, worker[i].decoder.get()});
  }
  const auto snapshot = bridge::make_snapshot(
      "run", 1, 5, rl::copy_weights(engine::WeightView::adapters_of(published), at::kFloat));
  CHECK(snapshot->manifest.tensors.front().name ==
        "low/base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  CHECK(rl::installed_root_hash(installed, snapshot->manifest) != snapshot->manifest.root_hash);
  rl::install_weights(installed, *snapshot);
  CHECK(rl::installed_root_hash(installed, snapshot->manifest) == snapshot->manifest.root_hash);
  for (std::size_t i = 0; i < worker.size(); ++i) {
    CHECK(worker[i]
              .decoder->adapters()
              ->unit()
              .flat()
              .eq(1.0 + static_cast<double>(i))
              .all()
              .item<bool>());
  }
  std::swap(installed[0], installed[1]);
  CHECK_THROWS_WITH(rl::install_weights(installed, *snapshot),
                    Catch::Contains("the model expects high/base_model"));
}

TEST_CASE("a worker with other adapters, or other prompts for them, is refused") {
  const Tenants tenants;
  const auto of = [&](const Words& words) {
    return rl::DecoderSampler(tenants.config(words), "worker").shared_settings();
  };
  const bridge::Settings trainer = of({});
  CHECK(of({}).weights == trainer.weights);
  CHECK(of({"lora.adapters=high, low"}).weights != trainer.weights);
  std::ofstream(tenants.path("swapped.jsonl")) << R"({"prompt": "a", "adapter": "low"})"
                                               << "\n"
                                               << R"({"prompt": "a", "adapter": "high"})";
  std::ofstream(tenants.path("straight.jsonl")) << R"({"prompt": "a", "adapter": "high"})"
                                                << "\n"
                                                << R"({"prompt": "a", "adapter": "low"})";
  const Words straight{"data.train=" + tenants.path("straight.jsonl").string()};
  const Words swapped{"data.train=" + tenants.path("swapped.jsonl").string()};
  CHECK(of(straight).prompts != of(swapped).prompts);
}

}  // namespace
}  // namespace ringside::test
