// Protocol state of the trainer: one handler a message type, without sockets and locks.
//
// TrainerEndpoint calls it under its mutex and sends the messages of its outboxes.
// Thread safety: none.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rollout_bridge/base/id_set.h"
#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/protocol/wire.h"
#include "rollout_bridge/trainer/byte_budget.h"
#include "rollout_bridge/trainer/group_ledger.h"
#include "rollout_bridge/trainer/held_out_samples.h"
#include "rollout_bridge/trainer/journal.h"
#include "rollout_bridge/trainer/published_weights.h"
#include "rollout_bridge/trainer/trainer_endpoint.h"

namespace ringside::bridge {

using Clock = std::chrono::steady_clock;

struct Outgoing {
  std::string header;
  Payload payload;
};

// kJoin: HELLO was received. kSync: weights are offered or committed, READY is missing. kReady:
// takes work. kPaused: keeps its work and gets no more. kQuarantined: its installed weights did not
// verify; no work until a commit verifies. kBye: it left, the answer is in the outbox. PROTOCOL.md
// has the transitions.
enum class SessionState { kJoin, kSync, kReady, kPaused, kQuarantined, kBye };

// A rollout that was delivered and that the owner has not looked for.
struct Arrival {
  int64_t group_id = 0;
  int32_t sample_index = 0;
  int64_t bytes = 0;
};

struct Session {
  std::string worker_id;
  std::string user;  // public key of its connection; "" without CURVE
  uint64_t incarnation = 0;
  SessionState state = SessionState::kJoin;
  int64_t capacity_samples = 0;
  bool evaluates = false;          // its held-out prompts are the trainer's
  int64_t installed_version = -1;  // verified, of this trainer_term
  int64_t offered_version = -1;    // being staged or staged since
  int64_t failed_version = -1;     // could not be staged; offered dense from then on
  int64_t queue_depth = 0;
  int64_t pending = -1;  // rollouts it has not had acknowledged, as it reports; -1: not reported
  bool overdue = false;  // samples were reassigned from it and it has sent no rollout since
  // Since when it lacks weights that it was offered, or READY under them; nullopt: it lacks none.
  std::optional<Clock::time_point> behind_since;
  bool has_share = true;  // false: it has been behind for too long
  // Last warning about overdue samples that stay with it.
  std::optional<Clock::time_point> warned_at;
  std::optional<Clock::time_point> paused_since;
  int failed_syncs = 0;    // consecutive
  int refused_in_row = 0;  // consecutive refused rollouts: unreadable, or of samples that it held
  int64_t unnamed = 0;     // unreadable rollouts since the last release that named no sample
  Error last_refusal{};    // the latest refusal among these
  uint64_t received_seq = 0;
  uint64_t sent_seq = 0;
  Clock::time_point last_message{};
  Clock::time_point last_heartbeat{};
  std::deque<Outgoing> outbox;
};

class TrainerState {
 public:
  // Delivers the journal's rollouts to the ledger. Drops those that would be refused now, with an
  // event; their samples are granted again.
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
  void grant(const std::vector<GroupGrant>& groups);
  void open_steps(int64_t next_step, int64_t last_step);
  std::optional<std::vector<Rollout>> take(int64_t step) { return ledger_.take(step); }
  void checkpointed(int64_t step);
  void open_evaluation(int64_t prompts, int32_t samples);
  // nullopt while samples are missing.
  std::optional<std::vector<HeldOutSample>> take_evaluation();
  void end_evaluation();
  EvaluationProgress evaluation() const;
  // What has arrived no longer counts against the queue's limits. Returns false when nothing has.
  bool collect();
  std::optional<Rollout> pop();
  void mark_consumed(std::span<const int64_t> group_ids);
  void end(const std::string& reason);
  std::size_t committed_workers(int64_t version) const;
  std::vector<WorkerStatus> workers() const;
  std::vector<BridgeEvent> drain_events();

  std::map<std::string, Session>& sessions() { return sessions_; }
  // Replies to identities without a session; sent once, best effort.
  std::deque<std::pair<std::string, Outgoing>>& strays() { return strays_; }
  BridgeCounters counters() const;
  bool has_output() const;
  // Removes sessions of workers that left and were answered.
  void sweep();

