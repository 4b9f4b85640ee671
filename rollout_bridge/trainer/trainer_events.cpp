#include "rollout_bridge/trainer/trainer_events.h"

#include "rollout_bridge/base/result.h"

namespace ringside::bridge {
namespace {

constexpr std::size_t kMaxEvents = 1024;

}  // namespace

void TrainerEvents::add(const std::string& worker_id, const std::string& text, EventKind kind) {
  if (events_.size() >= kMaxEvents) {
    events_.pop_front();
    ++dropped_;
  }
  events_.push_back({worker_id, clip_text(text), kind});
}

std::vector<BridgeEvent> TrainerEvents::drain() {
  std::vector<BridgeEvent> out(events_.begin(), events_.end());
  events_.clear();
  return out;
}

}  // namespace ringside::bridge
