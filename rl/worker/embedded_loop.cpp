#include "rl/worker/embedded_loop.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "rl/report/log.h"

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kIdle{100};
constexpr milliseconds kRetryDelivery{20};
constexpr milliseconds kGather{2};  // the trainer may send its grants in several messages

}  // namespace

EmbeddedLoop::EmbeddedLoop(bridge::TrainerLink& link, BatchSampler& sampler,
                           WorkerSettings settings, std::size_t batch_samples, Now now)
    : link_(link),
      sampler_(sampler),
      events_(std::move(settings)),
      batch_samples_(batch_samples),
      now_(std::move(now)) {}

milliseconds EmbeddedLoop::turn() {
  for (const std::string& refused : queue_.deliver(link_)) {
    log::warn(refused);
  }
  handle_events();  // newer weights before the next batch
  if (queue_.has_made()) {
    return kRetryDelivery;  // sample nothing new before these are accepted
  }
  if (queue_.queued() + sampler_.unfinished() == 0 || !is_verified_) {
    return kIdle;
  }
  if (queue_.queued() + sampler_.unfinished() < batch_samples_ && now_() < gather_until_) {
    return std::chrono::ceil<milliseconds>(gather_until_ - now_());
  }
  sample_batch();
  return milliseconds::zero();
}

void EmbeddedLoop::handle_events() {
  while (!early_events_.empty()) {
    bridge::WorkerEvent event = std::move(early_events_.front());
    early_events_.pop_front();
    std::visit([this](auto& e) { handle(e); }, event);
  }
  while (auto event = link_.next_event()) {
    std::visit([this](auto& e) { handle(e); }, *event);
  }
}

bool EmbeddedLoop::has_new_weights() {
  while (auto event = link_.next_event()) {
    early_events_.push_back(std::move(*event));
  }
  return std::ranges::any_of(early_events_, [](const bridge::WorkerEvent& event) {
    return std::holds_alternative<bridge::WeightsReady>(event);
  });
}

void EmbeddedLoop::handle(const bridge::Connected& connected) {
  events_.handle(connected);
  queue_.on_connected(connected.trainer_term);
}

void EmbeddedLoop::handle(const bridge::Granted& granted) {
  queue_.on_granted(granted);
  gather_until_ = now_() + kGather;
}

void EmbeddedLoop::handle(const bridge::WeightsReady& ready) {
  const bridge::Manifest& manifest = ready.snapshot->manifest;
  const std::string root = sampler_.install(*ready.snapshot);
  is_verified_ = root == manifest.root_hash;
  version_ = manifest.version;
  trainer_term_ = manifest.trainer_term;
  const auto status = link_.commit_weights(version_, root);
  if (!status) {
    log::warn("weights of version " + std::to_string(version_) + ": " + status.error().detail);
  }
}

void EmbeddedLoop::sample_batch() {
  const std::size_t unfinished = std::min(batch_samples_, sampler_.unfinished());
  const auto samples = queue_.start(batch_samples_ - unfinished);
  for (bridge::Rollout& rollout :
       sampler_.sample(samples, version_, [this] { return has_new_weights(); })) {
    rollout.trainer_term = trainer_term_;
    queue_.finish(std::move(rollout));
  }
}

}  // namespace ringside::rl
