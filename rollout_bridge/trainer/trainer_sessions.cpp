#include "rollout_bridge/trainer/trainer_sessions.h"

#include <algorithm>
#include <bit>

namespace ringside::bridge {
namespace {

constexpr std::size_t kMaxOutbox = 1024;  // most messages queued for a slow worker
constexpr std::size_t kMaxStrays = 256;

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

std::string seconds(Clock::duration span) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(span).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

const char* session_state_name(SessionState state) {
  constexpr const char* kNames[] = {"join", "sync", "ready", "paused", "quarantined", "bye"};
  return kNames[static_cast<std::size_t>(state)];
}

TrainerSessions::TrainerSessions(TrainerParts& parts, Release release)
    : parts_(parts), release_(std::move(release)) {}

Session* TrainerSessions::find(const std::string& identity) {
  const auto it = sessions_.find(identity);
  return it == sessions_.end() ? nullptr : &it->second;
}

Session* TrainerSessions::of_worker(const std::string& worker_id) {
  const auto it = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& item) {
    return item.second.worker_id == worker_id && item.second.state != SessionState::kBye;
  });
  return it == sessions_.end() ? nullptr : &it->second;
}

bool TrainerSessions::any_but(const Session& except,
                              const std::function<bool(const Session&)>& holds) const {
  return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& item) {
    return &item.second != &except && holds(item.second);
  });
}

Session* TrainerSessions::open(const std::string& identity, const std::string& user,
                               const Header& header, const HelloBody& body) {
  const TrainerOptions& options = parts_.options;
  if (Status s = check_hello(identity, header, body, options.limits); !s) {
    refuse(identity, s.error(), true, &header);
    return nullptr;
  }
  if (!check_settings(identity, header, body) || !replace(identity, user, header)) {
    return nullptr;
  }
  if (sessions_.size() >= options.max_workers) {
    refuse(identity,
           {Reason::kBusy, std::to_string(sessions_.size()) + " workers are in, limit " +
                               std::to_string(options.max_workers)},
           false, &header);
    return nullptr;
  }
  Session& session = sessions_[identity];
  session.worker_id = header.worker_id;
  session.user = user;
  session.incarnation = header.incarnation;
  // More than that is never in flight, and would only distort the shares.
  session.capacity_samples = std::min(body.capacity_samples, options.max_queued_rollouts);
  session.pending = body.pending;
  session.evaluates =
      options.settings.held_out && body.settings.held_out == options.settings.held_out;
  session.received_seq = header.seq;
  session.last_message = session.last_heartbeat = parts_.now;
  return &session;
}