 private:
  // trainer_messages.cpp: one handler a message type.
  void on_hello(const std::string& identity, const std::string& user, const Message& message,
                Clock::time_point now);
  bool replace_session(const std::string& identity, const std::string& user, const Header& header);
  void welcome(Session& session, const HelloBody& body);
  void malformed(const Session& session, const Error& error);
  void on_session_message(const std::string& identity, Session& session, const Message& message,
                          Clock::time_point now);
  void on_ready(Session& session, const Message& message);
  void on_heartbeat(const std::string& identity, Session& session, const Message& message,
                    Clock::time_point now);
  void on_staged(Session& session, const Message& message);
  void on_stage_failed(Session& session, const Message& message);
  void on_committed(Session& session, const Message& message);
  void on_bye(Session& session, const Message& message);
  bool check_settings(const std::string& identity, const Header& header, const HelloBody& body);
  void sync_failed(Session& session, const std::string& why);

  // trainer_rollouts.cpp: grants of work, arriving rollouts.
  void on_rollout(Session& session, const Message& message);
  AckBody receive(Session& session, const Message& message, Rollout rollout, uint64_t bytes);
  AckBody receive_held_out(Session& session, const Rollout& rollout);
  AckBody requeued(Session& session, const Rollout& rollout);
  AckBody reject(Session& session, const Rollout& rollout, const Error& error);
  void give_up_if_always_refused(const std::string& identity, const Message& message);
  AckBody busy(const std::string& rollout_id);
  Status check_weights_of(const Rollout& rollout) const;
  bool has_room_for(const Rollout& rollout, uint64_t bytes) const;
  bool journalled(int64_t group_id, const Message& message);
  AckBody unreadable(Session& session, const Message& message, const Error& error);
  void release_unnamed(Session& session);
  void count_refusal(Session& session, const Error& error);
  bool is_idle(const Session& session) const;
  void hand_out_work();
  std::vector<WorkerShare> sharing_workers();
  std::vector<WorkerShare> ready_workers() const;
  bool keeps_share(Session& session);
  bool is_on_trial(const Session& session) const;
  void take_over_late_samples();
  Session* session_of(const std::string& worker_id);
  bool has_window_for_work(Session& session);
  void send_credits(Session& session, const std::vector<GrantedGroup>& groups);
  void withdraw(Session& session, const std::vector<GrantedGroup>& groups);
  void widen_windows();
  void reassign_overdue();
  bool another_is_ready(const Session& session) const;

  // trainer_weights.cpp
  void offer(Session& session);
  void note_installed(Session& session, int64_t version);
  std::chrono::milliseconds install_patience() const;

  // trainer_state.cpp
  void replay_journal();
  Status replay(Rollout rollout, int64_t& not_taken);
  void note_dropped(const std::vector<Error>& refused);
  std::vector<GroupGrant> deliver(Rollout rollout, uint64_t bytes);
  void drop_arrivals();
  void open_groups(const std::vector<GroupGrant>& groups);
  Status admit(const Rollout& rollout) const;
  void queue(Session& session, Payload payload);
  void refuse_version(const std::string& identity, const Error& error);
  void refuse(const std::string& identity, const Error& error, bool fatal, const Header* to);
  void lose(const std::string& identity, const std::string& why);
  void event(const std::string& worker_id, std::string text, EventKind kind = EventKind::kNews);
  std::string key_name(const std::string& user) const;
  Header header_for(const std::string& worker_id, uint64_t incarnation, uint64_t seq) const;

  TrainerOptions options_;
  std::string weights_address_;
  Journal journal_;
  GroupLedger ledger_;
  HeldOutSamples evaluation_;
  PublishedWeights published_;
  std::optional<std::string> ended_;
  std::map<std::string, Session> sessions_;  // by ROUTER identity
  std::deque<std::pair<std::string, Outgoing>> strays_;
  std::deque<Arrival> arrivals_;
  ByteBudget budget_;
  Clock::time_point now_{};            // latest time passed in
  Clock::duration longest_install_{};  // from an offer to READY, of any worker so far
  uint64_t other_versions_ = 0;        // messages of other protocol versions
  std::string journal_trouble_;        // why the journal accepts nothing now; empty: it accepts
  std::deque<BridgeEvent> events_;
  BridgeCounters counters_;
};

// Consecutive failed weight updates of a worker after which it is offered no more weights.
inline constexpr int kMaxFailedSyncs = 3;

// A worker that is behind keeps its share of the work at least for this long.
inline constexpr std::chrono::milliseconds kLeastInstallPatience{10000};

// "join", "sync", "ready", "paused", "quarantined", "bye".
const char* session_state_name(SessionState state);
// "1.5 s".
std::string seconds(std::chrono::milliseconds span);

}  // namespace ringside::bridge
