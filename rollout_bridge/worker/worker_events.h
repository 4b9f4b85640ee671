// Events of a session that the worker's loop has not seen yet.
//
// Thread safety: none.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "rollout_bridge/worker/trainer_link.h"

namespace ringside::bridge {

class WorkerEvents {
 public:
  bool empty() const { return events_.empty(); }
  // A WeightsReady replaces an earlier one that was not seen: only the newest is installed.
  void push(WorkerEvent event);
  std::optional<WorkerEvent> pop();
  // Removes samples from the grants; a grant that names nothing any more disappears.
  void drop_samples(const std::function<bool(int64_t group, int32_t sample)>& is_dropped);
  bool next_is_grant() const {
    return !events_.empty() && std::holds_alternative<Granted>(events_.front());
  }

 private:
  std::deque<WorkerEvent> events_;
};

}  // namespace ringside::bridge
