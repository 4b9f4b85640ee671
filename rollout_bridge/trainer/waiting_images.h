// Images that workers have sent and that no accepted rollout names yet, in bounded memory. An
// accepted rollout's images are in the journal.
//
// Any of them may be dropped. A rollout that names one that is gone is answered with its hash, and
// the worker sends it again. So that rollouts get in however little room there is, a worker drives
// out its own images, and those of others only when they have waited for a while; where that gives
// no room, the image that comes is the one that goes.
//
// Thread safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "rollout_bridge/protocol/codec.h"

namespace ringside::bridge {

struct ImageBounds {
  int64_t worker_images = 4096;               // of one worker
  uint64_t worker_bytes = uint64_t{1} << 29;  // of one worker, as messages
  uint64_t total_bytes = uint64_t{1} << 30;   // of all workers
};

// Images of other workers are kept at least for this long.
inline constexpr std::chrono::seconds kKeptFromOthers{10};

class WaitingImages {
 public:
  using Clock = std::chrono::steady_clock;
  using Message = std::shared_ptr<const FlatImage>;

  // Throws: std::invalid_argument unless 1 <= worker_images and 1 <= worker_bytes <= total_bytes.
  explicit WaitingImages(const ImageBounds& bounds);

  // Keeps an image that a worker has sent, unless it is here already, and drops those beyond the
  // bounds, which were used longest ago, or this one. One that is larger than all room is kept
  // alone.
  void add(const std::string& worker, const std::string& hash, FlatImage message,
           Clock::time_point now);
  // The image, now the one used last; null when it is not here.
  Message use(const std::string& hash);
  // It is in the journal now.
  void remove(const std::string& hash);

  uint64_t bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(images_.size()); }
  uint64_t dropped() const { return dropped_; }  // for want of room, since the start

 private:
  struct Waiting {
    std::string worker;
    std::string hash;
    Message message;
    Clock::time_point since;
  };
  struct Sum {
    int64_t images = 0;
    uint64_t bytes = 0;
  };
  using Place = std::list<Waiting>::iterator;

  void drop(Place place);
  // Drops the image used longest ago of those that are meant, but not the one used last. False when
  // there is none.
  bool drop_oldest(const std::function<bool(const Waiting&)>& is_meant);

  ImageBounds bounds_;
  std::list<Waiting> images_;  // the one used last at the front
  std::map<std::string, Place, std::less<>> place_of_;
  std::map<std::string, Sum> sum_of_;  // by worker
  uint64_t bytes_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace ringside::bridge
