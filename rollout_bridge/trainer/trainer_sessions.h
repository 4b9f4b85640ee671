// Sessions of the workers: HELLO, sequence numbers, keys, silence, and the messages that wait to be
// sent.
//
// Thread safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/protocol/wire.h"
#include "rollout_bridge/trainer/trainer_parts.h"

namespace ringside::bridge {

struct Outgoing {
  std::string header;
  Payload payload;
};

// kJoin: HELLO was received. kSync: weights are offered or committed, READY is missing. kReady:
// takes work. kPaused: keeps its work and gets no more. kQuarantined: its installed weights did not
// verify; no work until a commit verifies. kBye: it left, the answer is in the outbox. PROTOCOL.md
// has the transitions.
enum class SessionState { kJoin, kSync, kReady, kPaused, kQuarantined, kBye };
// "join", "sync", "ready", "paused", "quarantined", "bye".
const char* session_state_name(SessionState state);

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
  // Samples were reassigned from it, or given up, and it has sent no rollout since.
  bool overdue = false;
  Clock::time_point last_rollout{};  // when it sent one, whatever became of it
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

class TrainerSessions {
 public:
  // Takes back what the worker of a session that ends holds, and returns how much that was.
  using Release = std::function<Holding(const Session& session)>;

  // `parts` must outlive it.
  TrainerSessions(TrainerParts& parts, Release release);

  std::map<std::string, Session>& all() { return sessions_; }
  const std::map<std::string, Session>& all() const { return sessions_; }
  // nullptr when there is none.
  Session* find(const std::string& identity);
  // The session of a worker that has not left; null when there is none.
  Session* of_worker(const std::string& worker_id);
  // True when `holds` is true of a session other than `except`.
  bool any_but(const Session& except, const std::function<bool(const Session&)>& holds) const;

  // Opens a session, in place of the worker's older one. nullptr: HELLO was refused.
  Session* open(const std::string& identity, const std::string& user, const Header& header,
                const HelloBody& body);
  // The session that the message belongs to, with its number counted. nullptr: it was refused.
  Session* receive(const std::string& identity, const std::string& user, const Header& header);
  // Ends a session and releases what its worker holds. Does nothing when there is none.
  void lose(const std::string& identity, const std::string& why);
  // BYE: the worker leaves. Its session disappears when the answer is sent.
  void leave(Session& session, const std::string& reason);
  // Ends sessions of silent workers, and sends the HEARTBEATs that are due.
  void tick();
  // Removes sessions of workers that left and were answered.
  void sweep();

  // Sends the message when its turn comes.
  void queue(Session& session, Payload payload);
  // Answers with an ERROR outside of any session. fatal: the worker shall not come back.
  void refuse(const std::string& identity, const Error& error, bool fatal, const Header* to);
  // Another protocol version. The worker would come again and again, so it is told to leave. Logged
  // at the 1st, 2nd, 4th, 8th... time.
  void refuse_version(const std::string& identity, const Error& error);
  // Replies to identities without a session; sent once, best effort.
  std::deque<std::pair<std::string, Outgoing>>& strays() { return strays_; }
  bool has_output() const;
  // "" without CURVE or for an unknown key.
  std::string key_name(const std::string& user) const;

 private:
  Header header_for(const std::string& worker_id, uint64_t incarnation, uint64_t seq) const;
  bool check_settings(const std::string& identity, const Header& header, const HelloBody& body);
  bool replace(const std::string& identity, const std::string& user, const Header& header);
  std::string why_lost(const Session& session) const;

  TrainerParts& parts_;
  Release release_;
  std::map<std::string, Session> sessions_;  // by ROUTER identity
  std::deque<std::pair<std::string, Outgoing>> strays_;
  uint64_t other_versions_ = 0;  // messages of other protocol versions
};

// "1.5 s".
std::string seconds(Clock::duration span);

}  // namespace ringside::bridge
