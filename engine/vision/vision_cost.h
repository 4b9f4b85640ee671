// Memory of a vision tower's pass on one rank, predicted from shapes before anything runs. Weights
// are not part of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "engine/layers/model_config.h"
#include "engine/vision/vision_tower.h"

namespace ringside::engine {

// The images that a rank encodes, and how.
struct VisionShape {
  int64_t patches = 0;
  VisionTraining training = VisionTraining::kNothing;
  bool recomputes = false;  // trained blocks
  int64_t compute = 4;      // bytes of a number of the compute dtype, and of sums
  int64_t sums = 4;
};

// Bytes. Attention counts as fused: it makes no matrix of all pairs. Images count as being of
// unequal sizes, so that attention's results are joined.
struct VisionCost {
  int64_t forward = 0;      // the most in a forward that keeps nothing, with patch rows and tables
  int64_t inputs = 0;       // patch rows and tables, which the blocks share until their backward
  int64_t block = 0;        // what a block keeps for its backward
  int64_t recomputed = 0;   // more, while a recomputed block's backward runs
  int64_t block_flow = 0;   // the most of that backward beside what was saved
  int64_t merger = 0;       // what a merger keeps
  int64_t merger_flow = 0;  // the most of its backward beside that
  int64_t row = 0;          // a token's row with those of deepstack
  int64_t blocks = 0;       // that are trained
  // Blocks that a trained merger of deepstack is behind.
  std::vector<int64_t> deepstack = {};
  bool trains_mergers = false;

  // Between the forward and the backward of all of the tower.
  int64_t kept() const {
    return inputs + blocks * block + mergers() + (trains_mergers ? merger : 0);
  }
  // While the backward of a block runs, with what it keeps itself: the mergers behind it are done.
  int64_t kept_in(int64_t index) const {
    return inputs + (index + 1) * block + mergers_before(index) * merger;
  }
  // Mergers of deepstack whose backward comes behind a block's.
  int64_t mergers_before(int64_t index) const {
    return std::ranges::lower_bound(deepstack, index) - deepstack.begin();
  }
  // While the last block's forward runs, but for inputs.
  int64_t kept_in_forward() const { return std::max<int64_t>(0, blocks - 1) * block + mergers(); }

 private:
  // Of deepstack.
  int64_t mergers() const { return std::ssize(deepstack) * merger; }
};

// Of a model with a tower.
// Thread safety: pure.
VisionCost vision_cost(const ModelConfig& config, const VisionShape& shape);

}  // namespace ringside::engine
