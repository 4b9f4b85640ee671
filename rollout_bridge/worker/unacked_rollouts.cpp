#include "rollout_bridge/worker/unacked_rollouts.h"

#include <algorithm>

namespace ringside::bridge {

std::set<UnackedRollouts::Sample> UnackedRollouts::samples() const {
  std::set<Sample> samples;
  for (const Unacked& r : rollouts_) {
    samples.insert(r.sample);
  }
  return samples;
}

void UnackedRollouts::add(const Rollout& rollout, Payload payload) {
  rollouts_.push_back(
      {rollout.rollout_id, {rollout.group_id, rollout.sample_index}, std::move(payload), 0, {}});
}

void UnackedRollouts::resend_all() {
  bytes_ = 0;
  for (Unacked& r : rollouts_) {
    r.sent_as = 0;
  }
}

void UnackedRollouts::set_window(int64_t bytes) {
  if (bytes >= 0) {
    window_ = bytes;
  }
}

std::vector<Payload> UnackedRollouts::sendable(Clock::time_point now) {
  std::vector<Payload> payloads;
  if (window_ == 0) {
    return payloads;  // the trainer will send a window
  }
  for (Unacked& r : rollouts_) {
    if (r.sent_as > 0 || r.not_before > now) {
      continue;
    }
    const uint64_t bytes = r.payload.buffer_bytes();
    const bool fits = bytes_ + bytes <= static_cast<uint64_t>(window_);
    if (!fits && bytes_ > 0) {
      break;  // keeps the order
    }
    payloads.push_back(r.payload);  // shares the buffers
    r.sent_as = ++sendings_;
    bytes_ += bytes;
  }
  return payloads;
}

std::deque<UnackedRollouts::Unacked>::iterator UnackedRollouts::answered_by(const AckBody& ack) {
  if (!ack.rollout_id.empty()) {
    return std::find_if(rollouts_.begin(), rollouts_.end(),
                        [&](const Unacked& r) { return r.rollout_id == ack.rollout_id; });
  }
  const auto first = std::min_element(
      rollouts_.begin(), rollouts_.end(),
      // 0 wraps around: what is still to be sent comes last.
      [](const Unacked& a, const Unacked& b) { return a.sent_as - 1 < b.sent_as - 1; });
  return first != rollouts_.end() && first->sent_as > 0 ? first : rollouts_.end();
}

std::optional<UnackedRollouts::Answered> UnackedRollouts::acknowledge(const AckBody& ack,
                                                                      Clock::time_point now) {
  const auto it = answered_by(ack);
  if (it == rollouts_.end()) {
    return std::nullopt;
  }
  if (it->sent_as > 0) {
    bytes_ -= it->payload.buffer_bytes();
  }
  if (ack.status == "BUSY") {
    it->sent_as = 0;
    it->not_before = now + busy_retry_;
    return std::nullopt;
  }
  Answered answered{std::move(it->rollout_id), it->sample};
  rollouts_.erase(it);
  return answered;
}

}  // namespace ringside::bridge
