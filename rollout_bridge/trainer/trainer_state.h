// Protocol state of the trainer: four desks over one ledger, without sockets and locks.
//
// TrainerSessions knows the workers, WeightDesk what they have installed, WorkDesk what they make,
// RolloutDesk takes what they send. This class brings messages and calls of the owner to the desks.
// TrainerEndpoint calls it under its mutex and sends the messages of the sessions.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rollout_bridge/trainer/rollout_desk.h"
#include "rollout_bridge/trainer/worker_status.h"

namespace ringside::bridge {

class TrainerState {
 public:
  // Delivers the journal's rollouts to the ledger, see RolloutDesk::replay_journal.
  // Throws: as Journal does.
  TrainerState(const TrainerOptions& options, std::string weights_address);

  // Called by the socket thread. `identity` is the sender's ROUTER identity, `user` its public key.
  // A session accepts messages only from the key that opened it.
  void on_message(const std::string& identity, const std::string& user,
                  const Result<Message>& message, Clock::time_point now);
  void on_denials(const std::vector<std::string>& sentences);  // refused connections
  void on_unreachable(const std::string& identity);  // its connection is gone: ends the session
  void tick(Clock::time_point now);                  // heartbeats, lost workers, grants, journal

  // Called by the owner of the endpoint; contracts as in TrainerEndpoint.
  // `where`: what the transports of weights say about the place of its bytes.
  void publish(std::shared_ptr<const WeightSnapshot> snapshot, OfferBody where = {});
  void open_steps(int64_t next_step, int64_t last_step);
  std::optional<std::vector<FlatRollout>> take(int64_t step);
  void checkpointed(int64_t step);
  void open_evaluation(int64_t prompts, int32_t samples);
  // nullopt while samples are missing.
  std::optional<std::vector<HeldOutSample>> take_evaluation();
  void end_evaluation();
  EvaluationProgress evaluation() const;
  // What has arrived no longer counts against the queue's limits. Returns false when nothing has.
  bool collect();
  void end(const std::string& reason);
  std::vector<WorkerStatus> workers() const;
  std::vector<BridgeEvent> drain_events() { return parts_.events.drain(); }

  std::map<std::string, Session>& sessions() { return sessions_.all(); }
  // Replies to identities without a session; sent once, best effort.
  std::deque<std::pair<std::string, Outgoing>>& strays() { return sessions_.strays(); }
  BridgeCounters counters() const;
  bool has_output() const { return sessions_.has_output(); }
  // Removes sessions of workers that left and were answered.
  void sweep() { sessions_.sweep(); }

 private:
  void on_hello(const std::string& identity, const std::string& user, const Message& message);
  void welcome(Session& session, const HelloBody& body);
  void on_session_message(const std::string& identity, Session& session, const Message& message);
  // Ends the session of a worker whose rollouts and images are all refused.
  void give_up_if_refused(const std::string& identity, Session& session, const Message& message);
  void on_heartbeat(const std::string& identity, Session& session, const Message& message);
  void consume(const std::vector<int64_t>& group_ids);
  void hand_out_work() { work_.hand_out(rollouts_.uncollected()); }

  std::string weights_address_;
  TrainerParts parts_;
  TrainerSessions sessions_;
  WeightDesk weights_;
  WorkDesk work_;
  RolloutDesk rollouts_;
};

}  // namespace ringside::bridge
