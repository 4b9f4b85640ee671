// A rollout worker's link to its trainer: the events that come in, and what goes out.
//
// WorkerEndpoint is the one over ZeroMQ; the simulator has its own. A worker's loop knows no other
// way to its trainer.
//
// Blocks: never.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// A new session with a trainer. The trainer has taken back what it granted in earlier sessions and
// grants anew what is still missing, to this worker or to others. The weights in force are those of
// (trainer_term, version); an offer follows if they are not the newest.
struct Connected {
  std::string run_id;
  int64_t trainer_term = -1;
};
// Samples to generate. A sample whose rollout is not yet acknowledged is left out: that rollout is
// resent.
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

class TrainerLink {
 public:
  virtual ~TrainerLink() = default;

  // The next event, oldest first; nullopt when there is none.
  virtual std::optional<WorkerEvent> next_event() = 0;
  // Whether send() would take a rollout now.
  virtual bool has_room() const = 0;
  // Keeps the rollout until it is acknowledged, over reconnects and trainer restarts. Errors: what
  // validate() finds; kTimeout without room, kClosed after the end of the session.
  virtual Status send(const Rollout& rollout) = 0;
  // Says what is installed now: the version of the last WeightsReady and the root hash computed
  // anew from the installed bytes (root_hash_of). Work for it follows if the trainer agrees;
  // otherwise the weights are offered again.
  virtual Status commit_weights(int64_t version, const std::string& root_hash) = 0;
  // While paused the worker keeps what it was granted and gets no more, and its progress is not
  // judged: for a server that restarts or takes weights. Both may be repeated.
  virtual void pause() = 0;
  virtual void resume() = 0;
  // How many granted samples the worker holds and has not sent, for its heartbeats.
  virtual void set_queue_depth(int64_t samples) = 0;
};

}  // namespace ringside::bridge
