#include "rollout_bridge/worker/worker_state.h"

#include <algorithm>

#include "rollout_bridge/protocol/codec.h"

namespace ringside::bridge {
namespace {

// Checks that each image of the rollout has the pixels that its hash says.
Status check_pixels(const Rollout& rollout) {
  for (const ConversationImage& image : rollout.images) {
    const auto error = [&](Reason reason, const std::string& what) {
      return Error{reason, "rollout '" + rollout.rollout_id + "': image " + image.hash + what};
    };
    if (image.rgb.bytes.size() != image.head().bytes()) {
      return error(Reason::kInvalidField, " has " + std::to_string(image.rgb.bytes.size()) +
                                              " bytes of pixels, expected " +
                                              std::to_string(image.head().bytes()));
    }
    if (image_hash(image.height, image.width, image.rgb.bytes) != image.hash) {
      return error(Reason::kChecksum, " has other pixels than its hash says");
    }
  }
  return Success{};
}

}  // namespace

WorkerState::WorkerState(const WorkerOptions& options, WeightTransfer::Transports transports)
    : options_(options),
      session_({options.run_id, options.worker_id, options.incarnation, options.backoff_max}),
      rollouts_(options.max_pending, options.busy_retry),
      transfer_({.chunk_bytes = options.chunk_bytes,
                 .window = options.chunk_window,
                 .chunk_timeout = options.chunk_timeout,
                 .max_tries = options.stage_tries},
                std::move(transports)),
      last_progress_(Clock::now()) {}

void WorkerState::open_session() {
  session_.open(make_payload(MessageType::kHello, HelloBody{options_.capacity_samples,
                                                            installed_term_,
                                                            installed_.version,
                                                            installed_.root_hash,
                                                            "ringside-cpp/1",
                                                            static_cast<int64_t>(rollouts_.size()),
                                                            {options_.settings}}));
}

void WorkerState::disconnect(const std::string& why, Clock::time_point now) {
  if (session_.link() == Link::kOver) {
    return;
  }
  if (session_.is_joined()) {
    events_.push(Disconnected{why});
  }
  session_.disconnect(now);
  rollouts_.resend_all();
  transfer_.leave();
}

void WorkerState::tick(Clock::time_point now) {
  if (const auto why = session_.silence(now)) {
    return disconnect(*why, now);
  }
  if (!session_.is_joined()) {
    return;
  }
  if (session_.takes_heartbeat(now)) {
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - last_progress_);
    session_.queue(
        make_payload(MessageType::kHeartbeat,
                     HeartbeatBody{state_name(), installed_.version, queue_depth_, age.count(),
                                   static_cast<int64_t>(rollouts_.size())}));
  }
  for (Payload& payload : rollouts_.sendable(now)) {
    session_.queue(std::move(payload));
  }
}

bool WorkerState::fetch_weights(Clock::time_point now) {
  if (!session_.is_joined()) {
    return false;
  }
  const bool more = transfer_.advance(now);
  report_transfer();
  return more;
}

// Tells the trainer which offered versions are here, and which could not be fetched.
void WorkerState::report_transfer() {
  while (const auto outcome = transfer_.next_outcome()) {
    const auto* failed = std::get_if<StageFailedBody>(&*outcome);
    session_.queue(failed != nullptr
                       ? make_payload(MessageType::kStageFailed, *failed)
                       : make_payload(MessageType::kStaged, std::get<StagedBody>(*outcome)));
  }
}

const char* WorkerState::state_name() const {
  if (session_.is_leaving()) {
    return "bye";
  }
  if (paused_) {
    return "paused";
  }
  if (installed_term_ == session_.trainer_term()) {
    return "ready";
  }
  return transfer_.is_busy() ? "sync" : "join";
}

Status WorkerState::send_rollout(Rollout rollout) {
  if (rollout.trainer_term < 0) {
    rollout.trainer_term = std::max<int64_t>(installed_term_, 0);
  }
  if (Status s = validate(rollout, options_.limits); !s) {
    return s;
  }
  if (Status s = check_pixels(rollout); !s) {
    return s;
  }
  rollouts_.add(rollout, encode_rollout(rollout));
  return Success{};
}

Status WorkerState::commit_weights(int64_t version, const std::string& root_hash) {
  if (version < 0) {
    return Error{Reason::kInvalidField, "commit of version " + std::to_string(version)};
  }
  installed_ = {version, root_hash};
  installed_term_ = session_.trainer_term();
  if (!session_.is_joined()) {
    return Success{};  // HELLO will report it
  }
  session_.queue(make_payload(MessageType::kCommitted, installed_));
  queue_ready();
  return Success{};
}

// Queues READY, unless paused: resume() then queues it.
void WorkerState::queue_ready() {
  if (paused_ || !session_.is_joined() || installed_term_ != session_.trainer_term()) {
    return;
  }
  session_.queue(make_payload(MessageType::kReady, ReadyBody{installed_.version}));
}

void WorkerState::pause() {
  paused_ = true;
  session_.heartbeat_soon();
}

void WorkerState::resume() {
  if (!paused_) {
    return;
  }
  paused_ = false;
  session_.heartbeat_soon();
  queue_ready();
}

void WorkerState::touch(Clock::time_point now) {
  last_progress_ = now;
  session_.reconnects().progressed();
}

// Filters grants when the owner polls them, because the owner may have sent their rollouts since
// they arrived.
std::optional<WorkerEvent> WorkerState::poll() {
  if (events_.next_is_grant()) {
    const auto unacknowledged = rollouts_.samples();
    events_.drop_samples([&](int64_t group, int32_t sample) {
      return unacknowledged.contains({group, sample});
    });
  }
  return events_.pop();
}

void WorkerState::queue_bye(const std::string& reason) {
  session_.leave(make_payload(MessageType::kBye, EndBody{reason}));
}

}  // namespace ringside::bridge
