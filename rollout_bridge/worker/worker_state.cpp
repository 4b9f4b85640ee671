#include "rollout_bridge/worker/worker_state.h"

#include <algorithm>
#include <set>

#include "rollout_bridge/protocol/codec.h"

namespace ringside::bridge {
namespace {

constexpr std::chrono::milliseconds kBackoffMin{100};
constexpr std::chrono::milliseconds kWelcomeTimeout{5000};

uint64_t from_clock() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

WorkerState::WorkerState(const WorkerOptions& options)
    : options_(options),
      incarnation_(options.incarnation != 0 ? options.incarnation : from_clock()),
      run_id_(options.run_id),
      last_progress_(Clock::now()) {}

Header WorkerState::header(uint64_t seq) const {
  return {MessageType::kError, run_id_, trainer_term_, options_.worker_id, incarnation_, seq};
}

std::string WorkerState::weights_address() const {
  return options_.weights_address.empty() ? welcome_.weights_address : options_.weights_address;
}

std::string WorkerState::front_header() const {
  return pack_header(header(sent_seq_ + 1), outbox_.front());
}

void WorkerState::sent_front(Clock::time_point now) {
  if (outbox_.front().type == MessageType::kHello) {
    hello_sent_ = true;
    last_message_ = now;
  }
  ++sent_seq_;
  outbox_.pop_front();
}

void WorkerState::open_session() {
  link_ = Link::kJoining;
  hello_sent_ = false;
  outbox_.push_back(
      make_payload(MessageType::kHello, HelloBody{options_.capacity_samples,
                                                  installed_term_,
                                                  installed_.version,
                                                  installed_.root_hash,
                                                  "ringside-cpp/1",
                                                  static_cast<int64_t>(pending_.size()),
                                                  {options_.settings}}));
}

void WorkerState::disconnect(const std::string& why, Clock::time_point now) {
  if (link_ == Link::kOver) return;
  if (link_ == Link::kJoined) emit(Disconnected{why});
  link_ = Link::kAway;
  ++incarnation_;
  const auto backoff = kBackoffMin * (1 << std::min(attempts_, 10));
  next_attempt_ = now + std::min<std::chrono::milliseconds>(backoff, options_.backoff_max);
  ++attempts_;
  received_seq_ = sent_seq_ = 0;
  outbox_.clear();
  unacked_bytes_ = 0;
  for (Pending& p : pending_) p.sent = false;
  receiver_.reset();
  shared_.reset();
  views_.clear();
  next_offer_.reset();
  staged_.reset();
}

void WorkerState::on_closed() {
  if (leaving_) link_ = Link::kOver;  // no trainer is left to answer BYE
}

void WorkerState::on_message(const Result<Message>& received, Clock::time_point now) {
  if (link_ == Link::kOver || link_ == Link::kAway) return;
  if (!received)
    return disconnect("trainer sent what cannot be read: " + received.error().detail, now);
  const Message& message = received.value();
  last_message_ = now;
  const MessageType type = message.header().type;
  if (type == MessageType::kError) return on_error(message, now);
  if (type == MessageType::kBye) {  // the answer to this worker's BYE
    link_ = Link::kOver;
    return;
  }
  if (message.header().seq != received_seq_ + 1) {
    return disconnect("received seq " + std::to_string(message.header().seq) + ", expected " +
                          std::to_string(received_seq_ + 1),
                      now);
  }
  ++received_seq_;
  if (type == MessageType::kWelcome) return on_welcome(message, now);
  if (link_ != Link::kJoined) return disconnect("no WELCOME", now);
  switch (type) {
    case MessageType::kCredit:
      return on_credit(message);
    case MessageType::kAck:
      return on_ack(message, now);
    case MessageType::kWeightsOffer:
      return on_offer(message);
    case MessageType::kCommit:
      return on_commit(message);
    case MessageType::kHeartbeat:
      return;
    case MessageType::kEnd: {
      const auto body = message.body<EndBody>();
      ended_ = true;
      return emit(Ended{body ? body.value().reason : ""});
    }
    default:
      return disconnect(std::string("a worker takes no ") + message_type_name(type), now);
  }
}

void WorkerState::tick(Clock::time_point now) {
  if (link_ == Link::kJoining && hello_sent_ && now - last_message_ > kWelcomeTimeout) {
    return disconnect("no WELCOME", now);
  }
  if (link_ != Link::kJoined) return;
  const auto silent = std::chrono::duration_cast<std::chrono::milliseconds>(now - last_message_);
  if (silent.count() > welcome_.timeout_ms) {
    return disconnect("no message for " + std::to_string(silent.count()) + " ms", now);
  }
  if (now - last_heartbeat_ >= std::chrono::milliseconds(welcome_.heartbeat_ms)) {
    last_heartbeat_ = now;
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - last_progress_);
    outbox_.push_back(
        make_payload(MessageType::kHeartbeat,
                     HeartbeatBody{state_name(), installed_.version, queue_depth_, age.count(),
                                   static_cast<int64_t>(pending_.size())}));
  }
  if (!receiver_ && !staged_ && next_offer_) start_staging();
  send_window(now);
}

const char* WorkerState::state_name() const {
  if (leaving_) return "bye";
  if (paused_) return "paused";
  if (installed_term_ == trainer_term_) return "ready";
  return receiver_ || staged_ ? "sync" : "join";
}

void WorkerState::set_window(int64_t bytes) {
  if (bytes >= 0) window_ = bytes;
}

void WorkerState::send_window(Clock::time_point now) {
  if (window_ == 0) return;  // the trainer will send a window
  for (Pending& p : pending_) {
    if (p.sent || p.not_before > now) continue;
    const uint64_t bytes = p.payload.buffer_bytes();
    const bool fits = unacked_bytes_ + bytes <= static_cast<uint64_t>(window_);
    if (!fits && unacked_bytes_ > 0)
      return;                      // keeps the order; a rollout larger than the window goes alone
    outbox_.push_back(p.payload);  // shares the buffers
    p.sent = true;
    unacked_bytes_ += bytes;
  }
}

Status WorkerState::send_rollout(Rollout rollout) {
  if (rollout.trainer_term < 0) rollout.trainer_term = std::max<int64_t>(installed_term_, 0);
  if (Status s = validate(rollout, options_.limits); !s) return s;
  Pending p{rollout.rollout_id,
            {rollout.group_id, rollout.sample_index},
            encode_rollout(rollout, options_.limits),
            false,
            {}};
  pending_.push_back(std::move(p));
  return Success{};
}

Status WorkerState::commit_weights(int64_t version, const std::string& root_hash) {
  if (version < 0) {
    return Error{Reason::kInvalidField, "commit of version " + std::to_string(version)};
  }
  installed_ = {version, root_hash};
  installed_term_ = trainer_term_;
  if (link_ != Link::kJoined) return Success{};  // HELLO will report it
  outbox_.push_back(make_payload(MessageType::kCommitted, installed_));
  queue_ready();
  return Success{};
}

// Queues READY, unless paused: resume() then queues it.
void WorkerState::queue_ready() {
  if (paused_ || link_ != Link::kJoined || installed_term_ != trainer_term_) return;
  outbox_.push_back(make_payload(MessageType::kReady, ReadyBody{installed_.version}));
}

void WorkerState::pause() {
  paused_ = true;
  last_heartbeat_ = {};  // the next tick sends a heartbeat
}

void WorkerState::resume() {
  if (!paused_) return;
  paused_ = false;
  last_heartbeat_ = {};
  queue_ready();
}

// Filters grants when the owner polls them, because the owner may have sent their rollouts since
// they arrived.
std::optional<WorkerEvent> WorkerState::poll() {
  if (!events_.empty() && std::holds_alternative<Granted>(events_.front())) {
    std::set<std::pair<int64_t, int32_t>> unacknowledged;
    for (const Pending& p : pending_) unacknowledged.insert(p.sample);
    drop_from_grants([&](int64_t group, int32_t sample) {
      return unacknowledged.contains({group, sample});
    });
  }
  if (events_.empty()) return std::nullopt;
  WorkerEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void WorkerState::drop_from_grants(const std::function<bool(int64_t, int32_t)>& is_dropped) {
  std::erase_if(events_, [&](WorkerEvent& event) {
    auto* granted = std::get_if<Granted>(&event);
    if (granted == nullptr) return false;
    std::erase_if(granted->groups, [&](GrantedGroup& group) {
      std::erase_if(group.sample_indices,
                    [&](int32_t sample) { return is_dropped(group.group_id, sample); });
      return group.sample_indices.empty();
    });
    return granted->groups.empty();
  });
}

void WorkerState::queue_bye(const std::string& reason) {
  leaving_ = true;
  if (link_ != Link::kJoined) {
    link_ = Link::kOver;  // there is no session to send BYE on
    return;
  }
  outbox_.push_back(make_payload(MessageType::kBye, EndBody{reason}));
}

}  // namespace ringside::bridge
