#include "rollout_bridge/weights/shared_transport.h"

namespace ringside::bridge {

void SharedSender::describe(const WeightSnapshot& snapshot, OfferBody& offer) const {
  if (!snapshot.shared) {
    return;
  }
  SharedPlace place = snapshot.shared->place();
  offer.shared = {std::move(place.host), place.pid, place.fd, place.bytes};
}

bool SharedFetcher::begin(const WeightSession&, const OfferBody& where, const Manifest& manifest) {
  view_.reset();
  const SharedBody& from = where.shared;
  if (from.host.empty() || manifest.tensors.empty()) {
    return false;
  }
  auto view = views_.open({from.host, from.pid, from.fd, from.bytes});
  const TensorEntry& last = manifest.tensors.back();
  if (!view || last.offset + last.bytes > from.bytes) {
    return false;
  }
  view_ = std::move(view).value();
  return true;
}

Result<FetchState> SharedFetcher::fetch(WeightReceiver& receiver,
                                        WeightReceiver::Clock::time_point now) {
  for (const ChunkBody& chunk : receiver.requests(now)) {
    const uint64_t at = receiver.manifest().tensors[chunk.tensor].offset + chunk.offset;
    if (Status s = receiver.accept(chunk, view_->bytes().subspan(at, chunk.bytes)); !s) {
      return s.error();
    }
  }
  return receiver.mismatches() > 0 ? FetchState::kUnusable : FetchState::kMoved;
}

void SharedFetcher::close() {
  view_.reset();
  views_.clear();
}

}  // namespace ringside::bridge
