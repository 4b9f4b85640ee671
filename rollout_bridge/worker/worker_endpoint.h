// The rollout worker's side of the bridge: takes work and weights in, hands rollouts out.
//
// One thread is owned here; it keeps the heartbeat, reconnects with capped backoff, pulls weights
// and resends what was not acknowledged. Every public method is thread-safe. What ends the thread
// is rethrown by the next call of poll, send_rollout, commit_weights, pause or resume.
//
// The caller's loop: wait() and next_event(); a WorkerQueue (worker_queue.h) holds what was granted
// and sends what was made; on WeightsReady install at a safe point, hash the installed bytes and
// commit_weights(); on Ended leave. Disconnected needs nothing: the endpoint comes back by itself,
// with Connected.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/protocol/settings.h"
#include "rollout_bridge/transport/curve_keys.h"
#include "rollout_bridge/worker/trainer_link.h"

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
  int stage_tries = 3;        // fetches of a tensor before staging fails
  bool shared_memory = true;  // take weights out of a trainer's memory that is on this machine
  std::chrono::milliseconds backoff_max{5000};
  std::chrono::milliseconds busy_retry{1000};  // wait after ACK(BUSY)
  std::optional<CurveClient> curve;            // absent: plain, for a trainer on this machine
  Settings settings;                           // stated in HELLO
  Limits limits;
};

// Whether there is a session, and why not.
struct LinkReport {
  bool joined = false;
  std::string address;  // the trainer's, as known now
  std::string why;      // empty while joined
};

class WorkerEndpoint final : public TrainerLink {
 public:
  // Starts connecting; does not wait. Throws std::invalid_argument on empty ids, sizes below 1
  // or keys that are none.
  explicit WorkerEndpoint(WorkerOptions options);
  ~WorkerEndpoint() override;  // stops without BYE: the trainer takes the worker for lost

  // TrainerLink.
  std::optional<WorkerEvent> next_event() override;
  bool has_room() const override;
  Status send(const Rollout& rollout) override;
  Status commit_weights(int64_t version, const std::string& root_hash) override;
  void pause() override;
  void resume() override;
  void set_queue_depth(int64_t samples) override;

  // Waits for an event, at most `timeout`.
  void wait(std::chrono::milliseconds timeout);
  // wait() and next_event().
  std::optional<WorkerEvent> poll(std::chrono::milliseconds timeout);

  // send() that waits up to `timeout` for room. trainer_term < 0 is filled with the installed one.
  Status send_rollout(Rollout rollout, std::chrono::milliseconds timeout);

  // Rollouts sent and not yet acknowledged.
  std::size_t pending() const;
  LinkReport report() const;

  // Waits for the acknowledgements, says BYE, waits for the answer; false when `timeout` ran out
  // before or the trainer has gone. A trainer that ended the run waits for nothing and may have
  // closed: then BYE is sent, and nothing is waited for. The endpoint is closed afterwards.
  bool bye(const std::string& reason, std::chrono::milliseconds timeout);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringside::bridge
