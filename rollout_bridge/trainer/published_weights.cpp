#include "rollout_bridge/trainer/published_weights.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include "rollout_bridge/weights/manifest_codec.h"

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

// The payloads of a delta one after another; empty when they are too long to send with the offer.
Buffer joined_payloads(const WeightDelta& delta) {
  uint64_t total = 0;
  for (const Buffer& payload : delta.payloads) {
    total += payload.bytes.size();
  }
  if (total > kMaxOfferedBytes) {
    return {};
  }
  std::vector<std::byte> joined;
  joined.reserve(total);
  for (const Buffer& payload : delta.payloads) {
    joined.insert(joined.end(), payload.bytes.begin(), payload.bytes.end());
  }
  return Buffer::own(std::move(joined));
}

void add_bytes(Payload& payload, const char* name, const Buffer& buffer) {
  payload.add(name, "U8", {static_cast<int64_t>(buffer.bytes.size())}, buffer);
}

}  // namespace

PublishedWeights::PublishedWeights(std::string run_id, int64_t trainer_term, const Limits& limits)
    : run_id_(std::move(run_id)), trainer_term_(trainer_term), limits_(limits) {}

void PublishedWeights::publish(std::shared_ptr<const WeightSnapshot> snapshot, OfferBody where) {
  const Manifest& m = snapshot->manifest;
  if (m.run_id != run_id_ || m.trainer_term != trainer_term_) {
    throw std::invalid_argument("publish: snapshot of run '" + m.run_id + "' trainer_term " +
                                std::to_string(m.trainer_term) + ", endpoint serves '" + run_id_ +
                                "' trainer_term " + std::to_string(trainer_term_));
  }
  if (newest_ && m.version <= version()) {
    throw std::invalid_argument("publish: version " + std::to_string(m.version) +
                                " does not rise above " + std::to_string(version()));
  }
  if (m.encoding != "dense") {
    throw std::invalid_argument("publish: the manifest is not dense");
  }
  // The delta's manifest contains all of the dense one, so only one is validated.
  const WeightDelta* delta = snapshot->delta.get();
  if (delta && dense_manifest(delta->manifest) != m) {
    throw std::invalid_argument("publish: the delta makes another version or other tensors");
  }
  if (Status s = validate(delta ? delta->manifest : m, limits_); !s) {
    throw std::invalid_argument(s.error().detail);
  }
  Buffer dense = packed_manifest(m, limits_);
  Buffer changes = delta ? packed_manifest(delta->manifest, limits_) : Buffer{};
  manifest_ = std::move(dense);
  delta_manifest_ = std::move(changes);
  payloads_ = delta ? joined_payloads(*delta) : Buffer{};
  offer_ = std::move(where);
  offer_.version = m.version;
  offer_.root_hash = m.root_hash;
  newest_ = std::move(snapshot);
  roots_[version()] = root_hash();
}

bool PublishedWeights::contains(int64_t version, const std::string& root_hash) const {
  const auto it = roots_.find(version);
  return it != roots_.end() && it->second == root_hash;
}

std::string PublishedWeights::why_not(int64_t version, const std::string& root_hash) const {
  const auto it = roots_.find(version);
  if (it == roots_.end()) {
    return "version " + std::to_string(version) + " was never published";
  }
  return "version " + std::to_string(version) + " was published with root " + it->second +
         ", not " + root_hash;
}

bool PublishedWeights::has_changes_from(int64_t version) const {
  return newest_ && newest_->delta && newest_->delta->manifest.base_version == version;
}

Payload PublishedWeights::offer(bool changes) const {
  Payload payload = make_payload(MessageType::kWeightsOffer, offer_);
  add_bytes(payload, "manifest", changes ? delta_manifest_ : manifest_);
  if (changes && !payloads_.bytes.empty()) {
    add_bytes(payload, "payloads", payloads_);
  }
  return payload;
}

}  // namespace ringside::bridge
