#include "rollout_bridge/trainer/weight_desk.h"

#include <algorithm>
#include <utility>

namespace ringside::bridge {

void WeightDesk::publish(std::shared_ptr<const WeightSnapshot> snapshot, OfferBody where) {
  parts_.published.publish(std::move(snapshot), std::move(where));
  for (auto& [identity, session] : sessions_.all()) {
    session.failed_syncs = 0;  // new weights reset the count of failures
    offer(session);
  }
}

bool WeightDesk::join(Session& session, const HelloBody& body) {
  const bool known = body.installed_term == parts_.options.trainer_term &&
                     parts_.published.contains(body.installed_version, body.installed_root);
  if (known) {
    session.installed_version = body.installed_version;
    session.state = SessionState::kSync;
  }
  if (session.installed_version != parts_.published.version()) {
    offer(session);
  }
  return known;
}

void WeightDesk::offer(Session& session) {
  PublishedWeights& published = parts_.published;
  if (published.empty() || session.failed_syncs >= kMaxFailedSyncs ||
      session.state == SessionState::kBye) {
    return;
  }
  // Changes go to workers that have their base or are staging it.
  const bool changes = session.failed_version != published.version() &&
                       (published.has_changes_from(session.installed_version) ||
                        published.has_changes_from(session.offered_version));
  Payload payload = published.offer(changes);
  if (changes) {
    parts_.counters.weight_bytes += published.payload_bytes();
  }
  session.offered_version = published.version();
  if (!session.behind_since) {
    session.behind_since = parts_.now;
  }
  sessions_.queue(session, std::move(payload));
  if (session.state == SessionState::kJoin) {
    session.state = SessionState::kSync;
  }
}

void WeightDesk::malformed(const Session& session, const Error& error) {
  parts_.count(error.reason);
  parts_.events.add(session.worker_id,
                    "message of worker " + session.worker_id + " refused: " + error.detail);
}

void WeightDesk::on_ready(Session& session, const Message& message) {
  const auto body = message.body<ReadyBody>();
  if (!body) {
    return malformed(session, body.error());
  }
  const int64_t version = body.value().version;
  if (version < 0 || version != session.installed_version) {
    return;
  }
  if (session.state == SessionState::kSync || session.state == SessionState::kPaused) {
    session.state = SessionState::kReady;
  }
  if (session.state == SessionState::kReady && version >= session.offered_version) {
    session.behind_since.reset();
    session.has_share = true;
  }
}

void WeightDesk::on_staged(Session& session, const Message& message) {
  const auto parsed = message.body<StagedBody>();
  if (!parsed) {
    return malformed(session, parsed.error());
  }
  const StagedBody& body = parsed.value();
  if (!parts_.published.contains(body.version, body.root_hash)) {
    return sync_failed(session,
                       "staged: " + parts_.published.why_not(body.version, body.root_hash));
  }
  if (body.encoding == "overwrite") {
    ++parts_.counters.delta_staged;
  }
  if (body.encoding == "shared") {
    ++parts_.counters.shared_staged;
  }
  if (body.refetched > 0) {
    parts_.counters.delta_refetched += static_cast<uint64_t>(body.refetched);
    parts_.events.add(session.worker_id, "worker " + session.worker_id + " fetched " +
                                             std::to_string(body.refetched) +
                                             " tensors of version " + std::to_string(body.version) +
                                             " dense: applying their delta gave a wrong hash");
  }
  sessions_.queue(session,
                  make_payload(MessageType::kCommit, WeightsBody{body.version, body.root_hash}));
}

void WeightDesk::on_stage_failed(Session& session, const Message& message) {
  const auto body = message.body<StageFailedBody>();
  if (!body) {
    return malformed(session, body.error());
  }
  if (parts_.published.empty() || body.value().version != parts_.published.version()) {
    return;
  }
  // The old weights are intact and in use, so the worker keeps working at its version.
  ++session.failed_syncs;
  session.failed_version = body.value().version;
  parts_.count(Reason::kChecksum);
  parts_.events.add(session.worker_id, "worker " + session.worker_id + " could not stage version " +
                                           std::to_string(body.value().version) + ": " +
                                           body.value().detail);
  offer(session);
}

void WeightDesk::on_committed(Session& session, const Message& message) {
  const auto body = message.body<WeightsBody>();
  if (!body) {
    return malformed(session, body.error());
  }
  // The version may be older than the newest; min_version decides whether it is recent enough.
  const auto& [version, root_hash] = body.value();
  if (!parts_.published.contains(version, root_hash)) {
    return sync_failed(session, "installed: " + parts_.published.why_not(version, root_hash));
  }
  record_installed(session, version);
  session.failed_syncs = 0;
  session.state = SessionState::kSync;
  parts_.events.add(session.worker_id,
                    "worker " + session.worker_id + " committed version " + std::to_string(version),
                    EventKind::kRoutine);
}

// The worker has installed newer weights. READY is missing now, or still newer weights.
void WeightDesk::record_installed(Session& session, int64_t version) {
  if (version > session.installed_version) {
    if (session.behind_since) {
      longest_install_ = std::max(longest_install_, parts_.now - *session.behind_since);
    }
    session.behind_since = parts_.now;
    session.has_share = true;
  }
  session.installed_version = version;
}

void WeightDesk::sync_failed(Session& session, const std::string& why) {
  session.state = SessionState::kQuarantined;
  session.installed_version = session.offered_version = -1;
  ++session.failed_syncs;
  parts_.count(Reason::kChecksum);
  parts_.events.add(session.worker_id, "worker " + session.worker_id + " quarantined: " + why);
  offer(session);
}

Clock::duration WeightDesk::install_patience() const {
  const Clock::duration least = kLeastInstallPatience;
  return std::clamp(3 * longest_install_, least,
                    std::max<Clock::duration>(least, parts_.options.assignment_timeout));
}

bool WeightDesk::keeps_share(Session& session) {
  if (!session.behind_since) {
    return true;
  }
  const auto behind = parts_.now - *session.behind_since;
  if (behind <= install_patience()) {
    return true;
  }
  if (std::exchange(session.has_share, false)) {
    parts_.events.add(session.worker_id,
                      "worker " + session.worker_id +
                          " has not installed the weights that it was offered " + seconds(behind) +
                          " ago: its share of the work goes to the others until it has");
  }
  return false;
}

}  // namespace ringside::bridge
