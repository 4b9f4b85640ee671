// Settings of the thread that computes for a rank.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

namespace ringside::engine {

// While it lives, this thread's current device is the rank's, and backward passes run in this
// thread on every device, as they do on the CPU. LibTorch would give each device a thread of its
// own: with one graph a rank that gains nothing, and ranks that share a device would wait for each
// other in their first collective.
class RankThread {
 public:
  // Sets up the calling thread; the destructor restores it and must run in the same one.
  explicit RankThread(c10::Device device)
      : device_(device),
        multithreading_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~RankThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(multithreading_); }
  RankThread(const RankThread&) = delete;
  RankThread& operator=(const RankThread&) = delete;

 private:
  c10::DeviceGuard device_;
  bool multithreading_;
};

}  // namespace ringside::engine
