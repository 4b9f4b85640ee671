#include "sp/attention/key_parts.h"

#include <algorithm>
#include <thread>

namespace ringside::sp {
namespace {

constexpr int64_t kLeastTilesOfPart = 4;
constexpr int kLooks = 1000;  // before a thread offers its core to others

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

int64_t key_part_count(int64_t heads, int64_t threads, int64_t keys) {
  const int64_t rounds = (heads + threads - 1) / threads;
  const bool busy = 20 * heads >= 19 * rounds * threads;  // 95 % of the time
  return busy || tile_count(keys) < kLeastTilesOfPart * threads ? 1 : threads;
}

std::vector<TileRange> key_parts(const VisibleKeys& visible, int64_t queries, int64_t keys,
                                 int64_t parts) {
  // Visible tiles of each key tile, first as differences between neighbours.
  std::vector<int64_t> work(tile_count(keys) + 1);
  for (int64_t t = 0; t < tile_count(queries); ++t) {
    const TileRange range = visible_tiles(visible, tile_at(t, queries), keys);
    ++work[range.begin];
    --work[range.end];
  }
  int64_t all = 0;
  for (std::size_t tile = 1; tile < work.size(); ++tile) {
    work[tile] += work[tile - 1];
  }
  for (const int64_t of_tile : work) {
    all += of_tile;
  }
  std::vector<TileRange> ranges;
  int64_t tile = 0, before = 0;
  for (int64_t part = 1; part <= parts; ++part) {
    const int64_t begin = tile;
    while (tile < tile_count(keys) && (part == parts || before * parts < all * part)) {
      before += work[tile++];
    }
    ranges.push_back({begin, tile});
  }
  return ranges;
}

void PartProgress::await(int64_t part, int64_t step) const {
  if (part == 0) {
    return;
  }
  const std::atomic<int64_t>& before = finished_[part - 1].steps;
  for (int look = 0; before.load(std::memory_order_acquire) <= step; ++look) {
    look < kLooks ? pause_briefly() : std::this_thread::yield();
  }
}

}  // namespace ringside::sp
