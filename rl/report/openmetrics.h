// Newest metrics of a run over HTTP, in the OpenMetrics text format that Prometheus and others
// scrape. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rl/report/metrics.h"

namespace ringside::rl {

// The metrics as OpenMetrics 1.0 text: one gauge each, named ringside_ and the metric's name with
// every other character than letters, digits and _ replaced by _. Of names that become equal only
// the first is there. ringside_step is the step. Ends with "# EOF".
// Source: https://openmetrics.io, sections 3 and 4 of the specification.
std::string openmetrics_text(int64_t step, const Metrics& metrics);

// Thread: one of its own answers requests. Anyone who reaches the address can read the metrics.
class OpenMetricsServer {
 public:
  // Serves /metrics at "HOST:PORT". Until the first set() it holds no metric but ringside_step.
  // Throws: std::runtime_error naming the address when it is not of that form or cannot be bound.
  explicit OpenMetricsServer(const std::string& address);
  ~OpenMetricsServer();
  OpenMetricsServer(const OpenMetricsServer&) = delete;
  OpenMetricsServer& operator=(const OpenMetricsServer&) = delete;

  // Replaces the metrics.
  // Thread safety: safe to call concurrently.
  void set(int64_t step, const Metrics& metrics);

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace ringside::rl
