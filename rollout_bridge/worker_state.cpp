#include "rollout_bridge/worker_state.h"

#include <algorithm>

#include "rollout_bridge/codec.h"

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
  return {MessageType::kError, run_id_, run_epoch_, options_.worker_id, incarnation_, seq};
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
  outbox_.push_back(make_payload(
      MessageType::kHello, HelloBody{options_.capacity_samples, installed_epoch_,
                                     installed_.version, installed_.root_hash, "ringside-cpp/1"}));
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
  next_offer_.reset();
  staged_.reset();
}

void WorkerState::on_message(const Result<Message>& received, Clock::time_point now) {
  if (link_ == Link::kOver || link_ == Link::kAway) return;
  if (!received)
    return disconnect("trainer sent what cannot be read: " + received.error().detail, now);
  const Message& message = received.value();
  last_message_ = now;
  const MessageType type = message.header().type;
  if (type == MessageType::kError) return on_error(message, now);
  if (type == MessageType::kBye) {  // the answer to ours
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
      return emit(Ended{body ? body.value().reason : ""});
    }
    default:
      return disconnect(std::string("a worker takes no ") + message_type_name(type), now);
  }
}

void WorkerState::on_welcome(const Message& message, Clock::time_point now) {
  const auto body = message.body<WelcomeBody>();
  if (!body || body.value().heartbeat_ms < 1 || body.value().timeout_ms < 1 ||
      body.value().window_bytes < 1 || body.value().chunk_bytes < 1) {
    return disconnect("WELCOME without its numbers", now);
  }
  welcome_ = body.value();
  run_id_ = message.header().run_id;
  run_epoch_ = message.header().run_epoch;
  link_ = Link::kJoined;
  attempts_ = 0;
  last_heartbeat_ = {};
  emit(Connected{run_id_, run_epoch_});
  // What is installed counts only within its epoch; otherwise the trainer sends everything.
  if (installed_epoch_ == run_epoch_) {
    outbox_.push_back(make_payload(MessageType::kReady, ReadyBody{installed_.version}));
  }
}

void WorkerState::on_credit(const Message& message) {
  const auto body = message.body<CreditBody>();
  if (!body) return;
  Granted granted;
  for (const GrantBody& g : body.value().groups) {
    GrantedGroup group{g.group_id, g.group_size, g.min_version, g.attempt, {}};
    for (const int32_t sample : g.sample_indices) {
      const std::pair<int64_t, int32_t> key{g.group_id, sample};
      const bool unacknowledged = std::any_of(pending_.begin(), pending_.end(),
                                              [&](const Pending& p) { return p.sample == key; });
      if (!unacknowledged && in_flight_.insert(key).second) group.sample_indices.push_back(sample);
    }
    if (!group.sample_indices.empty()) granted.groups.push_back(std::move(group));
  }
  if (!granted.groups.empty()) emit(std::move(granted));
}

void WorkerState::on_ack(const Message& message, Clock::time_point now) {
  const auto body = message.body<AckBody>();
  if (!body) return;
  const AckBody& ack = body.value();
  const auto it = std::find_if(pending_.begin(), pending_.end(),
                               [&](const Pending& p) { return p.rollout_id == ack.rollout_id; });
  if (it == pending_.end()) return;
  if (it->sent) unacked_bytes_ -= it->payload.buffer_bytes();
  if (ack.status == "BUSY") {
    it->sent = false;
    it->not_before = now + options_.busy_retry;
    return;
  }
  if (ack.status == "REJECTED") emit(RolloutRejected{ack.rollout_id, ack.reason, ack.detail});
  pending_.erase(it);
}

void WorkerState::on_offer(const Message& message) {
  const int frame = message.find("manifest");
  if (frame < 0) return;
  auto manifest = decode_manifest(message.frame(frame), options_.limits);
  if (!manifest || manifest.value().run_epoch != run_epoch_) {
    const auto body = message.body<WeightsBody>();
    outbox_.push_back(make_payload(
        MessageType::kStageFailed,
        StageFailedBody{body ? body.value().version : -1,
                        manifest ? "manifest of another epoch" : manifest.error().detail}));
    return;
  }
  next_offer_ = std::move(manifest).value();
  // A version under way is finished first: frequent offers must not keep a slow worker from ever
  // installing one. The trainer answers "gone" for what it no longer holds.
  if (!receiver_) start_staging();
}

void WorkerState::start_staging() {
  receiver_.reset();
  if (!next_offer_) return;
  WeightReceiver::Options o;
  o.chunk_bytes =
      std::min<uint64_t>(options_.chunk_bytes, static_cast<uint64_t>(welcome_.chunk_bytes));
  o.window = options_.chunk_window;
  o.chunk_timeout = options_.chunk_timeout;
  o.max_tries = options_.stage_tries;
  receiver_ = std::make_unique<WeightReceiver>(std::move(*next_offer_), o);
  next_offer_.reset();
  if (receiver_->complete()) finish_staging();
}

