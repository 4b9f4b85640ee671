#include "rl/worker/run_loop.h"

#include "rl/report/log.h"

namespace ringside::rl {
namespace {

constexpr std::chrono::milliseconds kByeTimeout{5000};

}  // namespace

void report_waiting(const bridge::LinkReport& report, const WorkerSettings& settings,
                    WaitNotice& notice) {
  if (report.joined) {
    notice.reset();
    return;
  }
  if (notice.is_due(settings.now())) {
    const std::string source =
        settings.endpoint_file.empty() ? "" : " (from " + settings.endpoint_file.string() + ")";
    log::warn("waiting for the trainer at " + report.address + source + ": " + report.why);
  }
}

void leave(bridge::WorkerEndpoint& endpoint, bool run_has_ended) {
  endpoint.bye(run_has_ended ? "the run has ended" : "asked to stop", kByeTimeout);
}

}  // namespace ringside::rl
