// Versions of weights that this trainer term has published, and the offer of the newest.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/protocol/wire.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::bridge {

class PublishedWeights {
 public:
  // Of one trainer term. Nothing is published yet.
  PublishedWeights(std::string run_id, int64_t trainer_term, const Limits& limits);

  // Makes this snapshot the newest. `where`: what the transports say about the place of its bytes.
  // Throws: std::invalid_argument for a snapshot of another run or term, one that breaks
  // validate(), one whose version does not rise, a manifest that is not dense or is longer than its
  // limit, or a delta of other tensors.
  void publish(std::shared_ptr<const WeightSnapshot> snapshot, OfferBody where);

  bool empty() const { return newest_ == nullptr; }
  int64_t version() const { return newest_ ? newest_->manifest.version : -1; }
  std::string root_hash() const { return newest_ ? newest_->manifest.root_hash : ""; }

  // Whether this term published the version; with that content.
  bool contains(int64_t version) const { return roots_.contains(version); }
  bool contains(int64_t version, const std::string& root_hash) const;
  // Why contains(version, root_hash) is false.
  std::string why_not(int64_t version, const std::string& root_hash) const;

  // True when the newest version has a delta to this version.
  bool has_changes_from(int64_t version) const;
  // The WEIGHTS_OFFER of the newest version, as changes or dense. A worker that turns out not to
  // have the base of the changes fetches the version dense, with the same manifest.
  Payload offer(bool changes) const;
  // Bytes of payloads in an offer of changes.
  uint64_t payload_bytes() const { return payloads_.bytes.size(); }

 private:
  std::string run_id_;
  int64_t trainer_term_;
  Limits limits_;
  std::shared_ptr<const WeightSnapshot> newest_;
  OfferBody offer_;
  Buffer manifest_;
  Buffer delta_manifest_;  // empty without a delta
  Buffer payloads_;        // the delta's payloads, when few enough to send with the offer
  std::map<int64_t, std::string> roots_;  // root hash of each version; 100 bytes each
};

}  // namespace ringside::bridge
