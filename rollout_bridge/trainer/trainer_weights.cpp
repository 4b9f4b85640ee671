// Offers of published weights to the sessions of TrainerState.
#include <algorithm>

#include "rollout_bridge/trainer/trainer_state.h"

namespace ringside::bridge {

void TrainerState::publish(std::shared_ptr<const WeightSnapshot> snapshot, OfferBody where) {
  published_.publish(std::move(snapshot), std::move(where));
  for (auto& [identity, session] : sessions_) {
    session.failed_syncs = 0;  // new weights reset the count of failures
    offer(session);
  }
}

void TrainerState::offer(Session& session) {
  if (published_.empty() || session.failed_syncs >= kMaxFailedSyncs ||
      session.state == SessionState::kBye) {
    return;
  }
  // Changes go to workers that have their base or are staging it.
  const bool changes = session.failed_version != published_.version() &&
                       (published_.has_changes_from(session.installed_version) ||
                        published_.has_changes_from(session.offered_version));
  Payload payload = published_.offer(changes);
  if (changes) counters_.weight_bytes += published_.payload_bytes();
  session.offered_version = published_.version();
  if (!session.behind_since) session.behind_since = now_;
  queue(session, std::move(payload));
  if (session.state == SessionState::kJoin) session.state = SessionState::kSync;
}

// The worker has installed newer weights. READY is missing now, or still newer weights.
void TrainerState::note_installed(Session& session, int64_t version) {
  if (version > session.installed_version) {
    if (session.behind_since) {
      longest_install_ = std::max(longest_install_, now_ - *session.behind_since);
    }
    session.behind_since = now_;
    session.has_share = true;
  }
  session.installed_version = version;
}

std::chrono::milliseconds TrainerState::install_patience() const {
  const auto usual = std::chrono::duration_cast<std::chrono::milliseconds>(3 * longest_install_);
  return std::clamp(usual, kLeastInstallPatience,
                    std::max(kLeastInstallPatience, options_.assignment_timeout));
}

std::size_t TrainerState::committed_workers(int64_t version) const {
  return static_cast<std::size_t>(
      std::count_if(sessions_.begin(), sessions_.end(), [&](const auto& item) {
        const Session& session = item.second;
        return session.state != SessionState::kBye && session.installed_version >= version;
      }));
}

}  // namespace ringside::bridge
