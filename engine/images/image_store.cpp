#include "engine/images/image_store.h"

#include <stdexcept>
#include <utility>

namespace ringside::engine {
namespace {

int64_t bytes_of(const ProcessedImage& image) { return std::ssize(image.image.rgb); }

}  // namespace

ImageStore::ImageStore(int64_t max_bytes) : max_bytes_(max_bytes) {
  if (max_bytes < 0) {
    throw std::invalid_argument("a store of images of " + std::to_string(max_bytes) + " bytes");
  }
}

ImageStore::Image ImageStore::add(const std::string& key, ProcessedImage image) {
  auto added = std::make_shared<const ProcessedImage>(std::move(image));
  const int64_t bytes = bytes_of(*added);
  const std::lock_guard lock(mutex_);
  if (Image kept = find_locked(key)) {
    return kept;
  }
  if (bytes > max_bytes_) {
    return added;
  }
  make_room(bytes);
  images_.push_front({key, added});
  place_of_[key] = images_.begin();
  bytes_ += bytes;
  return added;
}

ImageStore::Image ImageStore::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return find_locked(key);
}

ImageStore::Image ImageStore::find_or_make(const std::string& key,
                                           const std::function<ProcessedImage()>& make) {
  Image kept = find(key);
  return kept ? kept : add(key, make());
}

int64_t ImageStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

int64_t ImageStore::size() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(images_);
}

ImageStore::Image ImageStore::find_locked(const std::string& key) {
  const auto found = place_of_.find(key);
  if (found == place_of_.end()) {
    return nullptr;
  }
  images_.splice(images_.begin(), images_, found->second);
  return images_.front().image;
}

void ImageStore::make_room(int64_t bytes) {
  while (bytes_ + bytes > max_bytes_) {
    bytes_ -= bytes_of(*images_.back().image);
    place_of_.erase(images_.back().key);
    images_.pop_back();
  }
}

}  // namespace ringside::engine
