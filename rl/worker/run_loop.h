// Run of a worker's loop over a WorkerEndpoint until the run is over, with a log line while it
// waits for a trainer.
#pragma once

#include "rl/worker/trainer_address.h"
#include "rollout_bridge/worker/worker_endpoint.h"

namespace ringside::rl {

// Logs which trainer an endpoint without a session waits for, and why, when the notice is due.
void report_waiting(const bridge::LinkReport& report, const WorkerSettings& settings,
                    WaitNotice& notice);

// Sends BYE to the trainer.
// Blocks: up to 5 s.
void leave(bridge::WorkerEndpoint& endpoint, bool run_has_ended);

// Runs the loop until loop.is_over().
// Blocks: until then.
// Throws: what its turn() throws.
template <class Loop>
void run_loop(Loop& loop, bridge::WorkerEndpoint& endpoint, const WorkerSettings& settings) {
  WaitNotice notice;
  while (!loop.is_over()) {
    endpoint.wait(loop.turn());
    report_waiting(endpoint.report(), settings, notice);
  }
}

}  // namespace ringside::rl
