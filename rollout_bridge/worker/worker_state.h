// Protocol state of a worker: one handler a message type, without sockets and locks.
//
// It holds the connection's state (WorkerSession), the rollouts that are not acknowledged, the
// transfer of weights and the events for the worker's loop, and connects them. WorkerEndpoint calls
// it under its mutex and sends the session's messages.
// Thread safety: none.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/protocol/wire.h"
#include "rollout_bridge/worker/unacked_rollouts.h"
#include "rollout_bridge/worker/weight_transfer.h"
#include "rollout_bridge/worker/worker_endpoint.h"
#include "rollout_bridge/worker/worker_events.h"
#include "rollout_bridge/worker/worker_session.h"

namespace ringside::bridge {

class WorkerState {
 public:
  using Clock = std::chrono::steady_clock;
  // `transports`: how weights are fetched, in the order in which they are tried.
  explicit WorkerState(const WorkerOptions& options, WeightTransfer::Transports transports = {});

  // Called by the socket thread.
  void on_message(const Result<Message>& message, Clock::time_point now);
  void tick(Clock::time_point now);  // heartbeats, timeouts, resends
  // Fetches a part of the offered weights. Returns true when there is more to do at once.
  bool fetch_weights(Clock::time_point now);
  bool is_fetching() const { return transfer_.is_fetching(); }
  // A new socket is open. HELLO is the first message on it.
  void open_session();
  // Ends the session. The thread opens new sockets with a higher incarnation.
  void disconnect(const std::string& why, Clock::time_point now);
  WorkerSession& session() { return session_; }
  const WorkerSession& session() const { return session_; }

  // Called by the owner of the endpoint; see WorkerEndpoint.
  // A trainer_term < 0 is replaced by the installed one.
  // Errors: those of validate(); kInvalidField or kChecksum for an image without its pixels.
  Status send_rollout(Rollout rollout);
  Status commit_weights(int64_t version, const std::string& root_hash);
  std::optional<WorkerEvent> poll();
  bool has_event() const { return !events_.empty(); }
  void pause();
  void resume();
  void queue_bye(const std::string& reason);
  void set_queue_depth(int64_t samples) { queue_depth_ = samples; }
  // The owner's code made progress.
  void touch(Clock::time_point now);
  const UnackedRollouts& rollouts() const { return rollouts_; }
  // True after the trainer's END.
  bool ended() const { return ended_; }

 private:
  void on_welcome(const Message& message, Clock::time_point now);
  void on_credit(const Message& message);
  void on_ack(const Message& message, Clock::time_point now);
  void on_offer(const Message& message);
  void on_commit(const Message& message);
  void on_error(const Message& message, Clock::time_point now);
  void queue_ready();
  void report_transfer();
  const char* state_name() const;

  WorkerOptions options_;
  WorkerSession session_;
  WorkerEvents events_;
  UnackedRollouts rollouts_;
  WeightTransfer transfer_;
  WeightsBody installed_;
  int64_t installed_term_ = -1;
  bool paused_ = false;
  bool ended_ = false;
  int64_t queue_depth_ = 0;  // samples the owner holds, as it reports
  Clock::time_point last_progress_;
};

}  // namespace ringside::bridge
