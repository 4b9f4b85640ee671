// Trainer addresses for a worker: waits for the run's endpoint file, with a log line while it
// waits. Torch-free.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "rl/setup/endpoint_file.h"
#include "rl/worker/link_events.h"

namespace ringside::rl {

// Schedule of log lines during a wait: after 5 s, then every minute.
// Thread safety: none.
class WaitNotice {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // Whether to log now, while waiting.
  bool is_due(TimePoint now);
  // Call when the wait is over.
  void reset() { next_.reset(); }

 private:
  std::optional<TimePoint> next_;
};

// Whether one can connect to `address`: port 0 and * are for binding only.
bool names_port(const std::string& address);

// The reason why `found`, read from RUN_DIR/bridge/endpoint.json, names no usable trainer; for the
// log.
std::string why_no_trainer(const std::filesystem::path& endpoint_file,
                           const std::optional<EndpointAddresses>& found);

// Waits until the endpoint file names a trainer whose run has not ended.
// Blocks: until then.
// Throws: std::runtime_error when settings.should_stop returns true before, when the file does not
// parse, or when the run directory is no directory.
EndpointAddresses wait_for_trainer(const WorkerSettings& settings);

}  // namespace ringside::rl
