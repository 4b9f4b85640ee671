// Protocol state of a worker: one handler a message type, without sockets and locks.
//
// WorkerEndpoint calls it under its mutex and sends the messages of its outbox.
// Thread safety: none.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/protocol/wire.h"
#include "rollout_bridge/weights/shared_block.h"
#include "rollout_bridge/weights/weight_receiver.h"
#include "rollout_bridge/worker/worker_endpoint.h"

namespace ringside::bridge {

// kAway: no socket. kJoining: HELLO is sent or waits for the connection. kJoined: WELCOME was
// received. kOver: BYE or a fatal error.
enum class Link { kAway, kJoining, kJoined, kOver };

class WorkerState {
 public:
  using Clock = std::chrono::steady_clock;
  explicit WorkerState(const WorkerOptions& options);

  // Called by the socket thread.
  void on_message(const Result<Message>& message, Clock::time_point now);
  void on_weights_message(const Result<Message>& message);
  void tick(Clock::time_point now);  // heartbeats, timeouts, resends
  // A new socket is open. HELLO is the first message on it.
  void open_session();
  // Ends the session. The thread opens new sockets with a higher incarnation.
  void disconnect(const std::string& why, Clock::time_point now);

  // The connection closed. The session continues, unless the worker is leaving.
  void on_closed();

  // Called by the owner of the endpoint.
  Status send_rollout(Rollout rollout);  // a trainer_term < 0 is replaced by the installed one
  bool has_room() const { return pending_.size() < options_.max_pending; }
  Status commit_weights(int64_t version, const std::string& root_hash);
  std::optional<WorkerEvent> poll();
  void queue_bye(const std::string& reason);
  // See WorkerEndpoint.
  void pause();
  void resume();
  bool left() const { return link_ == Link::kOver; }
  std::size_t pending() const { return pending_.size(); }
  void set_queue_depth(int64_t samples) { queue_depth_ = samples; }
  bool has_event() const { return !events_.empty(); }
  // True after the trainer's END.
  bool ended() const { return ended_; }
  void touch(Clock::time_point now) {
    last_progress_ = now;
    gave_no_progress_ = false;
  }

  Link link() const { return link_; }
  uint64_t incarnation() const { return incarnation_; }
  // Time of the next connection. A session that ended for missing progress stays closed until there
  // is progress, because a new session would only take work again.
  Clock::time_point next_attempt() const {
    return gave_no_progress_ ? Clock::time_point::max() : next_attempt_;
  }
  std::string weights_address() const;
  std::string identity() const { return options_.worker_id + "/" + std::to_string(incarnation_); }
  // The next numbered message for the control socket; nullptr when there is none.
  const Payload* front() const { return outbox_.empty() ? nullptr : &outbox_.front(); }
  std::string front_header() const;
  void sent_front(Clock::time_point now);
  WeightReceiver* receiver() { return receiver_.get(); }
  // True while weights are read from the trainer's shared memory; read_shared() reads the next few
  // chunks.
  bool reads_shared() const { return shared_ != nullptr; }
  void read_shared(Clock::time_point now);
  Header weights_header() const { return header(0); }

 private:
  struct Pending {
    std::string rollout_id;
    std::pair<int64_t, int32_t> sample;
    Payload payload;
    bool sent = false;
    std::chrono::steady_clock::time_point not_before{};
  };

  struct Offer {
    Manifest manifest;
    std::vector<std::byte> payloads;  // of all its overwrites, when they came with the offer
    SharedBody shared;
  };

  void on_welcome(const Message& message, Clock::time_point now);
  void on_credit(const Message& message);
  void on_ack(const Message& message, Clock::time_point now);
  void on_offer(const Message& message);
  void on_commit(const Message& message);
  void on_error(const Message& message, Clock::time_point now);
  void finish_staging();
  void drop_staging(const std::string& why);
  void start_staging();
  void send_window(Clock::time_point now);
  void queue_ready();
  void set_window(int64_t bytes);
  const char* state_name() const;
  // Removes samples from Granted events that were not polled yet.
  void drop_from_grants(const std::function<bool(int64_t, int32_t)>& is_dropped);
  void emit(WorkerEvent event) { events_.push_back(std::move(event)); }
  Header header(uint64_t seq) const;

  WorkerOptions options_;
  uint64_t incarnation_;
  Link link_ = Link::kAway;
  std::string run_id_;
  int64_t trainer_term_ = -1;
  WelcomeBody welcome_;
  int64_t window_ = 0;  // bytes that may be unacknowledged; 0: send nothing
  bool hello_sent_ = false;
  bool paused_ = false;
  bool leaving_ = false;
  bool gave_no_progress_ = false;
  bool ended_ = false;
  uint64_t received_seq_ = 0;
  uint64_t sent_seq_ = 0;
  int attempts_ = 0;  // since the last WELCOME, for the backoff
  Clock::time_point next_attempt_{};
  Clock::time_point last_message_{};
  Clock::time_point last_heartbeat_{};
  Clock::time_point last_progress_;
  std::deque<Payload> outbox_;
  std::deque<WorkerEvent> events_;
  std::deque<Pending> pending_;
  uint64_t unacked_bytes_ = 0;  // of the sent ones in pending_
  int64_t queue_depth_ = 0;     // samples the owner holds, as it reports
  std::unique_ptr<WeightReceiver> receiver_;
  SharedViews views_;
  std::shared_ptr<const SharedView> shared_;  // source of the receiver's chunks; null: the network
  std::optional<Offer> next_offer_;           // arrived while another version was being staged
  std::shared_ptr<const WeightSnapshot> staged_;
  // The version staged last: the base of the next delta. One copy of the weights in host memory,
  // shared with the owner while it holds that WeightsReady.
  std::shared_ptr<const WeightSnapshot> base_;
  WeightMemory memory_;  // memory of versions before the base, reused for the next one
  WeightsBody installed_;
  int64_t installed_term_ = -1;
};

}  // namespace ringside::bridge
