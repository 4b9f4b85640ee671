// Message handlers of TrainerState, one for each message of a worker.
#include <algorithm>
#include <bit>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/trainer/trainer_state.h"

namespace ringside::bridge {
namespace {

// The id is used in logs, file names and metrics, so it must be printable.
bool is_worker_id(const std::string& text, const Limits& limits) {
  return !text.empty() && text.size() <= limits.max_worker_id_bytes && clip_text(text) == text;
}

std::string identity_of(const std::string& worker_id, uint64_t incarnation) {
  return worker_id + "/" + std::to_string(incarnation);
}

Status check_hello(const std::string& identity, const Header& header, const HelloBody& body,
                   const Limits& limits) {
  if (!is_worker_id(header.worker_id, limits) || body.capacity_samples < 1 ||
      body.capacity_samples > limits.max_capacity_samples || header.seq != 1) {
    return Error{Reason::kInvalidField,
                 "HELLO: worker_id '" + header.worker_id + "', capacity_samples " +
                     std::to_string(body.capacity_samples) + ", seq " + std::to_string(header.seq) +
                     "; expected 1 to " + std::to_string(limits.max_worker_id_bytes) +
                     " bytes without control characters, 1 to " +
                     std::to_string(limits.max_capacity_samples) + ", 1"};
  }
  if (const std::string own = identity_of(header.worker_id, header.incarnation); identity != own) {
    return Error{Reason::kInvalidField, "HELLO of worker " + own + " under routing id '" +
                                            identity + "', expected routing id '" + own + "'"};
  }
  return Success{};
}

}  // namespace

void TrainerState::on_message(const std::string& identity, const std::string& user,
                              const Result<Message>& received, Clock::time_point now) {
  now_ = std::max(now_, now);
  if (!received && received.error().reason == Reason::kUnsupported) {
    return refuse_version(identity, received.error());
  }
  if (!received) return refuse(identity, received.error(), false, nullptr);
  const Message& message = received.value();
  const Header& header = message.header();
  if (!header.run_id.empty() && header.run_id != options_.run_id) {
    return refuse(identity,
                  {Reason::kWrongRun,
                   "message of run '" + header.run_id + "', this is run '" + options_.run_id + "'"},
                  true, &header);
  }
  if (header.type == MessageType::kHello) return on_hello(identity, user, message, now);
  const auto it = sessions_.find(identity);
  if (it == sessions_.end()) {
    return refuse(identity, {Reason::kUnknownSession, "say HELLO first"}, false, &header);
  }
  Session& session = it->second;
  if (session.user != user) {
    return refuse(identity, {Reason::kDenied, "the session belongs to another key"}, true, &header);
  }
  if (header.worker_id != session.worker_id || header.incarnation != session.incarnation) {
    const Error other{Reason::kInvalidField, "message of worker " +
                                                 identity_of(header.worker_id, header.incarnation) +
                                                 " in the session of worker " + identity};
    refuse(identity, other, true, &header);
    return lose(identity, other.detail);
  }
  if (header.seq != session.received_seq + 1) {
    const Error gap{Reason::kSequenceGap, "received seq " + std::to_string(header.seq) +
                                              ", expected " +
                                              std::to_string(session.received_seq + 1)};
    refuse(identity, gap, false, &header);
    return lose(identity, gap.detail);
  }
  session.received_seq = header.seq;
  session.last_message = now;
  on_session_message(identity, session, message, now);
}

// It would come again and again, so it is told to leave. Logged at the 1st, 2nd, 4th, 8th... time.
void TrainerState::refuse_version(const std::string& identity, const Error& error) {
  ++other_versions_;
  if (std::has_single_bit(other_versions_)) {
    event("", "worker with routing id '" + identity + "' refused: " + error.detail +
                  (other_versions_ > 1 ? " (message " + std::to_string(other_versions_) +
                                             " of another protocol version)"
                                       : ""));
  }
  refuse(identity, error, true, nullptr);
}

void TrainerState::on_session_message(const std::string& identity, Session& session,
                                      const Message& message, Clock::time_point now) {
  if (session.state == SessionState::kBye) return;  // it left by BYE already
  switch (message.header().type) {
    case MessageType::kRollout:
      on_rollout(session, message);
      give_up_if_always_refused(identity, message);
      break;
    case MessageType::kReady:
      on_ready(session, message);
      break;
    case MessageType::kHeartbeat:
      on_heartbeat(identity, session, message, now);
      break;
    case MessageType::kStaged:
      on_staged(session, message);
      break;
    case MessageType::kStageFailed:
      on_stage_failed(session, message);
      break;
    case MessageType::kCommitted:
      on_committed(session, message);
      break;
    case MessageType::kBye:
      on_bye(session, message);
      break;
    default:
      refuse(identity,
             {Reason::kUnsupported,
              std::string("a trainer takes no ") + message_type_name(message.header().type)},
             false, &message.header());
  }
  hand_out_work();
}

void TrainerState::on_hello(const std::string& identity, const std::string& user,
                            const Message& message, Clock::time_point now) {
  const Header& header = message.header();
  const auto hello = message.body<HelloBody>();
  if (!hello) return refuse(identity, hello.error(), true, &header);
  const HelloBody& body = hello.value();
  if (Status s = check_hello(identity, header, body, options_.limits); !s) {
    return refuse(identity, s.error(), true, &header);
  }
  if (!check_settings(identity, header, body)) return;
  if (!replace_session(identity, user, header)) return;
  if (sessions_.size() >= options_.max_workers) {
    return refuse(identity,
                  {Reason::kBusy, std::to_string(sessions_.size()) + " workers are in, limit " +
                                      std::to_string(options_.max_workers)},
                  false, &header);
  }
  Session& session = sessions_[identity];
  session.worker_id = header.worker_id;
  session.user = user;
  session.incarnation = header.incarnation;
  // More than that is never in flight, and would only distort the shares.
  session.capacity_samples = std::min(body.capacity_samples, options_.max_queued_rollouts);
  session.pending = body.pending;
  session.evaluates =
      options_.settings.held_out && body.settings.held_out == options_.settings.held_out;
  session.received_seq = header.seq;
  session.last_message = session.last_heartbeat = now;
  budget_.join(session.worker_id);
  welcome(session, body);
  if (ended_) queue(session, make_payload(MessageType::kEnd, EndBody{*ended_}));
}

// Ends the session that a worker has already, of which there is at most one. Returns false, with
// the HELLO refused, when it belongs to another key or is newer.
bool TrainerState::replace_session(const std::string& identity, const std::string& user,
                                   const Header& header) {
  const auto it = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& item) {
    return item.second.worker_id == header.worker_id;
  });
  if (it == sessions_.end()) return true;
  const Session& session = it->second;
  if (session.state == SessionState::kBye) {  // it has left; only the answer was not sent
    sessions_.erase(it);
    return true;
  }
  if (session.user != user) {
    event(header.worker_id, "HELLO for worker " + header.worker_id + " with key '" +
                                key_name(user) + "' refused: its session is of key '" +
                                key_name(session.user) + "'");
    refuse(identity, {Reason::kDenied, "the session belongs to another key"}, true, &header);
    return false;
  }
  if (session.incarnation >= header.incarnation && it->first != identity) {
    refuse(identity,
           {Reason::kFenced, "incarnation " + std::to_string(header.incarnation) + " of worker " +
                                 header.worker_id + ", " + std::to_string(session.incarnation) +
                                 " is in"},
           true, &header);
    return false;
  }
  lose(it->first, "replaced by incarnation " + std::to_string(header.incarnation));
  return true;
}

