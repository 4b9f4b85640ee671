#include "tests/rl/served_run.h"

#include <algorithm>
#include <cmath>

#include "engine/io/hf_directory.h"
#include "rl/report/log.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/shared_settings.h"
#include "tests/support/tiny_model.h"

namespace ringside::test {
namespace {

constexpr const char* kTokenizer = R"({
  "added_tokens": [{"id": 0, "content": "<pad>", "special": true, "normalized": false},
                   {"id": 1, "content": ";", "special": true, "normalized": false}],
  "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
  "model": {"type": "BPE", "unk_token": "<unk>", "merges": [],
            "vocab": {"<pad>": 0, ";": 1, "<unk>": 2, "a": 3, "b": 4, "c": 5, "d": 6, "e": 7}}})";

engine::Decoder drawn(uint64_t seed) {
  engine::ModelConfig config = tiny_config(8);
  config.num_hidden_layers = 1;
  config.eos_token_ids = {1};
  return random_decoder(config, at::kFloat, seed, 0.5);
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

// That of a worker which evaluates by this configuration.
std::optional<std::string> held_out_fingerprint(rl::Config config) {
  config.eval.by = rl::EvalBy::kWorkers;
  config.eval.every = 1;
  const std::filesystem::path model = config.model.path;
  const auto tokenizer = engine::Tokenizer::load(model / "tokenizer.json");
  return rl::shared_settings(config, rl::load_model_config(config, model), {},
                             rl::held_out_of_workers(config, tokenizer), {})
      .held_out;
}

}  // namespace

ServedRun::ServedRun(const std::function<void(rl::Config&)>& edit) {
  const auto model = dir_.path() / "model";
  std::filesystem::create_directories(model);
  engine::save_decoder(drawn(1000), model, at::kFloat);
  write_text(model / "tokenizer.json", kTokenizer);
  std::string lines;
  for (const char* prompt : {"ab", "bcd", "e", "dada"}) {
    lines += std::string(R"({"prompt": ")") + prompt + R"(", "answer": "a"})" + "\n";
  }
  write_text(dir_.path() / "train.jsonl", lines);

  config_.model.path = model.string();
  config_.data.train = config_.data.eval = (dir_.path() / "train.jsonl").string();
  auto options = trainer_options(dir_, /*ungranted_size=*/2);
  options.settings.held_out = held_out_fingerprint(config_);
  trainer_ = std::make_unique<TestTrainer>(options);
  config_.bridge.rollout_address = trainer_->rollout_address();
  config_.bridge.weights_address = trainer_->weights_address();
  rl::RolloutConfig& rollout = config_.rollout;
  rollout.prompts_per_step = 4;
  rollout.group_size = 2;
  rollout.max_completion_tokens = 6;
  rollout.temperature = 0.8;
  rollout.server = rl::RolloutServer::kSglang;
  rollout.server_options.concurrency = 2;
  rollout.server_options.weights_directory = (dir_.path() / "versions").string();
  rollout.server_options.probe_tolerance = 1e-4;
  rollout.server_options.load_timeout_s = 20;
  edit(config_);
  server_ = std::make_unique<PolicyServer>(config_);
  rollout.server_options.url = server_->url();
  judge_ = std::make_unique<rl::ShadowModel>(config_);
  worker_ = std::jthread([this](const std::stop_token& stop) {
    try {
      rl::run_server_worker(config_, {"worker",
                                      {},
                                      [stop] { return stop.stop_requested(); },
                                      [this] {
                                        return std::chrono::steady_clock::now() +
                                               std::chrono::milliseconds(ahead_ms_);
                                      }});
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      worker_error_ = error.what();
    }
  });
}

ServedRun::~ServedRun() {
  server_->let_go();
  worker_.request_stop();
  worker_.join();
}

std::shared_ptr<const bridge::WeightSnapshot> ServedRun::weights(int64_t version) const {
  return rl::snapshot_weights(drawn(static_cast<uint64_t>(version)), at::kFloat, "run",
                              trainer_term_, version);
}

void ServedRun::restart_trainer() {
  auto options = trainer_options(dir_, /*ungranted_size=*/2);
  options.rollout_address = trainer_->rollout_address();
  options.weights_address = trainer_->weights_address();
  options.trainer_term = ++trainer_term_;
  trainer_.reset();
  trainer_ = std::make_unique<TestTrainer>(options);
}

std::vector<bridge::Rollout> ServedRun::take(std::size_t count) {
  auto rollouts = collect(*trainer_, count);
  for (const bridge::Rollout& r : rollouts) {
    REQUIRE(r.versions.size() == 1);
    REQUIRE(r.completion_ids.size() == 6);
    judge_->install(weights(r.versions[0].version));
    std::vector<int64_t> ids = r.prompt_ids;
    ids.insert(ids.end(), r.completion_ids.begin(), r.completion_ids.end());
    const auto expected = judge_->score(ids, 0.8);
    for (std::size_t i = 0; i < r.logprobs.size(); ++i) {
      INFO(r.rollout_id << " token " << i);
      CHECK(r.logprobs[i] == Approx(expected[r.prompt_ids.size() - 1 + i]).margin(1e-5));
    }
  }
  return rollouts;
}

std::string ServedRun::worker_error() const {
  const std::lock_guard lock(mutex_);
  return worker_error_;
}

std::size_t find_event(const std::vector<std::string>& log, const std::string& event,
                       std::size_t begin) {
  return static_cast<std::size_t>(
      std::find(log.begin() + static_cast<std::ptrdiff_t>(std::min(begin, log.size())), log.end(),
                event) -
      log.begin());
}

}  // namespace ringside::test
