#include "rl/worker/server_loop.h"

#include <algorithm>
#include <stdexcept>
#include <variant>

#include "rl/report/log.h"
#include "rl/worker/answer_versions.h"

namespace ringside::rl {
namespace {

using bridge::Reason;
using std::chrono::milliseconds;

constexpr milliseconds kIdlePoll{100};
constexpr milliseconds kBusyPoll{2};  // interval of polls for the server's answers
constexpr milliseconds kDeliveryRetry{20};
constexpr milliseconds kRetryInstall{1000};
constexpr milliseconds kTrustedSilence{2000};  // a server cannot restart and load weights within it
constexpr int kMaxTries = 3;  // attempts of one sample that the server does not complete

void warn(const bridge::Status& status) {
  if (!status) {
    log::warn(status.error().detail);
  }
}

}  // namespace

ServerLoop::ServerLoop(bridge::TrainerLink& link, ServedPolicy& policy, WorkerSettings settings,
                       const ServerConfig& options, Now now)
    : link_(link),
      policy_(policy),
      events_(std::move(settings)),
      options_(options),
      now_(std::move(now)) {}

milliseconds ServerLoop::load_timeout() const {
  return milliseconds(static_cast<int64_t>(options_.load_timeout_s * 1000));
}

milliseconds ServerLoop::turn() {
  while (auto event = link_.next_event()) {  // handle newer weights before the next sample
    std::visit([this](auto& e) { handle(e); }, *event);
  }
  take(policy_.take_answers());
  for (const std::string& refused : queue_.deliver(link_)) {
    log::warn(refused);
  }
  if (wanted_) {
    try_install();
  } else {
    feed();
  }
  if (policy_.running() == 0 && queue_.has_made()) {
    return kDeliveryRetry;
  }
  return queue_.held() > 0 ? kBusyPoll : kIdlePoll;
}

void ServerLoop::handle(const bridge::Connected& connected) {
  events_.handle(connected);
  queue_.on_connected(connected.trainer_term);
  tries_.clear();
}

void ServerLoop::handle(const bridge::WeightsReady& ready) {
  is_offered_ = true;
  want(ready.snapshot);
}

void ServerLoop::want(Snapshot snapshot) {
  if (!wanted_) {
    wanted_since_ = now_();
    next_try_ = wanted_since_;
    interrupted_ = false;
  }
  wanted_ = std::move(snapshot);
  std::vector<bridge::GrantedSample> withdrawn = policy_.withdraw();
  for (auto sample = withdrawn.rbegin(); sample != withdrawn.rend(); ++sample) {
    put_back(*sample);
  }
}

void ServerLoop::try_install() {
  if (policy_.running() > 0 && options_.pause != ServerPause::kKeep) {
    interrupt_if_due();
    return;
  }
  if (now_() < next_try_) {
    return;
  }
  const auto status = policy_.install(wanted_);
  last_contact_ = now_();
  if (status) {
    installed();
    return;
  }
  warn(status);
  next_try_ = now_() + kRetryInstall;
  if (now_() > wanted_since_ + 2 * load_timeout()) {
    throw std::runtime_error("the server did not take version " +
                             std::to_string(wanted_->manifest.version) + ": " +
                             status.error().detail);
  }
}

void ServerLoop::interrupt_if_due() {
  const bool late = now_() > wanted_since_ + load_timeout();
  if (interrupted_ || (options_.pause != ServerPause::kAbort && !late)) {
    return;
  }
  interrupted_ = true;
  if (late) {
    log::warn("requests are still running " + std::to_string(load_timeout().count() / 1000) +
              " s after new weights arrived; aborting them");
  }
  warn(policy_.interrupt());
}

void ServerLoop::installed() {
  current_ = std::exchange(wanted_, nullptr);
  if (std::exchange(in_doubt_, false)) {
    link_.resume();
  }
  if (std::exchange(is_offered_, false)) {
    warn(link_.commit_weights(version(), policy_.root_hash()));
  }
}

void ServerLoop::feed() {
  if (queue_.queued() == 0 || queue_.has_made() || !current_) {
    return;
  }
  if (policy_.running() == 0 && now_() > last_contact_ + kTrustedSilence) {
    const auto status = policy_.verify();
    if (!status) {
      distrust(status.error().detail);
      return;
    }
    last_contact_ = now_();
  }
  const auto room = static_cast<std::size_t>(options_.concurrency);
  if (policy_.running() >= room) {
    return;
  }
  for (const bridge::GrantedSample& sample : queue_.start(room - policy_.running())) {
    begun_in_[{sample.group_id, sample.sample_index}] = current_->manifest.trainer_term;
    policy_.submit(sample, current_->manifest);
  }
}

void ServerLoop::distrust(const std::string& why) {
  log::warn(why + "; reloading version " + std::to_string(version()) +
            " before sampling continues");
  in_doubt_ = true;
  link_.pause();  // no new work until the server is back
  want(current_);
}

void ServerLoop::take(std::vector<ServedAnswer> answers) {
  std::vector<ServedAnswer> good;
  for (ServedAnswer& answer : answers) {
    const bool was_waiting = wanted_ != nullptr;  // is_ours() may want the weights again
    if (!answer.result) {
      failed(answer);
    } else if (is_ours(answer.result.value())) {
      tries_.erase({answer.sample.group_id, answer.sample.sample_index});
      good.push_back(std::move(answer));
    } else if (was_waiting) {
      put_back(answer.sample);  // sampled again under the next weights
    } else {
      try_again(answer, "the server aborted it, or answered under other weights");
    }
  }
  if (good.empty()) {
    return;
  }
  last_contact_ = now_();
  for (bridge::Rollout& rollout : policy_.rollouts(std::move(good), version())) {
    finish(std::move(rollout));
  }
}

bool ServerLoop::is_ours(const bridge::GenerateResult& result) {
  if (result.finish_reason == bridge::FinishReason::kAborted) {
    return false;
  }
  if (denies_version(result, version())) {
    if (!wanted_) {
      distrust("the server answers under other weights" +
               (result.label ? ", " + *result.label : ""));
    }
    return false;
  }
  // While the server is unverified, the answer may come from another process than the verified one.
  return !in_doubt_ || names_version(result, version());
}

void ServerLoop::failed(const ServedAnswer& answer) {
  const bridge::Error& error = answer.result.error();
  const bool trouble = error.reason == Reason::kClosed || error.reason == Reason::kTimeout;
  if (trouble && !wanted_) {
    distrust(error.detail);
  }
  if (trouble) {
    try_again(answer, error.detail);
  } else {
    give_up(answer, error.detail);
  }
}

void ServerLoop::put_back(const bridge::GrantedSample& sample) {
  begun_in_.erase({sample.group_id, sample.sample_index});
  queue_.put_back(sample);
}

void ServerLoop::try_again(const ServedAnswer& answer, const std::string& why) {
  if (++tries_[{answer.sample.group_id, answer.sample.sample_index}] < kMaxTries) {
    put_back(answer.sample);
  } else {
    give_up(answer, why);
  }
}

void ServerLoop::give_up(const ServedAnswer& answer, const std::string& why) {
  const auto key = std::pair(answer.sample.group_id, answer.sample.sample_index);
  log::warn("sample " + std::to_string(key.second) + " of group " + std::to_string(key.first) +
            " failed: " + why);
  tries_.erase(key);
  finish(policy_.failed(answer, version()));
}

// A rollout is of the term of its first token.
void ServerLoop::finish(bridge::Rollout rollout) {
  const auto begun = begun_in_.find({rollout.group_id, rollout.sample_index});
  if (begun != begun_in_.end()) {  // otherwise the queue refuses it, too
    rollout.trainer_term = begun->second;
    begun_in_.erase(begun);
  }
  queue_.finish(std::move(rollout));
}

}  // namespace ringside::rl
