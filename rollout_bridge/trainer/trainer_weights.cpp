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
  queue(session, std::move(payload));
  if (session.state == SessionState::kJoin) session.state = SessionState::kSync;
}

std::size_t TrainerState::committed_workers(int64_t version) const {
  return static_cast<std::size_t>(
      std::count_if(sessions_.begin(), sessions_.end(), [&](const auto& item) {
        const Session& session = item.second;
        return session.state != SessionState::kBye && session.installed_version >= version;
      }));
}

}  // namespace ringside::bridge
