// Worker endpoint of the bridge: receives work and weights, sends rollouts.
//
// Owns one thread, which sends heartbeats, reconnects with capped backoff, fetches weights and
// resends unacknowledged rollouts. An exception that ends the thread is rethrown by the next call
// of wait, next_event, poll, send, send_rollout, commit_weights, pause or resume.
//
// The caller's loop: wait() and next_event(). A WorkerQueue (worker_queue.h) holds the granted
// samples and sends finished rollouts. On WeightsReady install the weights between requests, hash
// the installed bytes and call commit_weights(). On Ended leave the loop. On Disconnected do
// nothing: the endpoint reconnects by itself and then reports Connected.
//
// Thread safety: every public method.
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
  // Looks up the trainer's current address, for a trainer that restarts at another one; nullopt:
  // not known yet. Called on the endpoint's thread, before each connection and every second until
  // an address is known.
  std::function<std::optional<std::string>()> resolve;
  std::string weights_address;     // empty: the address in WELCOME
  std::string run_id;              // empty: any run; otherwise another run is a fatal error
  std::string worker_id;           // not empty; the same after a restart of the worker
  uint64_t incarnation = 0;        // must rise with every start of this worker; 0: from the clock
  int64_t capacity_samples = 8;    // samples wanted in flight
  std::size_t max_pending = 1024;  // unacknowledged rollouts
  uint64_t chunk_bytes = 4 << 20;
  std::size_t chunk_window = 4;  // chunks requested at once
  std::chrono::milliseconds chunk_timeout{5000};
  int stage_tries = 3;        // fetches of a tensor before staging fails
  bool shared_memory = true;  // read weights from shared memory when the trainer is on this machine
  std::chrono::milliseconds backoff_max{5000};
  std::chrono::milliseconds busy_retry{1000};  // wait after ACK(BUSY)
  std::optional<CurveClient> curve;  // absent: no encryption, for a trainer on this machine
  Settings settings;                 // sent in HELLO
  Limits limits;
};

// State of the session, with the reason when there is none.
struct LinkReport {
  bool joined = false;
  std::string address;  // the trainer's address, as known now
  std::string why;      // empty while joined
};

class WorkerEndpoint final : public TrainerLink {
 public:
  // Starts connecting and returns at once.
  // Throws: std::invalid_argument on empty ids, sizes below 1 or invalid keys.
  explicit WorkerEndpoint(WorkerOptions options);
  ~WorkerEndpoint() override;  // stops without BYE: the trainer considers the worker lost

  // TrainerLink.
  std::optional<WorkerEvent> next_event() override;
  bool has_room() const override;
  Status send(const Rollout& rollout) override;
  Status commit_weights(int64_t version, const std::string& root_hash) override;
  void pause() override;
  void resume() override;
  void set_queue_depth(int64_t samples) override;

  // Blocks: until there is an event, at most `timeout`.
  void wait(std::chrono::milliseconds timeout);
  // wait() and next_event().
  std::optional<WorkerEvent> poll(std::chrono::milliseconds timeout);

  // send() that waits up to `timeout` for room. A trainer_term < 0 is replaced by the installed
  // one.
  Status send_rollout(Rollout rollout, std::chrono::milliseconds timeout);

  // Number of unacknowledged rollouts.
  std::size_t pending() const;
  LinkReport report() const;

  // Waits for the acknowledgements, sends BYE and waits for the answer. Returns false when
  // `timeout` passed first or the trainer is gone. After the trainer's END, BYE is sent without
  // waiting, because the trainer may have closed. The endpoint is closed afterwards.
  // Blocks: at most `timeout`, then until the thread has ended.
  bool bye(const std::string& reason, std::chrono::milliseconds timeout);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringside::bridge
