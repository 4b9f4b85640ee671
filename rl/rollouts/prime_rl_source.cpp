#include "rl/rollouts/prime_rl_source.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "rl/config/record_choices.h"
#include "rl/publish/prime_rl_broadcast.h"
#include "rl/report/event_log.h"
#include "rl/report/log.h"
#include "rl/rollouts/live_source.h"
#include "rl/rollouts/rollout_admission.h"
#include "rl/setup/model_setup.h"
#include "rollout_bridge/prime_rl/codec.h"
#include "rollout_bridge/prime_rl/stream.h"

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace prime = bridge::prime_rl;

constexpr milliseconds kFirstSilence{10000};

// Limits for a whole step in one message: above the defaults, which are for one rollout.
bridge::Limits limits() {
  bridge::Limits limits;
  limits.max_tokens = std::size_t{16} * 1024 * 1024;
  return limits;
}

std::optional<PrimeRlBroadcast> broadcast_of(const Config& config) {
  if (config.weights.directory.empty()) {
    return std::nullopt;
  }
  // Half of the timeout of the collective in which the other ranks wait meanwhile.
  const milliseconds patience(static_cast<int64_t>(config.parallel.collective_timeout_s * 500));
  return PrimeRlBroadcast(config.weights.directory, scalar_type(published_dtype(config)),
                          config.model.path, patience);
}

class PrimeRlSource final : public RolloutSource {
 public:
  PrimeRlSource(const std::string& address, const Config& config, int64_t last_step)
      : stream_({.address = address}),
        broadcast_(broadcast_of(config)),
        last_step_(last_step),
        config_(config),
        model_(model_bounds(load_model_config(config, config.model.path))),
        least_samples_(config.train.num_mini_batches),
        heard_(steady_clock::now()) {
    if (const auto choices = record_choices(config); !choices.empty()) {
      throw std::runtime_error(choices.front().asked_by +
                               " is set, but batches of prime-rl do not say which record a rollout "
                               "is of; expected workers of this run, or recorded rollouts");
    }
  }

  engine::WeightSink weight_sink(int64_t version, int64_t next_step) override {
    version_ = version;
    if (!broadcast_ || next_step > last_step_) {
      return {};
    }
    return [this, version](engine::UnitExport& units) { broadcast_->publish(units, version); };
  }

  std::optional<std::vector<bridge::FlatRollout>> poll(int64_t step,
                                                       milliseconds timeout) override {
    const auto deadline = steady_clock::now() + timeout;
    do {
      const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
      const auto message = stream_.receive(std::max(left, milliseconds(0)));
      tell_of_connections();
      if (!message) {
        tell_of_silence();
        return std::nullopt;
      }
      heard_ = steady_clock::now();
      silence_ = kFirstSilence;
      if (auto rollouts = accept(*message, step)) {
        return rollouts;
      }
    } while (steady_clock::now() < deadline);
    return std::nullopt;
  }

  SourceCounters counters() const override { return counters_; }

 private:
  std::optional<std::vector<bridge::FlatRollout>> accept(const zmq::message_t& message,
                                                         int64_t step) {
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(message.data()),
                                           message.size());
    auto decoded = prime::decode_step(bytes, {step, next_group_, 0, version_}, limits());
    if (!decoded) {
      return refuse(decoded.error().detail);
    }
    prime::StepRollouts& batch = decoded.value();
    for (const bridge::Rollout& rollout : batch.rollouts) {
      if (const auto status = check_recorded(rollout, config_, model_); !status) {
        return refuse("prime-rl batch: " + status.error().detail);
      }
    }
    const auto samples = static_cast<int64_t>(batch.rollouts.size());
    if (samples < least_samples_) {
      return refuse("prime-rl batch: " + std::to_string(samples) +
                    " samples with a token to train on, " + std::to_string(batch.without_loss) +
                    " without; train.num_mini_batches needs " + std::to_string(least_samples_));
    }
    next_group_ += samples;
    counters_.accepted += samples;
    return flatten_rollouts(batch.rollouts);
  }

  std::nullopt_t refuse(const std::string& reason) {
    ++refused_;
    events_.add(bridge::clip_text(reason) + " (refused so far: " + std::to_string(refused_) + ")");
    return std::nullopt;
  }

  void tell_of_connections() {
    const prime::StreamCounters now = stream_.counters();
    if (now.joined > told_.joined) {
      events_.add("prime-rl: joined the publisher at " + stream_.address());
    }
    if (now.lost > told_.lost) {
      events_.add("prime-rl: lost the publisher at " + stream_.address());
    }
    if (now.refused > told_.refused) {
      refused_ += now.refused - told_.refused;
      events_.add("prime-rl: a message of another form than topic and batch (refused so far: " +
                  std::to_string(refused_) + ")");
    }
    told_ = now;
  }

  // Logged after 10 s, then whenever the silence has doubled.
  void tell_of_silence() {
    const auto silent = std::chrono::duration_cast<milliseconds>(steady_clock::now() - heard_);
    if (silent >= silence_) {
      silence_ = 2 * silent;
      events_.add("prime-rl: no batch from " + stream_.address() + " for " +
                  std::to_string(silent.count() / 1000) + " s" +
                  (stream_.joined() ? "" : ", no publisher there"));
    }
  }

  prime::StepStream stream_;
  std::optional<PrimeRlBroadcast> broadcast_;
  int64_t last_step_;
  Config config_;
  ModelBounds model_;
  int64_t least_samples_;
  int64_t version_ = 0;
  int64_t next_group_ = 0;
  int64_t refused_ = 0;
  steady_clock::time_point heard_;
  milliseconds silence_ = kFirstSilence;
  prime::StreamCounters told_;
  SourceCounters counters_;
  EventLog events_{log::info};
};

}  // namespace

std::unique_ptr<RolloutSource> make_prime_rl_source(const std::string& address,
                                                    const Config& config, int64_t last_step) {
  if (config.algorithm.advantage.estimator != AdvantageEstimator::kGiven ||
      config.rollout.group_size != 1) {
    throw std::invalid_argument(
        "prime-rl sends advantages and neither rewards nor groups: expected "
        "algorithm.advantage.estimator given, got " +
        std::string(to_string(config.algorithm.advantage.estimator)) +
        ", and rollout.group_size 1, got " + std::to_string(config.rollout.group_size));
  }
  return std::make_unique<PrimeRlSource>(address, config, last_step);
}

}  // namespace ringside::rl