// Answers HELLO: WELCOME, and an offer unless the worker has the newest weights.
void TrainerState::welcome(Session& session, const HelloBody& body) {
  // At least 1, which admits one rollout at a time: a client may not know the meaning of 0.
  const int64_t window = std::max<int64_t>(1, budget_.raise(session.worker_id));
  // A worker with nothing to send gets its promise with its first grant.
  if (body.pending == 0) budget_.release(session.worker_id);
  queue(session, make_payload(MessageType::kWelcome,
                              WelcomeBody{weights_address_,
                                          published_.version(),
                                          published_.root_hash(),
                                          options_.heartbeat_interval.count(),
                                          options_.worker_timeout.count(),
                                          window,
                                          static_cast<int64_t>(options_.limits.max_chunk_bytes),
                                          {options_.settings}}));
  const bool known = body.installed_term == options_.trainer_term &&
                     published_.contains(body.installed_version, body.installed_root);
  if (known) {
    session.installed_version = body.installed_version;
    session.state = SessionState::kSync;
  }
  if (session.installed_version != published_.version()) offer(session);
  event(session.worker_id,
        "worker " + session.worker_id + " joined" +
            (known ? " at version " + std::to_string(session.installed_version) : "") +
            (session.user.empty() ? "" : " with key '" + key_name(session.user) + "'"));
}

// Refuses a worker whose settings would make training wrong; reports other differences.
bool TrainerState::check_settings(const std::string& identity, const Header& header,
                                  const HelloBody& body) {
  const SettingsComparison found = compare_settings(options_.settings, body.settings);
  const std::string worker = "worker " + header.worker_id;
  if (!found.fatal.empty()) {
    std::string all;
    for (const std::string& one : found.fatal) all.append(all.empty() ? "" : "; ").append(one);
    event(header.worker_id, worker + " refused: " + all);
    refuse(identity, {Reason::kSettings, all}, true, &header);
    return false;
  }
  for (const std::string& one : found.warnings) {
    event(header.worker_id, worker + ": " + one + "; its rollouts are accepted");
  }
  return true;
}

void TrainerState::malformed(const Session& session, const Error& error) {
  ++counters_.rejected[static_cast<std::size_t>(error.reason)];
  event(session.worker_id, "message of worker " + session.worker_id + " refused: " + error.detail);
}

