// Link of a rollout worker to its trainer: incoming events, outgoing rollouts and commits.
//
// A worker's loop talks to its trainer through this interface only. WorkerEndpoint implements it
// over ZeroMQ; the simulator has its own implementation.
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
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::bridge {

// New session with a trainer. The trainer has taken back all grants of earlier sessions and grants
// the missing samples again, to this worker or to others. The current weights are those of
// (trainer_term, version); an offer follows when they are not the newest.
struct Connected {
  std::string run_id;
  int64_t trainer_term = -1;
};
// Samples to generate. Samples with an unacknowledged rollout are left out, because that rollout is
// resent.
struct Granted {
  std::vector<Grant> groups;
  // Samples granted before that another worker makes now. A sample that is not begun need not be
  // made. One that is being sampled may be finished: the first rollout of a sample counts.
  std::vector<Withdrawal> withdrawn = {};
};
// Verified weights that the trainer has committed: install them, then call commit_weights(). A
// newer event replaces one that was not polled yet.
struct WeightsReady {
  std::shared_ptr<const WeightSnapshot> snapshot;
};
// Final refusal of this rollout. If the trainer still needs the sample, it grants it again.
struct RolloutRejected {
  std::string rollout_id;
  std::string reason;
  std::string detail;
};
struct Ended {
  std::string reason;
};
// Final refusal of this worker (another run, a newer incarnation).
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

  // The oldest event; nullopt when there is none.
  virtual std::optional<WorkerEvent> next_event() = 0;
  // True when send() would accept a rollout now.
  virtual bool has_room() const = 0;
  // Keeps the rollout until it is acknowledged, across reconnects and trainer restarts. Its images
  // have their pixels, which are sent ahead where the trainer does not have them.
  // Errors: those of validate(); kInvalidField or kChecksum for an image without its pixels;
  // kTimeout without room; kClosed after the end of the session.
  virtual Status send(const Rollout& rollout) = 0;
  // Reports the installed weights: the version of the last WeightsReady and the root hash of the
  // installed bytes (root_hash_of). If the hash matches, work for this version follows; otherwise
  // the weights are offered again.
  virtual Status commit_weights(int64_t version, const std::string& root_hash) = 0;
  // A paused worker keeps its grants and gets no more; its progress timeout is off. Use it while a
  // server restarts or loads weights. Idempotent.
  virtual void pause() = 0;
  virtual void resume() = 0;
  // Sets the number of granted samples that are not sent yet, reported in heartbeats.
  virtual void set_queue_depth(int64_t samples) = 0;
};

}  // namespace ringside::bridge
