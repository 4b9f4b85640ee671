#include "rollout_bridge/worker/unacked_rollouts.h"

#include <algorithm>

#include "rollout_bridge/protocol/codec.h"

namespace ringside::bridge {
namespace {

constexpr std::size_t kMaxKnownImages = 16 * 1024;  // hashes remembered
constexpr int kAtOnce = 2;  // times that images are sent again without a pause

// Those that a rollout of a step names. Nobody reads the pixels of an evaluation's.
std::vector<Image> images_of(const Rollout& rollout) {
  std::vector<Image> images;
  if (rollout.group_id >= kFirstHeldOutGroup) {
    return images;
  }
  std::set<std::string> seen;
  for (const ConversationImage& image : rollout.images) {
    if (seen.insert(image.hash).second) {
      images.push_back({image.head(), image.rgb});
    }
  }
  return images;
}

}  // namespace

std::set<UnackedRollouts::Sample> UnackedRollouts::samples() const {
  std::set<Sample> samples;
  for (const Unacked& r : rollouts_) {
    samples.insert(r.sample);
  }
  return samples;
}

void UnackedRollouts::add(const Rollout& rollout, Payload payload) {
  rollouts_.push_back({rollout.rollout_id,
                       {rollout.group_id, rollout.sample_index},
                       std::move(payload),
                       images_of(rollout)});
}

void UnackedRollouts::resend_all() {
  bytes_ = 0;
  for (Unacked& r : rollouts_) {
    r.sent_as = 0;
  }
  for (const SentImage& image : sent_images_) {
    known_images_.erase(image.hash);
  }
  sent_images_.clear();
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
    if (!append_images(r, payloads) || !fits(bytes)) {
      break;  // keeps the order
    }
    payloads.push_back(r.payload);  // shares the buffers
    r.sent_as = ++sendings_;
    bytes_ += bytes;
  }
  return payloads;
}

bool UnackedRollouts::fits(uint64_t bytes) const {
  return bytes_ == 0 || bytes_ + bytes <= static_cast<uint64_t>(window_);
}

bool UnackedRollouts::append_images(const Unacked& rollout, std::vector<Payload>& payloads) {
  for (const Image& image : rollout.images) {
    if (known_images_.contains(image.head.hash)) {
      continue;
    }
    if (!fits(image.head.bytes())) {
      return false;
    }
    payloads.push_back(encode_image(image));
    if (known_images_.size() >= kMaxKnownImages) {
      known_images_.clear();
    }
    known_images_.insert(image.head.hash);
    sent_images_.push_back({image.head.hash, image.head.bytes()});
    bytes_ += image.head.bytes();
  }
  return true;
}

void UnackedRollouts::acknowledge_image(const ImageAckBody& ack) {
  set_window(ack.window_bytes);
  if (sent_images_.empty()) {
    return;
  }
  bytes_ -= sent_images_.front().bytes;
  sent_images_.pop_front();
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
  if (ack.status == "BUSY" || ack.status == "UNKNOWN_IMAGES") {
    send_again(*it, ack, now);
    return std::nullopt;
  }
  Answered answered{std::move(it->rollout_id), it->sample};
  rollouts_.erase(it);
  return answered;
}

// A trainer with little room may ask again: what it had the last time may have gone meanwhile. Then
// all images of the rollout go together.
void UnackedRollouts::send_again(Unacked& rollout, const AckBody& ack, Clock::time_point now) {
  rollout.sent_as = 0;
  rollout.not_before = now + busy_retry_;
  if (ack.status != "UNKNOWN_IMAGES") {
    return;
  }
  ++rollout.asked;
  for (const std::string& hash : ack.images) {
    known_images_.erase(hash);
  }
  if (rollout.asked > 1) {
    for (const Image& image : rollout.images) {
      known_images_.erase(image.head.hash);
    }
  }
  if (rollout.asked <= kAtOnce) {
    rollout.not_before = now;
  }
}

}  // namespace ringside::bridge
