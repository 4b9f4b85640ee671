// Connection of a worker's sessions: incarnation, sequence numbers, waiting messages, heartbeats,
// timeouts and reconnects.
//
// It knows nothing of rollouts and weights. The owner of the sockets asks for the next message and
// for the time of the next connection.
//
// Thread safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/protocol/wire.h"

namespace ringside::bridge {

// kAway: no socket. kJoining: HELLO is sent or waits for the connection. kJoined: WELCOME was
// received. kOver: BYE or a fatal error.
enum class Link { kAway, kJoining, kJoined, kOver };

// Times of a worker's connections: pauses that double from 100 ms.
class ReconnectTimer {
 public:
  using Clock = std::chrono::steady_clock;
  // longest: pause.
  explicit ReconnectTimer(std::chrono::milliseconds longest) : longest_(longest) {}

  // Time of the next connection. A worker that lost its session for missing progress stays away
  // until there is progress, because a new session would only take work again.
  Clock::time_point next_attempt() const {
    return waits_for_progress_ ? Clock::time_point::max() : next_attempt_;
  }
  // A session has ended.
  void schedule(Clock::time_point now);
  // A session was opened.
  void reset() { attempts_ = 0; }
  void wait_for_progress() { waits_for_progress_ = true; }
  void progressed() { waits_for_progress_ = false; }

 private:
  std::chrono::milliseconds longest_;
  int attempts_ = 0;  // since the last session
  Clock::time_point next_attempt_{};
  bool waits_for_progress_ = false;
};

class WorkerSession {
 public:
  using Clock = ReconnectTimer::Clock;
  struct Options {
    std::string run_id;  // empty: any run
    std::string worker_id;
    uint64_t incarnation = 0;  // 0: from the clock
    std::chrono::milliseconds backoff_max{5000};
  };
  // Without a connection.
  explicit WorkerSession(Options options);

  Link link() const { return link_; }
  bool is_joined() const { return link_ == Link::kJoined; }
  bool is_leaving() const { return leaving_; }
  int64_t trainer_term() const { return trainer_term_; }
  uint64_t incarnation() const { return incarnation_; }
  std::string identity() const { return worker_id_ + "/" + std::to_string(incarnation_); }
  // The header of this session's message number `seq`, whose type the caller sets.
  Header header(uint64_t seq) const;

  // A new socket is open. HELLO is the first message on it.
  void open(Payload hello);
  // The first WELCOME of the session.
  void join(const Header& header, const WelcomeBody& welcome);
  // Ends the session. The next one has a higher incarnation and begins after a pause.
  void disconnect(Clock::time_point now);
  // Ends all sessions: the trainer answered BYE or refused this worker.
  void end() { link_ = Link::kOver; }
  // Leaves with this message, or at once without a session.
  void leave(Payload bye);
  // The connection closed. The session continues, unless the worker is leaving.
  void on_closed();

  Clock::time_point next_attempt() const { return reconnects_.next_attempt(); }
  ReconnectTimer& reconnects() { return reconnects_; }

  // A message arrived; it shows that the trainer is there.
  void touch(Clock::time_point now) { last_message_ = now; }
  // Counts a numbered message. Returns why the session is broken when another number was due.
  std::optional<std::string> count(uint64_t seq);
  // Why the session is over when the trainer was silent for too long.
  std::optional<std::string> silence(Clock::time_point now) const;
  // True when a heartbeat is due; the next one is then due an interval later.
  bool takes_heartbeat(Clock::time_point now);
  void heartbeat_soon() { last_heartbeat_ = {}; }

  // Appends a message that is sent in its turn.
  void queue(Payload payload) { outbox_.push_back(std::move(payload)); }
  // The next numbered message for the socket; nullptr when there is none.
  const Payload* front() const { return outbox_.empty() ? nullptr : &outbox_.front(); }
  std::string front_header() const;
  void sent_front(Clock::time_point now);

 private:
  std::string run_id_;
  std::string worker_id_;
  ReconnectTimer reconnects_;
  int64_t trainer_term_ = -1;
  uint64_t incarnation_;
  Link link_ = Link::kAway;
  bool leaving_ = false;
  bool hello_sent_ = false;
  std::chrono::milliseconds heartbeat_{0};
  std::chrono::milliseconds timeout_{0};
  uint64_t received_seq_ = 0;
  uint64_t sent_seq_ = 0;
  Clock::time_point last_message_{};
  Clock::time_point last_heartbeat_{};
  std::deque<Payload> outbox_;
};

}  // namespace ringside::bridge
