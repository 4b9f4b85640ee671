#include "rollout_bridge/worker/worker_events.h"

namespace ringside::bridge {

void WorkerEvents::push(WorkerEvent event) {
  if (std::holds_alternative<WeightsReady>(event)) {
    std::erase_if(events_,
                  [](const WorkerEvent& e) { return std::holds_alternative<WeightsReady>(e); });
  }
  events_.push_back(std::move(event));
}

std::optional<WorkerEvent> WorkerEvents::pop() {
  if (events_.empty()) {
    return std::nullopt;
  }
  WorkerEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void WorkerEvents::drop_samples(const std::function<bool(int64_t, int32_t)>& is_dropped) {
  std::erase_if(events_, [&](WorkerEvent& event) {
    auto* granted = std::get_if<Granted>(&event);
    if (granted == nullptr) {
      return false;
    }
    std::erase_if(granted->groups, [&](Grant& group) {
      std::erase_if(group.sample_indices,
                    [&](int32_t sample) { return is_dropped(group.group_id, sample); });
      return group.sample_indices.empty();
    });
    return granted->groups.empty() && granted->withdrawn.empty();
  });
}

}  // namespace ringside::bridge
