// Store of resized images, known by their content, of which the least recently used are dropped.
// Torch-free.
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

// Images with one hash are one image. What a caller holds stays valid when the store drops it, and
// is then no longer counted.
// Thread safety: safe from any thread.
class ImageStore {
 public:
  using Image = std::shared_ptr<const ProcessedImage>;

  // Pixels of at most max_bytes are kept.
  // Throws: std::invalid_argument for a negative bound.
  explicit ImageStore(int64_t max_bytes);

  // Keeps an image and drops those used longest ago that no longer fit. Returns the one that is
  // kept, which is the earlier one if there is one with its hash. One above the bound is returned
  // and not kept; nothing is dropped for it.
  Image add(ProcessedImage image);

  // The image, now the one used last; null if it is not kept.
  Image find(const std::string& hash);

  // The image, made by `make` if it is not kept. Several threads may make one at the same time; all
  // get the one that is kept.
  // Throws: std::runtime_error naming both hashes when what is made is another image, for example
  // of a file that has changed; what `make` throws.
  Image find_or_make(const std::string& hash, const std::function<ProcessedImage()>& make);

  // Pixels and number of the images that are kept.
  int64_t bytes() const;
  int64_t size() const;

 private:
  // With mutex_ held.
  Image find_locked(const std::string& hash);
  void make_room(int64_t bytes);

  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<Image> images_;  // the one used last at the front
  std::map<std::string, std::list<Image>::iterator, std::less<>> place_of_;
  int64_t bytes_ = 0;
};

}  // namespace ringside::engine
