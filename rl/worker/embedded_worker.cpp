#include "rl/worker/embedded_worker.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <stdexcept>
#include <utility>
#include <variant>

#include "rl/log/log.h"
#include "rl/shared_settings.h"
#include "rl/training_run.h"
#include "rl/weight_sync.h"
#include "rl/worker/prompt_sampler.h"
#include "rollout_bridge/worker_endpoint.h"

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPollInterval{100};
constexpr milliseconds kSendTimeout{60000};
constexpr milliseconds kByeTimeout{5000};

class EmbeddedWorker {
 public:
  EmbeddedWorker(const Config& config, const WorkerSettings& settings)
      : config_(config),
        link_(settings),
        decoder_(load_model_config(config, config.model.path), scalar_type(config.model.dtype)),
        sampler_(config, decoder_.config()),
        jobs_(config),
        endpoint_(worker_options(
            config, settings,
            shared_settings(config, decoder_.config(), jobs_.prompts(), sampler_.stops()))) {}

  void run() {
    while (!link_.is_over()) {
      // Take everything that has come before the next batch: newer weights first of all.
      auto event = endpoint_.poll(work_.empty() ? kPollInterval : milliseconds::zero());
      if (event) {
        std::visit([this](auto& e) { handle(e); }, *event);
      } else if (!work_.empty()) {
        sample_batch();
      }
    }
    endpoint_.bye(link_.ended() ? "the run has ended" : "asked to stop", kByeTimeout);
  }

 private:
  void handle(const bridge::Connected& connected) {
    log::info("connected to run " + connected.run_id + ", epoch " + std::to_string(connected.run_epoch));
    work_.clear();  // a trainer that was started anew grants anew
  }
  void handle(const bridge::Granted& granted) {
    for (SampleJob& job : jobs_.of(granted.groups)) {
      work_.push_back(std::move(job));
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
  template <class Other>
  void handle(const Other& event) {
    link_.handle(event);
  }

  void sample_batch() {
    const auto end = work_.begin() + std::min(static_cast<int64_t>(work_.size()), samples_per_step(config_));
    const std::vector<SampleJob> batch(work_.begin(), end);
    work_.erase(work_.begin(), end);
    std::vector<Prompt> prompts;
    std::vector<uint64_t> seeds;
    for (const SampleJob& job : batch) {
      prompts.push_back(job.prompt);
      seeds.push_back(job.seed);
    }
    const auto scored = sampler_.sample(decoder_, prompts, seeds, config_.rollout.temperature);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto tokens = static_cast<int64_t>(scored[i].completion.ids.size());
      const auto status = endpoint_.send_rollout(
          make_rollout(config_, link_.settings().worker_id, batch[i], scored[i], {{version_, 0, tokens}}), kSendTimeout);
      if (!status.ok()) {
        log::warn("a rollout of group " + std::to_string(batch[i].group.group_id) + " was not sent: " +
                  status.error().detail);
      }
    }
  }

  Config config_;
  LinkEvents link_;
  engine::Decoder decoder_;
  PromptSampler sampler_;
  SampleJobs jobs_;
  std::deque<SampleJob> work_;
  int64_t version_ = -1;
  bridge::WorkerEndpoint endpoint_;
};

}  // namespace

void run_embedded_worker(const Config& config, const WorkerSettings& settings) {
  EmbeddedWorker(config, settings).run();
}

}  // namespace ringside::rl
