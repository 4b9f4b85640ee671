#include "rl/worker/server_wait_notice.h"

#include <utility>

namespace ringside::rl {

ServerWaitNotice::ServerWaitNotice(std::string server, std::chrono::milliseconds every, Write write)
    : server_(std::move(server)), every_(every), write_(std::move(write)) {
  write_("waiting for " + server_);
  thread_ = std::jthread([this](const std::stop_token& stop) { repeat(stop); });
}

void ServerWaitNotice::set_reason(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  reason_ = reason;
}

void ServerWaitNotice::repeat(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  for (;;) {
    stopped_.wait_for(lock, stop, every_, [] { return false; });
    if (stop.stop_requested()) {
      return;
    }
    write_("still waiting for " + server_ + ": " +
           (reason_.empty() ? "it does not answer" : reason_));
  }
}

}  // namespace ringside::rl
