// The rollout worker's side of the bridge: takes work and weights in, hands rollouts out.
//
// One thread is owned here; it keeps the heartbeat, reconnects with capped backoff, pulls weights
// and resends what was not acknowledged. Every public method is thread-safe. What ends the thread
// is rethrown by the next call of poll, send_rollout, commit_weights, pause or resume.
//
// The caller's loop: poll(); on Granted sample and send_rollout(); on WeightsReady install at a
// safe point, hash the installed bytes and commit_weights(); on Ended leave. Disconnected needs
// nothing: keep sampling, the endpoint comes back by itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rollout_bridge/keys.h"
#include "rollout_bridge/schema.h"
#include "rollout_bridge/settings.h"

namespace ringside::bridge {

struct WorkerOptions {
  std::string rollout_address;
  // Where the trainer is now, for one that comes back at another address; nullopt: not known yet.
  // Asked before each connection and every second while there is none, on the endpoint's thread.
  std::function<std::optional<std::string>()> resolve;
  std::string weights_address;     // empty: the one WELCOME names
  std::string run_id;              // empty: any; otherwise another run is a fatal error
  std::string worker_id;           // not empty; stable over restarts of the worker
  uint64_t incarnation = 0;        // must rise with every start of this worker; 0: from the clock
  int64_t capacity_samples = 8;    // samples wanted in flight
  std::size_t max_pending = 1024;  // rollouts not yet acknowledged
  uint64_t chunk_bytes = 4 << 20;
  std::size_t chunk_window = 4;  // chunks under way
  std::chrono::milliseconds chunk_timeout{5000};
  int stage_tries = 3;  // fetches of a tensor before staging fails
  bool shared_memory = true;  // take weights out of a trainer's memory that is on this machine
  std::chrono::milliseconds backoff_max{5000};
  std::chrono::milliseconds busy_retry{1000};  // wait after ACK(BUSY)
  std::optional<CurveClient> curve;            // absent: plain, for a trainer on this machine
  Settings settings;                           // stated in HELLO
  Limits limits;
};

// Joined a trainer. The weights in force are those of (run_epoch, version); an offer follows if
// they are not the newest.
struct Connected {
  std::string run_id;
  int64_t run_epoch = -1;
};
// Samples to generate. Samples that are in flight or unacknowledged here are not repeated.
struct Granted {
  std::vector<GrantedGroup> groups;
};
// Verified and committed by the trainer: install, then commit_weights(). A newer one replaces one
// that was not polled yet.
struct WeightsReady {
  std::shared_ptr<const WeightSnapshot> snapshot;
};
// The trainer will never take this rollout; if its sample is wanted still, it comes as a new grant.
struct RolloutRejected {
  std::string rollout_id;
  std::string reason;
  std::string detail;
};
struct Ended {
  std::string reason;
};
// The trainer refuses this worker for good (another run, a newer incarnation).
struct Failed {
  std::string reason;
  std::string detail;
};
struct Disconnected {
  std::string why;
};
using WorkerEvent =
    std::variant<Connected, Granted, WeightsReady, RolloutRejected, Ended, Failed, Disconnected>;

class WorkerEndpoint {
 public:
  // Starts connecting; does not wait. Throws std::invalid_argument on empty ids, sizes below 1
  // or keys that are none.
  explicit WorkerEndpoint(WorkerOptions options);
  ~WorkerEndpoint();  // stops without BYE: the trainer takes the worker for lost

  // The next event, oldest first; nullopt after `timeout`.
  std::optional<WorkerEvent> poll(std::chrono::milliseconds timeout);

  // Keeps the rollout until it is acknowledged, over reconnects and trainer restarts. Waits up to
  // `timeout` for room among max_pending. run_epoch < 0 is filled with the installed one. Errors:
  // what validate() finds, kTimeout, kClosed after a fatal error.
  Status send_rollout(Rollout rollout, std::chrono::milliseconds timeout);

  // Says what is installed now: the version of the last WeightsReady and the root hash computed
  // anew from the installed bytes (root_hash_of). Work for it follows if the trainer agrees;
  // otherwise the weights are offered again.
  Status commit_weights(int64_t version, const std::string& root_hash);

  // While paused the worker keeps what it was granted and gets no more, and its progress is not
  // judged: for a server that restarts or takes weights. Both return at once and may be repeated.
  void pause();
  void resume();

  // Rollouts sent and not yet acknowledged.
  std::size_t pending() const;
  // Samples granted and not yet sent.
  std::size_t in_flight() const;

  // Waits for the acknowledgements, says BYE, waits for the answer; false when `timeout` ran out
  // before. The endpoint is closed afterwards.
  bool bye(const std::string& reason, std::chrono::milliseconds timeout);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringside::bridge
