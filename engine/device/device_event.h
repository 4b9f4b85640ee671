// A point in the work of a stream, on any device.
#pragma once

#include <c10/core/Event.h>

#include <optional>

namespace ringside::engine {

// On the CPU there is nothing to order: every call returns at once.
// Thread safety: none.
class DeviceEvent {
 public:
  // An event of this kind of device, not yet recorded.
  explicit DeviceEvent(c10::DeviceType type) {
    if (type != c10::kCPU) {
      event_.emplace(type);
    }
  }

  // The point is after all work that `stream` has been given so far. May be called again.
  void record(const c10::Stream& stream) {
    if (event_) {
      event_->record(stream);
    }
  }
  // Later work of `stream` waits for the point.
  // Blocks: never.
  void make_wait(const c10::Stream& stream) const {
    if (event_) {
      event_->block(stream);
    }
  }
  // The host waits for the point.
  // Blocks: until it is reached.
  void synchronize() const {
    if (event_) {
      event_->synchronize();
    }
  }

 private:
  std::optional<c10::Event> event_;
};

}  // namespace ringside::engine
