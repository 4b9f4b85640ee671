// State of the workers, as the owner of the endpoint sees it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ringside::bridge {

struct WorkerStatus {
  std::string worker_id;
  uint64_t incarnation = 0;
  std::string state;              // join, sync, ready, paused, quarantined, bye
  int64_t version = -1;           // installed and verified in this term
  int64_t in_flight_samples = 0;  // granted, not delivered
  int64_t queue_depth = 0;        // as the worker reports it
  int64_t window_bytes = 0;       // promised and not used up
  std::chrono::milliseconds silent_for{0};
};

// How far an evaluation is, and who can take part.
struct EvaluationProgress {
  int64_t samples = 0;     // 0: no evaluation is open
  int64_t missing = 0;     // of these
  int64_t workers = 0;     // connected
  int64_t evaluating = 0;  // of these, with the trainer's held-out prompts
};

}  // namespace ringside::bridge
