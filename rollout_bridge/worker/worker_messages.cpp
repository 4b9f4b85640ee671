// Message handlers of WorkerState, one for each message of a trainer, and the staging of weights.
#include <algorithm>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/weights/manifest_codec.h"
#include "rollout_bridge/worker/worker_state.h"

namespace ringside::bridge {

void WorkerState::on_welcome(const Message& message, Clock::time_point now) {
  const auto body = message.body<WelcomeBody>();
  if (!body || body.value().heartbeat_ms < 1 || body.value().timeout_ms < 1 ||
      body.value().window_bytes < 1 || body.value().chunk_bytes < 1) {
    return disconnect("WELCOME with a missing or non-positive number", now);
  }
  welcome_ = body.value();
  window_ = welcome_.window_bytes;
  run_id_ = message.header().run_id;
  trainer_term_ = message.header().trainer_term;
  link_ = Link::kJoined;
  attempts_ = 0;
  last_heartbeat_ = {};
  emit(Connected{run_id_, trainer_term_});
  // Installed weights count only within their term; otherwise the trainer sends all tensors.
  queue_ready();
}

void WorkerState::on_credit(const Message& message) {
  const auto body = message.body<CreditBody>();
  if (!body) return;
  set_window(body.value().window_bytes);
  Granted granted;
  for (const GrantBody& g : body.value().groups) {
    granted.groups.push_back(
        {g.group_id, g.group_size, g.min_version, g.attempt, g.sample_indices});
  }
  if (!granted.groups.empty()) emit(std::move(granted));
}

void WorkerState::on_ack(const Message& message, Clock::time_point now) {
  const auto body = message.body<AckBody>();
  if (!body) return;
  const AckBody& ack = body.value();
  set_window(ack.window_bytes);
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
  // Drops grants of this sample that arrived before this answer.
  drop_from_grants(
      [&](int64_t group, int32_t sample) { return std::pair(group, sample) == it->sample; });
  pending_.erase(it);
}

void WorkerState::on_offer(const Message& message) {
  const int frame = message.find("manifest");
  if (frame < 0) return;
  auto manifest = decode_manifest(message.frame(frame), options_.limits);
  if (!manifest || manifest.value().trainer_term != trainer_term_) {
    const auto body = message.body<WeightsBody>();
    outbox_.push_back(make_payload(
        MessageType::kStageFailed,
        StageFailedBody{body ? body.value().version : -1,
                        manifest ? "manifest of another trainer_term" : manifest.error().detail}));
    return;
  }
  next_offer_ = Offer{std::move(manifest).value(), {}, {}};
  if (const auto body = message.body<OfferBody>()) next_offer_->shared = body.value().shared;
  if (const int along = message.find("payloads"); along >= 0) {
    const Frame payloads = message.frame(along);
    next_offer_->payloads.assign(payloads.begin(), payloads.end());
  }
  // A version being staged is finished first, so that frequent offers cannot keep a slow worker
  // from ever installing one. The trainer answers "gone" for versions it no longer holds.
  if (!receiver_) start_staging();
}

void WorkerState::start_staging() {
  receiver_.reset();
  shared_.reset();
  if (!next_offer_) return;
  if (options_.shared_memory && !next_offer_->shared.host.empty()) {
    const SharedBody& from = next_offer_->shared;
    const TensorEntry& last = next_offer_->manifest.tensors.back();
    auto view = views_.open({from.host, from.pid, from.fd, from.bytes});
    // If the memory cannot be read, all chunks come over the network.
    if (view && last.offset + last.bytes <= from.bytes) shared_ = std::move(view).value();
  }
  WeightReceiver::Options o;
  o.chunk_bytes =
      std::min<uint64_t>(options_.chunk_bytes, static_cast<uint64_t>(welcome_.chunk_bytes));
  o.window = options_.chunk_window;
  o.chunk_timeout = options_.chunk_timeout;
  o.max_tries = options_.stage_tries;
  // With shared memory, copying a tensor is faster than applying its delta.
  o.changes = shared_ == nullptr;
  receiver_ = std::make_unique<WeightReceiver>(std::move(next_offer_->manifest), o, base_, memory_);
  receiver_->apply_offered(next_offer_->payloads);
  next_offer_.reset();
  if (receiver_->complete()) finish_staging();
}

// Reads the chunks that the receiver would request. The trainer may already be writing another
// version there. On the first hash mismatch the remaining chunks are fetched over the network.
void WorkerState::read_shared(Clock::time_point now) {
  for (const ChunkBody& chunk : receiver_->requests(now)) {
    const uint64_t at = receiver_->manifest().tensors[chunk.tensor].offset + chunk.offset;
    if (Status s = receiver_->accept(chunk, shared_->bytes().subspan(at, chunk.bytes)); !s) {
      return drop_staging(s.error().detail);
    }
  }
  if (receiver_->complete()) return finish_staging();
  if (receiver_->mismatches() > 0) shared_.reset();
}

void WorkerState::finish_staging() {
  StagedBody body;
  body.encoding = shared_ ? "shared" : receiver_->builds_on_base() ? "overwrite" : "dense";
  body.refetched = static_cast<int64_t>(receiver_->refetched());
  base_ = staged_ = receiver_->take();
  body.version = staged_->manifest.version;
  body.root_hash = staged_->manifest.root_hash;
  outbox_.push_back(make_payload(MessageType::kStaged, body));
  receiver_.reset();
  shared_.reset();
}

void WorkerState::drop_staging(const std::string& why) {
  outbox_.push_back(
      make_payload(MessageType::kStageFailed, StageFailedBody{receiver_->manifest().version, why}));
  start_staging();
}

void WorkerState::on_weights_message(const Result<Message>& received) {
  if (!receiver_ || !received) return;  // a damaged chunk times out and is requested again
  const Message& message = received.value();
  if (message.header().type == MessageType::kError) {
    const auto body = message.body<ErrorBody>();
    // The answer may be to a request for an earlier version.
    if (body && reason_from_name(body.value().reason) == Reason::kGone &&
        body.value().version == receiver_->manifest().version) {
      drop_staging("gone");
    }
    return;
  }
  const auto body = message.body<ChunkBody>();
  const int frame = message.find("data");
  if (message.header().type != MessageType::kChunk || !body || frame < 0 ||
      message.header().trainer_term != trainer_term_) {
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
  if (reason == Reason::kTimeout) gave_no_progress_ = true;
  if (link_ == Link::kJoining || reason == Reason::kUnknownSession ||
      reason == Reason::kSequenceGap || reason == Reason::kTimeout) {
    disconnect("trainer: " + error.reason + ": " + error.detail, now);
  }
}

}  // namespace ringside::bridge
