// Message handlers of WorkerState, one for each message of a trainer.
#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/weights/manifest_codec.h"
#include "rollout_bridge/worker/worker_state.h"

namespace ringside::bridge {

void WorkerState::on_message(const Result<Message>& received, Clock::time_point now) {
  if (session_.link() == Link::kOver || session_.link() == Link::kAway) {
    return;
  }
  if (!received && received.error().reason == Reason::kUnsupported) {
    session_.end();
    return events_.push(Failed{reason_name(Reason::kUnsupported),
                               "message of the trainer: " + received.error().detail});
  }
  if (!received) {
    return disconnect("trainer sent what cannot be read: " + received.error().detail, now);
  }
  const Message& message = received.value();
  session_.touch(now);
  const MessageType type = message.header().type;
  if (type == MessageType::kError) {
    return on_error(message, now);
  }
  if (type == MessageType::kBye) {
    return session_.end();  // the answer to this worker's BYE
  }
  if (const auto gap = session_.count(message.header().seq)) {
    return disconnect(*gap, now);
  }
  if (type == MessageType::kWelcome) {
    return on_welcome(message, now);
  }
  if (!session_.is_joined()) {
    return disconnect("no WELCOME", now);
  }
  switch (type) {
    case MessageType::kCredit:
      return on_credit(message);
    case MessageType::kAck:
      return on_ack(message, now);
    case MessageType::kImageAck:
      if (const auto body = message.body<ImageAckBody>()) {
        rollouts_.acknowledge_image(body.value());
      }
      return;
    case MessageType::kWeightsOffer:
      return on_offer(message);
    case MessageType::kCommit:
      return on_commit(message);
    case MessageType::kHeartbeat:
      return;
    case MessageType::kEnd: {
      const auto body = message.body<EndBody>();
      ended_ = true;
      return events_.push(Ended{body ? body.value().reason : ""});
    }
    default:
      return disconnect(std::string("a worker takes no ") + message_type_name(type), now);
  }
}

void WorkerState::on_welcome(const Message& message, Clock::time_point now) {
  const auto parsed = message.body<WelcomeBody>();
  if (!parsed || parsed.value().heartbeat_ms < 1 || parsed.value().timeout_ms < 1 ||
      parsed.value().window_bytes < 1 || parsed.value().chunk_bytes < 1) {
    return disconnect("WELCOME with a missing or non-positive number", now);
  }
  const WelcomeBody& welcome = parsed.value();
  session_.join(message.header(), welcome);
  rollouts_.set_window(welcome.window_bytes);
  transfer_.join(
      {session_.header(0),
       options_.weights_address.empty() ? welcome.weights_address : options_.weights_address,
       static_cast<uint64_t>(welcome.chunk_bytes)});
  events_.push(Connected{message.header().run_id, message.header().trainer_term});
  // Installed weights count only within their term; otherwise the trainer sends all tensors.
  queue_ready();
}

void WorkerState::on_credit(const Message& message) {
  auto body = message.body<CreditBody>();
  if (!body) {
    return;
  }
  rollouts_.set_window(body.value().window_bytes);
  Granted granted{std::move(body.value().groups), std::move(body.value().withdrawn)};
  if (!granted.groups.empty() || !granted.withdrawn.empty()) {
    events_.push(std::move(granted));
  }
}

void WorkerState::on_ack(const Message& message, Clock::time_point now) {
  const auto body = message.body<AckBody>();
  if (!body) {
    return;
  }
  const AckBody& ack = body.value();
  rollouts_.set_window(ack.window_bytes);
  const auto answered = rollouts_.acknowledge(ack, now);
  if (!answered) {
    return;
  }
  if (ack.status == "REJECTED") {
    events_.push(RolloutRejected{answered->rollout_id, ack.reason, ack.detail});
  }
  // Drops grants of this sample that arrived before this answer.
  events_.drop_samples([&](int64_t group, int32_t sample) {
    return UnackedRollouts::Sample(group, sample) == answered->sample;
  });
}

void WorkerState::on_offer(const Message& message) {
  const int frame = message.find("manifest");
  if (frame < 0) {
    return;
  }
  WeightOffer offer;
  if (const auto body = message.body<OfferBody>()) {
    offer.where = body.value();
  }
  auto manifest = decode_manifest(message.frame(frame), options_.limits);
  if (!manifest || manifest.value().trainer_term != session_.trainer_term()) {
    session_.queue(make_payload(
        MessageType::kStageFailed,
        StageFailedBody{message.field<int64_t>("version").value_or(-1),
                        manifest ? "manifest of another trainer_term" : manifest.error().detail}));
    return;
  }
  offer.manifest = std::move(manifest).value();
  if (const int along = message.find("payloads"); along >= 0) {
    const Frame payloads = message.frame(along);
    offer.payloads.assign(payloads.begin(), payloads.end());
  }
  transfer_.offer(std::move(offer));
  report_transfer();
}

void WorkerState::on_commit(const Message& message) {
  const auto body = message.body<WeightsBody>();
  if (!body) {
    return;
  }
  if (auto snapshot = transfer_.commit(body.value().version, body.value().root_hash)) {
    events_.push(WeightsReady{std::move(snapshot)});
  }
}

void WorkerState::on_error(const Message& message, Clock::time_point now) {
  const auto body = message.body<ErrorBody>();
  if (!body) {
    return disconnect("an ERROR that cannot be read", now);
  }
  const ErrorBody& error = body.value();
  if (error.fatal) {
    session_.end();
    return events_.push(Failed{error.reason, error.detail});
  }
  const Reason reason = reason_from_name(error.reason);
  if (reason == Reason::kTimeout) {
    session_.reconnects().wait_for_progress();
  }
  if (session_.link() == Link::kJoining || reason == Reason::kUnknownSession ||
      reason == Reason::kSequenceGap || reason == Reason::kTimeout) {
    disconnect("trainer: " + error.reason + ": " + error.detail, now);
  }
}

}  // namespace ringside::bridge