// Ends the session that a worker has already, of which there is at most one. Returns false, with
// the HELLO refused, when it belongs to another key or is newer.
bool TrainerSessions::replace(const std::string& identity, const std::string& user,
                              const Header& header) {
  const auto it = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& item) {
    return item.second.worker_id == header.worker_id;
  });
  if (it == sessions_.end()) {
    return true;
  }
  const Session& session = it->second;
  if (session.state == SessionState::kBye) {  // it has left; only the answer was not sent
    sessions_.erase(it);
    return true;
  }
  if (session.user != user) {
    parts_.events.add(header.worker_id, "HELLO for worker " + header.worker_id + " with key '" +
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

// Refuses a worker whose settings would make training wrong; reports other differences.
bool TrainerSessions::check_settings(const std::string& identity, const Header& header,
                                     const HelloBody& body) {
  const SettingsComparison found = compare_settings(parts_.options.settings, body.settings);
  const std::string worker = "worker " + header.worker_id;
  if (!found.fatal.empty()) {
    std::string all;
    for (const std::string& one : found.fatal) {
      all.append(all.empty() ? "" : "; ").append(one);
    }
    parts_.events.add(header.worker_id, worker + " refused: " + all);
    refuse(identity, {Reason::kSettings, all}, true, &header);
    return false;
  }
  for (const std::string& one : found.warnings) {
    parts_.events.add(header.worker_id, worker + ": " + one + "; its rollouts are accepted");
  }
  return true;
}

Session* TrainerSessions::receive(const std::string& identity, const std::string& user,
                                  const Header& header) {
  Session* session = find(identity);
  if (session == nullptr) {
    refuse(identity, {Reason::kUnknownSession, "say HELLO first"}, false, &header);
    return nullptr;
  }
  if (session->user != user) {
    refuse(identity, {Reason::kDenied, "the session belongs to another key"}, true, &header);
    return nullptr;
  }
  if (header.worker_id != session->worker_id || header.incarnation != session->incarnation) {
    const Error other{Reason::kInvalidField, "message of worker " +
                                                 identity_of(header.worker_id, header.incarnation) +
                                                 " in the session of worker " + identity};
    refuse(identity, other, true, &header);
    lose(identity, other.detail);
    return nullptr;
  }
  if (header.seq != session->received_seq + 1) {
    const Error gap{Reason::kSequenceGap, "received seq " + std::to_string(header.seq) +
                                              ", expected " +
                                              std::to_string(session->received_seq + 1)};
    refuse(identity, gap, false, &header);
    lose(identity, gap.detail);
    return nullptr;
  }
  session->received_seq = header.seq;
  session->last_message = parts_.now;
  return session;
}

void TrainerSessions::lose(const std::string& identity, const std::string& why) {
  const auto it = sessions_.find(identity);
  if (it == sessions_.end()) {
    return;
  }
  const Session& session = it->second;
  if (session.state != SessionState::kBye) {
    const Holding held = release_(session);
    parts_.events.add(session.worker_id, "worker " + session.worker_id + " lost: " + why + "; " +
                                             std::to_string(held.samples) + " samples of " +
                                             std::to_string(held.groups) +
                                             " groups are reassigned");
    ++parts_.counters.lost_workers;
  }
  sessions_.erase(it);
}

void TrainerSessions::leave(Session& session, const std::string& reason) {
  const Holding held = release_(session);
  ++parts_.counters.left_workers;
  parts_.events.add(session.worker_id, "worker " + session.worker_id + " left" +
                                           (reason.empty() ? "" : ": " + reason) + "; " +
                                           std::to_string(held.samples) + " samples of " +
                                           std::to_string(held.groups) + " groups are reassigned");
  session.state = SessionState::kBye;
  Payload payload = make_payload(MessageType::kBye, EndBody{""});
  const Header header = header_for(session.worker_id, session.incarnation, 0);
  std::string packed = pack_header(header, payload, parts_.options.limits);
  session.outbox.push_back({std::move(packed), std::move(payload)});
}

// "" while the session goes on.
std::string TrainerSessions::why_lost(const Session& session) const {
  const TrainerOptions& options = parts_.options;
  const auto silent = parts_.now - session.last_message;
  if (silent > options.worker_timeout) {
    return "no message for " + seconds(silent);
  }
  if (session.paused_since && parts_.now - *session.paused_since > options.pause_timeout) {
    return "paused for more than " + seconds(options.pause_timeout);
  }
  if (session.outbox.size() > kMaxOutbox) {
    return "takes no messages, " + std::to_string(session.outbox.size()) + " wait";
  }
  return "";
}

void TrainerSessions::tick() {
  std::vector<std::pair<std::string, std::string>> lost;
  for (auto& [identity, session] : sessions_) {
    if (std::string why = why_lost(session); !why.empty()) {
      lost.emplace_back(identity, std::move(why));
    } else if (session.state != SessionState::kBye &&
               parts_.now - session.last_heartbeat >= parts_.options.heartbeat_interval) {
      session.last_heartbeat = parts_.now;
      queue(session,
            make_payload(MessageType::kHeartbeat, HeartbeatBody{session_state_name(session.state),
                                                                parts_.published.version(), 0, 0}));
    }
  }
  for (const auto& [identity, why] : lost) {
    lose(identity, why);
  }
}

void TrainerSessions::sweep() {
  std::erase_if(sessions_, [](const auto& item) {
    return item.second.state == SessionState::kBye && item.second.outbox.empty();
  });
}

Header TrainerSessions::header_for(const std::string& worker_id, uint64_t incarnation,
                                   uint64_t seq) const {
  return {MessageType::kError, parts_.options.run_id, parts_.options.trainer_term,
          worker_id,           incarnation,           seq};
}

void TrainerSessions::queue(Session& session, Payload payload) {
  const Header header = header_for(session.worker_id, session.incarnation, ++session.sent_seq);
  std::string packed = pack_header(header, payload, parts_.options.limits);
  session.outbox.push_back({std::move(packed), std::move(payload)});
}

void TrainerSessions::refuse(const std::string& identity, const Error& error, bool fatal,
                             const Header* to) {
  parts_.count(error.reason);
  if (strays_.size() >= kMaxStrays) {
    return;
  }
  Payload payload =
      make_payload(MessageType::kError,
                   ErrorBody{reason_name(error.reason), clip_text(error.detail), fatal, -1});
  const Header header = to ? header_for(to->worker_id, to->incarnation, 0) : header_for("", 0, 0);
  std::string packed = pack_header(header, payload, parts_.options.limits);
  strays_.emplace_back(identity, Outgoing{std::move(packed), std::move(payload)});
}

void TrainerSessions::refuse_version(const std::string& identity, const Error& error) {
  ++other_versions_;
  if (std::has_single_bit(other_versions_)) {
    parts_.events.add("",
                      "worker with routing id '" + identity + "' refused: " + error.detail +
                          (other_versions_ > 1 ? " (message " + std::to_string(other_versions_) +
                                                     " of another protocol version)"
                                               : ""));
  }
  refuse(identity, error, true, nullptr);
}

bool TrainerSessions::has_output() const {
  return !strays_.empty() || std::any_of(sessions_.begin(), sessions_.end(), [](const auto& item) {
    return !item.second.outbox.empty();
  });
}

std::string TrainerSessions::key_name(const std::string& user) const {
  if (!parts_.options.curve) {
    return "";
  }
  for (const AllowedKey& allowed : parts_.options.curve->allowed) {
    if (allowed.public_key == user) {
      return allowed.name;
    }
  }
  return "";
}

}  // namespace ringside::bridge
