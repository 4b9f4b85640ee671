// Store of resized images by a key of the caller's, for example the hash of an image's file, of
// which the least recently used are dropped. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "engine/images/image_processor.h"

namespace ringside::engine {

// An image with one key is one image. What a caller holds stays valid when the store drops it, and
// is then no longer counted.
// Thread safety: safe from any thread.
class ImageStore {
 public:
  using Image = std::shared_ptr<const ProcessedImage>;

  // Pixels of at most max_bytes are kept.
  // Throws: std::invalid_argument for a negative bound.
  explicit ImageStore(int64_t max_bytes);

  // Keeps an image and drops those used longest ago that no longer fit. Returns the one that is
  // kept, which is the earlier one if there is one with its key. One above the bound is returned
  // and not kept; nothing is dropped for it.
  Image add(const std::string& key, ProcessedImage image);

  // The image, now the one used last; null if it is not kept.
  Image find(const std::string& key);

  // The image, made by `make` if it is not kept. Several threads may make one at the same time; all
  // get the one that is kept.
  // Throws: what `make` throws.
  Image find_or_make(const std::string& key, const std::function<ProcessedImage()>& make);

  // Pixels and number of the images that are kept.
  int64_t bytes() const;
  int64_t size() const;

 private:
  // With mutex_ held.
  Image find_locked(const std::string& key);
  void make_room(int64_t bytes);

  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  struct Kept {
    std::string key;
    Image image;
  };
  std::list<Kept> images_;  // the one used last at the front
  std::map<std::string, std::list<Kept>::iterator, std::less<>> place_of_;
  int64_t bytes_ = 0;
};

}  // namespace ringside::engine
