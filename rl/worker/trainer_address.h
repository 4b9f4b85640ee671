// Where a worker finds its trainer: the run's endpoint file, awaited with a word in the log.
// Torch-free.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "rl/setup/endpoint_file.h"
#include "rl/worker/link_events.h"

namespace ringside::rl {

// When to log again that something is waited for: after 5 s, then every minute. Not thread-safe.
class WaitNotice {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // Whether to log now, while waiting.
  bool is_due(TimePoint now);
  // The waiting is over.
  void reset() { next_.reset(); }

 private:
  std::optional<TimePoint> next_;
};

// Whether one can connect to `address`: port 0 and * are for binding only.
bool names_port(const std::string& address);

// Why `found`, which was read from RUN_DIR/bridge/endpoint.json, names no trainer to go to: for the
// log.
std::string why_no_trainer(const std::filesystem::path& endpoint_file,
                           const std::optional<EndpointAddresses>& found);

// Blocks until the endpoint file names a trainer whose run has not ended. Throws std::runtime_error
// when settings.should_stop says so before, when the file does not parse, or when the run directory
// is no directory.
EndpointAddresses wait_for_trainer(const WorkerSettings& settings);

}  // namespace ringside::rl
