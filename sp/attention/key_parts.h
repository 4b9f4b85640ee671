// How several threads share the backward of one key/value head: each takes a range of the key tiles
// of all heads, and the gradient of a tile of queries goes from one range to the next. Every sum
// keeps the order that it has on one thread, so the number of threads changes no bit.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "sp/attention/attention_tiles.h"

namespace ringside::sp {

// Number of ranges in which `threads` threads take the key tiles of `heads` key/value heads: 1 when
// whole heads keep them about as busy.
int64_t key_part_count(int64_t heads, int64_t threads, int64_t keys);

// Cuts the key tiles of a head into `parts` ranges of about as many visible tiles, in ascending
// order. A range may be empty.
std::vector<TileRange> key_parts(const VisibleKeys& visible, int64_t queries, int64_t keys,
                                 int64_t parts);

// How far each part of a division is, in steps from 0, which all parts take in the same order.
// Thread safety: any thread; a part's steps are finished by one thread.
class PartProgress {
 public:
  // Of parts that have finished nothing yet.
  explicit PartProgress(int64_t parts) : finished_(parts) {}

  // Waits until the part before this one has finished the step. The first part waits for none.
  // Parts that one thread takes one after the other, in ascending order, never wait.
  // Blocks: as said.
  void await(int64_t part, int64_t step) const;
  // The part has finished all steps up to this one.
  void finish(int64_t part, int64_t step) {
    finished_[part].steps.store(step + 1, std::memory_order_release);
  }

 private:
  struct alignas(64) Count {
    std::atomic<int64_t> steps{0};
  };
  std::vector<Count> finished_;
};

}  // namespace ringside::sp
