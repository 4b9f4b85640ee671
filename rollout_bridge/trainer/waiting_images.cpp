#include "rollout_bridge/trainer/waiting_images.h"

#include <iterator>
#include <stdexcept>
#include <utility>

namespace ringside::bridge {

WaitingImages::WaitingImages(const ImageBounds& bounds) : bounds_(bounds) {
  if (bounds.worker_images < 1 || bounds.worker_bytes < 1 ||
      bounds.total_bytes < bounds.worker_bytes) {
    throw std::invalid_argument("ImageBounds: worker_images " +
                                std::to_string(bounds.worker_images) + ", worker_bytes " +
                                std::to_string(bounds.worker_bytes) + ", total_bytes " +
                                std::to_string(bounds.total_bytes) +
                                "; expected at least 1, and a total of at least a worker's");
  }
}

void WaitingImages::add(const std::string& worker, const std::string& hash, FlatImage message,
                        Clock::time_point now) {
  if (use(hash)) {
    return;
  }
  auto kept = std::make_shared<const FlatImage>(std::move(message));
  Sum& sum = sum_of_[worker];
  ++sum.images;
  sum.bytes += kept->size();
  bytes_ += kept->size();
  images_.push_front({worker, hash, std::move(kept), now});
  place_of_[hash] = images_.begin();
  const auto is_own = [&](const Waiting& image) { return image.worker == worker; };
  while ((sum.images > bounds_.worker_images || sum.bytes > bounds_.worker_bytes) &&
         drop_oldest(is_own)) {
  }
  const auto has_waited = [&](const Waiting& image) {
    return !is_own(image) && now - image.since >= kKeptFromOthers;
  };
  while (bytes_ > bounds_.total_bytes && drop_oldest(has_waited)) {
  }
  if (bytes_ > bounds_.total_bytes && images_.size() > 1) {
    drop(images_.begin());
    ++dropped_;
  }
}

WaitingImages::Message WaitingImages::use(const std::string& hash) {
  const auto found = place_of_.find(hash);
  if (found == place_of_.end()) {
    return nullptr;
  }
  images_.splice(images_.begin(), images_, found->second);
  return found->second->message;
}

void WaitingImages::remove(const std::string& hash) {
  if (const auto found = place_of_.find(hash); found != place_of_.end()) {
    drop(found->second);
  }
}

void WaitingImages::drop(Place place) {
  const auto sum = sum_of_.find(place->worker);
  sum->second.bytes -= place->message->size();
  if (--sum->second.images == 0) {
    sum_of_.erase(sum);
  }
  bytes_ -= place->message->size();
  place_of_.erase(place->hash);
  images_.erase(place);
}

bool WaitingImages::drop_oldest(const std::function<bool(const Waiting&)>& is_meant) {
  for (Place place = std::prev(images_.end()); place != images_.begin(); --place) {
    if (is_meant(*place)) {
      drop(place);
      ++dropped_;
      return true;
    }
  }
  return false;
}

}  // namespace ringside::bridge
