#include "rl/worker/embedded_worker.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <stdexcept>
#include <thread>
#include <variant>

#include "rl/data/data_order.h"
#include "rl/endpoint_file.h"
#include "rl/log/log.h"
#include "rl/training_run.h"
#include "rl/weight_sync.h"
#include "rl/worker/prompt_sampler.h"
#include "rollout_bridge/keys.h"
#include "rollout_bridge/worker_endpoint.h"

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPollInterval{100};
constexpr milliseconds kSendTimeout{60000};
constexpr milliseconds kByeTimeout{5000};

int64_t samples_per_step(const Config& config) {
  return config.rollout.prompts_per_step * config.rollout.group_size;
}

// The trainer's addresses: fixed ones of the configuration, or those in the endpoint file as soon as it is there.
bridge::WorkerOptions endpoint_options(const Config& config, const WorkerSettings& settings) {
  bridge::WorkerOptions options;
  options.worker_id = settings.worker_id;
  // Asynchronously a step's samples wait while another's are made: the next batch is then as large.
  options.capacity_samples = samples_per_step(config) * (config.algorithm.max_staleness > 0 ? 2 : 1);
  const CurveConfig& curve = config.bridge.curve;
  if (!curve.worker_secret.empty()) {
    options.curve = bridge::CurveClient{bridge::read_secret_key(curve.worker_secret),
                                        bridge::read_public_key(curve.trainer_public)};
  }
  if (settings.endpoint_file.empty()) {
    options.rollout_address = config.bridge.rollout_address;
    options.weights_address = config.bridge.weights_address;
    return options;
  }
  while (!settings.should_stop()) {
    if (const auto found = read_endpoint_file(settings.endpoint_file)) {
      options.rollout_address = found->rollout_address;
      options.weights_address = found->weights_address;
      return options;
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  throw std::runtime_error("stopped before the trainer wrote " + settings.endpoint_file.string());
}

bridge::FinishReason wire_reason(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return bridge::FinishReason::kStop;
    case engine::FinishReason::kLength:
      return bridge::FinishReason::kLength;
    case engine::FinishReason::kAborted:
      return bridge::FinishReason::kAborted;
  }
  throw std::invalid_argument("unknown finish reason");
}

class EmbeddedWorker {
 public:
  EmbeddedWorker(const Config& config, const WorkerSettings& settings)
      : config_(config),
        settings_(settings),
        decoder_(load_model_config(config, config.model.path), scalar_type(config.model.dtype)),
        sampler_(config, decoder_.config()),
        prompts_(read_prompts(config.data.train, config.data)),
        order_(static_cast<int64_t>(prompts_.size()), static_cast<uint64_t>(config.seed), config.data.shuffle),
        endpoint_(endpoint_options(config, settings)) {}

  void run() {
    while (!ended_ && !settings_.should_stop()) {
      // Take everything that has come before the next batch: newer weights first of all.
      auto event = endpoint_.poll(work_.empty() ? kPollInterval : milliseconds::zero());
      if (event) {
        std::visit([this](auto& e) { handle(e); }, *event);
      } else if (!work_.empty()) {
        sample_batch();
      }
    }
    endpoint_.bye(ended_ ? "the run has ended" : "asked to stop", kByeTimeout);
  }

 private:
  struct Sample {
    bridge::GrantedGroup group;
    int32_t sample_index;
  };

  void handle(const bridge::Connected& connected) {
    log::info("connected to run " + connected.run_id + ", epoch " + std::to_string(connected.run_epoch));
    work_.clear();  // a trainer that was started anew grants anew
  }
  void handle(const bridge::Granted& granted) {
    for (const bridge::GrantedGroup& group : granted.groups) {
      for (const int32_t sample : group.sample_indices) {
        work_.push_back({group, sample});
      }
    }
  }
  void handle(const bridge::WeightsReady& ready) {
    const bridge::Manifest& manifest = ready.snapshot->manifest;
    install_weights(decoder_, *ready.snapshot);
    version_ = manifest.version;
    const auto status = endpoint_.commit_weights(version_, installed_root_hash(decoder_, manifest));
    if (!status.ok()) {
      log::warn("weights of version " + std::to_string(version_) + ": " + status.error().detail);
    }
  }
  void handle(const bridge::RolloutRejected& rejected) {
    log::warn("rollout " + rejected.rollout_id + " was refused: " + rejected.reason + ", " + rejected.detail);
  }
  void handle(const bridge::Ended& ended) {
    log::info("the trainer ended the run: " + ended.reason);
    ended_ = true;
  }
  void handle(const bridge::Failed& failed) {
    throw std::runtime_error("the trainer refuses this worker: " + failed.reason + ", " + failed.detail);
  }
  void handle(const bridge::Disconnected& disconnected) { log::warn("disconnected: " + disconnected.why); }

  void sample_batch() {
    const auto end = work_.begin() + std::min(static_cast<int64_t>(work_.size()), samples_per_step(config_));
    const std::vector<Sample> batch(work_.begin(), end);
    work_.erase(work_.begin(), end);
    std::vector<Prompt> prompts;
    std::vector<uint64_t> seeds;
    for (const Sample& sample : batch) {
      prompts.push_back(prompts_[order_.at(sample.group.group_id)]);
      seeds.push_back(mix_seed({static_cast<uint64_t>(config_.seed), static_cast<uint64_t>(sample.group.group_id),
                                static_cast<uint64_t>(sample.sample_index),
                                static_cast<uint64_t>(sample.group.attempt)}));
    }
    const auto scored = sampler_.sample(decoder_, prompts, seeds, config_.rollout.temperature);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto status = endpoint_.send_rollout(make_rollout(batch[i], prompts[i], scored[i]), kSendTimeout);
      if (!status.ok()) {
        log::warn("a rollout of group " + std::to_string(batch[i].group.group_id) + " was not sent: " +
                  status.error().detail);
      }
    }
  }

  bridge::Rollout make_rollout(const Sample& sample, const Prompt& prompt, const ScoredCompletion& scored) const {
    bridge::Rollout r;
    r.rollout_id = std::to_string(sample.group.group_id) + "/" + std::to_string(sample.sample_index) + "/v" +
                   std::to_string(version_) + "/" + std::to_string(sample.group.attempt) + "/" +
                   settings_.worker_id;
    r.attempt = sample.group.attempt;
    r.group_id = sample.group.group_id;
    r.group_size = sample.group.group_size;
    r.sample_index = sample.sample_index;
    r.prompt_id = prompt.id;
    r.prompt_ids = scored.prompt_ids;
    r.completion_ids = scored.completion.ids;
    r.logprobs = scored.completion.logprobs;
    r.temperature = static_cast<float>(config_.rollout.temperature);
    r.top_p = static_cast<float>(config_.rollout.top_p);
    r.top_k = static_cast<int32_t>(config_.rollout.top_k);
    r.versions = {{version_, 0, static_cast<int64_t>(r.completion_ids.size())}};
    r.finish_reason = wire_reason(scored.completion.finish);
    r.rewards = scored.scores.raw;
    if (!scored.scores.failure.empty()) {
      // Not a reward of 0: the trainer asks for the sample again, and takes it unscored when that fails too often.
      log::warn("rollout " + r.rollout_id + ": " + scored.scores.failure);
      r.finish_reason = bridge::FinishReason::kError;
      r.loss_mask.assign(r.completion_ids.size(), 0);
    }
    return r;
  }

  Config config_;
  WorkerSettings settings_;
  engine::Decoder decoder_;
  PromptSampler sampler_;
  std::vector<Prompt> prompts_;
  DataOrder order_;
  std::deque<Sample> work_;
  int64_t version_ = -1;
  bool ended_ = false;
  bridge::WorkerEndpoint endpoint_;
};

}  // namespace

void run_embedded_worker(const Config& config, const WorkerSettings& settings) {
  EmbeddedWorker(config, settings).run();
}

}  // namespace ringside::rl