void TrainerState::on_ready(Session& session, const Message& message) {
  const auto body = message.body<ReadyBody>();
  if (!body) return malformed(session, body.error());
  const int64_t version = body.value().version;
  if (version < 0 || version != session.installed_version) return;
  if (session.state == SessionState::kSync || session.state == SessionState::kPaused) {
    session.state = SessionState::kReady;
  }
  if (session.state == SessionState::kReady && version >= session.offered_version) {
    session.behind_since.reset();
    session.has_share = true;
  }
}

void TrainerState::on_heartbeat(const std::string& identity, Session& session,
                                const Message& message, Clock::time_point now) {
  const auto parsed = message.body<HeartbeatBody>();
  if (!parsed) return refuse(identity, parsed.error(), false, &message.header());
  const HeartbeatBody& body = parsed.value();
  session.queue_depth = body.queue_depth;
  session.pending = body.pending;
  release_unnamed(session);
  if (is_idle(session)) budget_.release(session.worker_id);
  if (body.state == session_state_name(SessionState::kPaused)) {
    if (!session.paused_since) session.paused_since = now;
    if (session.state == SessionState::kReady) session.state = SessionState::kPaused;
    return;  // tick() limits the length of the pause
  }
  session.paused_since.reset();
  if (session.state == SessionState::kPaused) session.state = SessionState::kReady;
  if (body.progress_age_ms > options_.progress_timeout.count()) {
    refuse(identity, {Reason::kTimeout, "no progress"}, false, &message.header());
    lose(identity,
         "its own code was silent for " + std::to_string(body.progress_age_ms / 1000) + " s");
  }
}

void TrainerState::on_staged(Session& session, const Message& message) {
  const auto parsed = message.body<StagedBody>();
  if (!parsed) return malformed(session, parsed.error());
  const StagedBody& body = parsed.value();
  if (!published_.contains(body.version, body.root_hash)) {
    return sync_failed(session, "staged: " + published_.why_not(body.version, body.root_hash));
  }
  if (body.encoding == "overwrite") ++counters_.delta_staged;
  if (body.encoding == "shared") ++counters_.shared_staged;
  if (body.refetched > 0) {
    counters_.delta_refetched += static_cast<uint64_t>(body.refetched);
    event(session.worker_id, "worker " + session.worker_id + " fetched " +
                                 std::to_string(body.refetched) + " tensors of version " +
                                 std::to_string(body.version) +
                                 " dense: applying their delta gave a wrong hash");
  }
  queue(session, make_payload(MessageType::kCommit, WeightsBody{body.version, body.root_hash}));
}

void TrainerState::on_stage_failed(Session& session, const Message& message) {
  const auto body = message.body<StageFailedBody>();
  if (!body) return malformed(session, body.error());
  if (published_.empty() || body.value().version != published_.version()) return;
  // The old weights are intact and in use, so the worker keeps working at its version.
  ++session.failed_syncs;
  session.failed_version = body.value().version;
  ++counters_.rejected[static_cast<std::size_t>(Reason::kChecksum)];
  event(session.worker_id, "worker " + session.worker_id + " could not stage version " +
                               std::to_string(body.value().version) + ": " + body.value().detail);
  offer(session);
}

void TrainerState::on_committed(Session& session, const Message& message) {
  const auto body = message.body<WeightsBody>();
  if (!body) return malformed(session, body.error());
  // The version may be older than the newest; min_version decides whether it is recent enough.
  if (!published_.contains(body.value().version, body.value().root_hash)) {
    return sync_failed(
        session, "installed: " + published_.why_not(body.value().version, body.value().root_hash));
  }
  note_installed(session, body.value().version);
  session.failed_syncs = 0;
  session.state = SessionState::kSync;
  event(session.worker_id,
        "worker " + session.worker_id + " committed version " +
            std::to_string(session.installed_version),
        EventKind::kRoutine);
}

void TrainerState::sync_failed(Session& session, const std::string& why) {
  session.state = SessionState::kQuarantined;
  session.installed_version = session.offered_version = -1;
  ++session.failed_syncs;
  ++counters_.rejected[static_cast<std::size_t>(Reason::kChecksum)];
  event(session.worker_id, "worker " + session.worker_id + " quarantined: " + why);
  offer(session);
}

void TrainerState::on_bye(Session& session, const Message& message) {
  const auto body = message.body<EndBody>();
  const Holding held = ledger_.work().leave(session.worker_id);
  budget_.leave(session.worker_id);
  ++counters_.left_workers;
  event(session.worker_id,
        "worker " + session.worker_id + " left" +
            (body && !body.value().reason.empty() ? ": " + body.value().reason : "") + "; " +
            std::to_string(held.samples) + " samples of " + std::to_string(held.groups) +
            " groups are reassigned");
  session.state = SessionState::kBye;
  Payload payload = make_payload(MessageType::kBye, EndBody{""});
  const Header header = header_for(session.worker_id, session.incarnation, 0);
  std::string packed = pack_header(header, payload, options_.limits);
  session.outbox.push_back({std::move(packed), std::move(payload)});
}

}  // namespace ringside::bridge
