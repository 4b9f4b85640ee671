#include "rl/worker/run_loop.h"

#include "rl/log/log.h"

namespace ringside::rl {
namespace {

constexpr std::chrono::seconds kFirst{5};
constexpr std::chrono::seconds kAgain{60};
constexpr std::chrono::milliseconds kByeTimeout{5000};

}  // namespace

bool WaitNotice::is_due(TimePoint now) {
  if (!next_) {
    next_ = now + kFirst;
  }
  if (now < *next_) {
    return false;
  }
  next_ = now + kAgain;
  return true;
}

void say_if_waiting(const bridge::WorkerEndpoint& endpoint, WaitNotice& notice, WaitNotice::TimePoint now) {
  const bridge::LinkReport report = endpoint.report();
  if (report.joined) {
    notice.reset();
  } else if (notice.is_due(now)) {
    log::warn("waiting for the trainer at " + report.address + ": " + report.why);
  }
}

void leave(bridge::WorkerEndpoint& endpoint, bool run_has_ended) {
  endpoint.bye(run_has_ended ? "the run has ended" : "asked to stop", kByeTimeout);
}

}  // namespace ringside::rl