void WorkerState::finish_staging() {
  staged_ = receiver_->take();
  outbox_.push_back(make_payload(
      MessageType::kStaged, WeightsBody{staged_->manifest.version, staged_->manifest.root_hash}));
  receiver_.reset();
}

void WorkerState::drop_staging(const std::string& why) {
  outbox_.push_back(
      make_payload(MessageType::kStageFailed, StageFailedBody{receiver_->manifest().version, why}));
  start_staging();
}

void WorkerState::on_weights_message(const Result<Message>& received) {
  if (!receiver_ || !received) return;  // a damaged chunk is missed and asked for again
  const Message& message = received.value();
  if (message.header().type == MessageType::kError) {
    const auto body = message.body<ErrorBody>();
    // Requests of an earlier version may be answered late.
    if (body && reason_from_name(body.value().reason) == Reason::kGone &&
        body.value().version == receiver_->manifest().version) {
      drop_staging("gone");
    }
    return;
  }
  const auto body = message.body<ChunkBody>();
  const int frame = message.find("data");
  if (message.header().type != MessageType::kChunk || !body || frame < 0 ||
      message.header().run_epoch != run_epoch_) {
    return;
  }
  if (Status s = receiver_->accept(body.value(), message.frame(frame)); !s) {
    return drop_staging(s.error().detail);
  }
  if (receiver_->complete()) finish_staging();
}

void WorkerState::on_commit(const Message& message) {
  const auto body = message.body<WeightsBody>();
  if (!body || !staged_ || staged_->manifest.version != body.value().version ||
      staged_->manifest.root_hash != body.value().root_hash) {
    return;
  }
  std::erase_if(events_,
                [](const WorkerEvent& e) { return std::holds_alternative<WeightsReady>(e); });
  emit(WeightsReady{std::move(staged_)});
  staged_.reset();
  if (next_offer_) start_staging();
}

void WorkerState::on_error(const Message& message, Clock::time_point now) {
  const auto body = message.body<ErrorBody>();
  if (!body) return disconnect("an ERROR that cannot be read", now);
  const ErrorBody& error = body.value();
  if (error.fatal) {
    link_ = Link::kOver;
    return emit(Failed{error.reason, error.detail});
  }
  const Reason reason = reason_from_name(error.reason);
  if (link_ == Link::kJoining || reason == Reason::kUnknownSession ||
      reason == Reason::kSequenceGap || reason == Reason::kTimeout) {
    disconnect("trainer: " + error.reason + ": " + error.detail, now);
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
                     HeartbeatBody{receiver_ ? "staging" : "running", installed_.version,
                                   static_cast<int64_t>(in_flight_.size()), age.count()}));
  }
  if (!receiver_ && !staged_ && next_offer_) start_staging();
  send_window(now);
}

void WorkerState::send_window(Clock::time_point now) {
  for (Pending& p : pending_) {
    if (p.sent || p.not_before > now) continue;
    const uint64_t bytes = p.payload.buffer_bytes();
    const bool fits = unacked_bytes_ + bytes <= static_cast<uint64_t>(welcome_.window_bytes);
    if (!fits && unacked_bytes_ > 0) return;  // in order; a large one goes alone
    outbox_.push_back(p.payload);             // shares the buffers
    p.sent = true;
    unacked_bytes_ += bytes;
  }
}

Status WorkerState::send_rollout(Rollout rollout) {
  if (rollout.run_epoch < 0) rollout.run_epoch = std::max<int64_t>(installed_epoch_, 0);
  if (Status s = validate(rollout, options_.limits); !s) return s;
  Pending p{rollout.rollout_id,
            {rollout.group_id, rollout.sample_index},
            encode_rollout(rollout, options_.limits),
            false,
            {}};
  in_flight_.erase(p.sample);
  pending_.push_back(std::move(p));
  return Success{};
}

Status WorkerState::commit_weights(int64_t version, const std::string& root_hash) {
  if (version < 0) {
    return Error{Reason::kInvalidField, "commit of version " + std::to_string(version)};
  }
  installed_ = {version, root_hash};
  installed_epoch_ = run_epoch_;
  if (link_ != Link::kJoined) return Success{};  // HELLO will say it
  outbox_.push_back(make_payload(MessageType::kCommitted, installed_));
  outbox_.push_back(make_payload(MessageType::kReady, ReadyBody{version}));
  return Success{};
}

std::optional<WorkerEvent> WorkerState::poll() {
  if (events_.empty()) return std::nullopt;
  WorkerEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void WorkerState::say_bye(const std::string& reason) {
  if (link_ != Link::kJoined) {
    link_ = Link::kOver;  // nobody to say it to
    return;
  }
  outbox_.push_back(make_payload(MessageType::kBye, EndBody{reason}));
}

}  // namespace ringside::bridge
