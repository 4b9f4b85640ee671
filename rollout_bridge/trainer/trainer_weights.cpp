// Published weights of TrainerState, and the form in which each worker is offered them.
#include <algorithm>
#include <stdexcept>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/trainer/trainer_state.h"
#include "rollout_bridge/weights/manifest_codec.h"
#include "rollout_bridge/weights/shared_block.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::bridge {
namespace {

// Largest overwrite payloads sent with their offer. They save a round trip and are too small to
// delay control messages.
constexpr uint64_t kMaxOfferedBytes = 256 * 1024;

// The encoded manifest.
// Throws: std::invalid_argument when it is too long.
Buffer packed_manifest(const Manifest& m, const Limits& limits) {
  std::vector<uint8_t> packed = encode_manifest(m);
  if (packed.size() > limits.max_manifest_bytes) {
    throw std::invalid_argument("publish: manifest of " + std::to_string(packed.size()) +
                                " bytes, limit " + std::to_string(limits.max_manifest_bytes));
  }
  return Buffer::own(std::move(packed));
}

SharedBody place_of(const SharedBlock& block) {
  SharedPlace place = block.place();
  return {std::move(place.host), place.pid, place.fd, place.bytes};
}

// The payloads of a delta one after another; empty when they are too long to send with the offer.
Buffer joined_payloads(const WeightDelta& delta) {
  uint64_t total = 0;
  for (const Buffer& payload : delta.payloads) total += payload.bytes.size();
  if (total > kMaxOfferedBytes) return {};
  std::vector<std::byte> joined;
  joined.reserve(total);
  for (const Buffer& payload : delta.payloads) {
    joined.insert(joined.end(), payload.bytes.begin(), payload.bytes.end());
  }
  return Buffer::own(std::move(joined));
}

}  // namespace

void TrainerState::publish(std::shared_ptr<const WeightSnapshot> snapshot) {
  const Manifest& m = snapshot->manifest;
  if (m.run_id != options_.run_id || m.trainer_term != options_.trainer_term) {
    throw std::invalid_argument("publish: snapshot of run '" + m.run_id + "' trainer_term " +
                                std::to_string(m.trainer_term) + ", endpoint serves '" +
                                options_.run_id + "' trainer_term " +
                                std::to_string(options_.trainer_term));
  }
  if (newest_ && m.version <= newest_->manifest.version) {
    throw std::invalid_argument("publish: version " + std::to_string(m.version) +
                                " does not rise above " +
                                std::to_string(newest_->manifest.version));
  }
  if (m.encoding != "dense") throw std::invalid_argument("publish: the manifest is not dense");
  // The delta's manifest contains all of the dense one, so only one is validated.
  const WeightDelta* delta = snapshot->delta.get();
  if (delta && dense_manifest(delta->manifest) != m) {
    throw std::invalid_argument("publish: the delta makes another version or other tensors");
  }
  if (Status s = validate(delta ? delta->manifest : m, options_.limits); !s) {
    throw std::invalid_argument(s.error().detail);
  }
  Buffer dense = packed_manifest(m, options_.limits);
  Buffer changes = delta ? packed_manifest(delta->manifest, options_.limits) : Buffer{};
  newest_manifest_ = std::move(dense);
  newest_delta_manifest_ = std::move(changes);
  newest_place_ = snapshot->shared ? place_of(*snapshot->shared) : SharedBody{};
  newest_payloads_ = delta ? joined_payloads(*delta) : Buffer{};
  newest_ = std::move(snapshot);
  roots_[newest_->manifest.version] = newest_->manifest.root_hash;
  for (auto& [identity, session] : sessions_) {
    session.failed_syncs = 0;  // new weights reset the count of failures
    offer(session);
  }
}

void TrainerState::offer(Session& session) {
  if (!newest_ || session.failed_syncs >= kMaxFailedSyncs || session.state == SessionState::kBye) {
    return;
  }
  const Manifest& m = newest_->manifest;
  Payload payload =
      make_payload(MessageType::kWeightsOffer, OfferBody{m.version, m.root_hash, newest_place_});
  // The delta goes to workers that have its base or are staging it. A worker that turns out not to
  // have the base fetches this version dense, with the same manifest.
  const WeightDelta* delta = newest_->delta.get();
  const bool changes = delta && session.failed_version != m.version &&
                       (session.installed_version == delta->manifest.base_version ||
                        session.offered_version == delta->manifest.base_version);
  const Buffer& manifest = changes ? newest_delta_manifest_ : newest_manifest_;
  payload.add("manifest", "U8", {static_cast<int64_t>(manifest.bytes.size())}, manifest);
  if (changes && !newest_payloads_.bytes.empty()) {
    payload.add("payloads", "U8", {static_cast<int64_t>(newest_payloads_.bytes.size())},
                newest_payloads_);
    counters_.weight_bytes += newest_payloads_.bytes.size();
  }
  session.offered_version = m.version;
  queue(session, std::move(payload));
  if (session.state == SessionState::kJoin) session.state = SessionState::kSync;
}

bool TrainerState::is_published(int64_t version, const std::string& root_hash) const {
  const auto it = roots_.find(version);
  return it != roots_.end() && it->second == root_hash;
}

// The reason why is_published() is false.
std::string TrainerState::unpublished(int64_t version, const std::string& root_hash) const {
  const auto it = roots_.find(version);
  if (it == roots_.end()) return "version " + std::to_string(version) + " was never published";
  return "version " + std::to_string(version) + " was published with root " + it->second +
         ", not " + root_hash;
}

std::size_t TrainerState::committed_workers(int64_t version) const {
  return static_cast<std::size_t>(
      std::count_if(sessions_.begin(), sessions_.end(),
                    [&](const auto& item) { return item.second.installed_version >= version; }));
}

}  // namespace ringside::bridge
