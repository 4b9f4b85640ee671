#include "rollout_bridge/worker/weight_transfer.h"

#include <algorithm>

namespace ringside::bridge {

WeightTransfer::WeightTransfer(WeightReceiver::Options options, Transports transports)
    : options_(options), transports_(std::move(transports)) {}

void WeightTransfer::join(WeightSession session) { session_ = std::move(session); }

void WeightTransfer::leave() {
  receiver_.reset();
  next_offer_.reset();
  staged_.reset();
  outcomes_.clear();
  for (const auto& transport : transports_) {
    transport->close();
  }
}

void WeightTransfer::offer(WeightOffer offer) {
  next_offer_ = std::move(offer);
  if (!receiver_) {
    start();
  }
}

bool WeightTransfer::advance(Clock::time_point now) {
  if (!is_busy() && next_offer_) {
    start();
  }
  if (!receiver_) {
    return false;
  }
  const int64_t version = receiver_->manifest().version;
  const auto state = transports_[transport_]->fetch(*receiver_, now);
  if (!state) {
    fail(version, state.error().detail);
    return is_fetching();
  }
  if (receiver_->complete()) {
    finish();
    return false;
  }
  if (state.value() == FetchState::kUnusable) {
    receiver_->unsend_all();
    if (!use_transport(transport_ + 1, receiver_->manifest())) {
      fail(version, "no transport can fetch the rest");
    }
  }
  return is_fetching() && state.value() != FetchState::kWaiting;
}

std::optional<TransferOutcome> WeightTransfer::next_outcome() {
  if (outcomes_.empty()) {
    return std::nullopt;
  }
  TransferOutcome outcome = std::move(outcomes_.front());
  outcomes_.pop_front();
  return outcome;
}

std::shared_ptr<const WeightSnapshot> WeightTransfer::commit(int64_t version,
                                                             const std::string& root_hash) {
  if (!staged_ || staged_->manifest.version != version ||
      staged_->manifest.root_hash != root_hash) {
    return nullptr;
  }
  return std::move(staged_);
}

void WeightTransfer::start() {
  WeightOffer offer = std::move(*next_offer_);
  next_offer_.reset();
  where_ = std::move(offer.where);
  const int64_t version = offer.manifest.version;
  if (!use_transport(0, offer.manifest)) {
    return fail(version, "no transport reaches the bytes");
  }
  WeightReceiver::Options options = options_;
  options.chunk_bytes = std::min(options.chunk_bytes, session_.chunk_bytes);
  options.changes = transports_[transport_]->prefers_changes();
  receiver_ = std::make_unique<WeightReceiver>(std::move(offer.manifest), options, base_, memory_);
  receiver_->apply_offered(offer.payloads);
  if (receiver_->complete()) {
    finish();
  }
}

// Takes the first transport from `first` on that reaches the version's bytes.
bool WeightTransfer::use_transport(std::size_t first, const Manifest& manifest) {
  for (transport_ = first; transport_ < transports_.size(); ++transport_) {
    if (transports_[transport_]->begin(session_, where_, manifest)) {
      return true;
    }
  }
  return false;
}

void WeightTransfer::finish() {
  StagedBody body;
  body.encoding = transports_[transport_]->encoding(receiver_->builds_on_base());
  body.refetched = static_cast<int64_t>(receiver_->refetched());
  base_ = staged_ = receiver_->take();
  body.version = staged_->manifest.version;
  body.root_hash = staged_->manifest.root_hash;
  outcomes_.emplace_back(std::move(body));
  receiver_.reset();
}

void WeightTransfer::fail(int64_t version, const std::string& why) {
  outcomes_.emplace_back(StageFailedBody{version, why});
  receiver_.reset();
  if (next_offer_) {
    start();
  }
}

}  // namespace ringside::bridge
