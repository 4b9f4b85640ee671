#include "engine/vision/vision_cost.h"

#include <algorithm>
#include <iterator>

namespace ringside::engine {
namespace {

constexpr int64_t kIndex = 8, kFloat = 4;  // bytes

// Bytes that a patch has in a tower.
class PatchBytes {
 public:
  PatchBytes(const VisionConfig& config, const VisionShape& shape)
      : v_(config), compute_(shape.compute), sums_(shape.sums), angle_(shape.sums) {}

  int64_t hidden() const { return v_.width * compute_; }
  // Rows as they are uploaded, and in the compute dtype.
  int64_t uploaded() const { return v_.row_size() * kFloat; }
  int64_t row() const { return v_.row_size() * compute_; }
  // Places, their angles, and the taps of learned positions.
  int64_t tables() const {
    return 2 * kIndex + v_.head_dim() * angle_ + (v_.positions > 0 ? 4 * (kIndex + kFloat) : 0);
  }

  int64_t saved_by_attention() const {
    return 2 * hidden() + norm() + heads() + turned() + results();
  }
  int64_t saved_by_mlp() const { return 2 * hidden() + norm() + (up() + 1) * mlp(); }

  // Beside what is saved, while the MLP's backward runs: the gradient of its output, and either
  // that of the activation or, when the activation is gone, what its own backward makes.
  int64_t mlp_flow() const { return hidden() + std::max<int64_t>(1, activation_flow()) * mlp(); }
  // Beside what attention saved: at attention, or behind it at the rotation, where its results and
  // its inputs are gone.
  int64_t attention_flow() const {
    const int64_t at_attention = 6 * hidden();
    const int64_t at_rotation = hidden() + 3 * v_.width * angle_ + heads() - turned() - results();
    return std::max(at_attention, at_rotation);
  }

  int64_t saved_by_merger() const { return 3 * hidden() + norm(); }

  // In a forward that keeps nothing. Positions are weighted in fp32.
  int64_t embedding_forward() const {
    return 6 * hidden() + (v_.positions > 0 ? 5 * v_.width * kFloat : 0);
  }
  int64_t block_forward() const {
    const int64_t attention =
        4 * hidden() + heads() + turned() + (casts() ? 3 * hidden() + 2 * v_.width * angle_ : 0);
    const int64_t activation = v_.family == VisionFamily::kQwen2Vl ? 2 : 1;
    return std::max(attention, 4 * hidden() + (up() + activation) * mlp());
  }

 private:
  bool casts() const { return angle_ != compute_; }
  int64_t mlp() const { return v_.mlp * compute_; }
  // Results of the MLP's first product, in widths of the MLP.
  int64_t up() const { return v_.family == VisionFamily::kQwen2_5Vl ? 2 : 1; }
  // The most of the activation's backward beside its input, with its gradient; its output is gone.
  int64_t activation_flow() const {
    switch (v_.family) {
      case VisionFamily::kQwen2Vl:
        return 5;
      case VisionFamily::kQwen2_5Vl:
        return 2;
      case VisionFamily::kQwen3Vl:
        return 1;
    }
    return 1;
  }
  int64_t norm() const { return (v_.family == VisionFamily::kQwen2_5Vl ? 1 : 2) * sums_; }
  // Queries, keys and values in the dtype of the angles.
  int64_t heads() const { return 3 * v_.width * angle_; }
  // What attention saves of its inputs: values in the same dtype are those of heads().
  int64_t turned() const { return (casts() ? 3 : 2) * hidden(); }
  // Attention's result as its kernel makes it and joined, and a number a head.
  int64_t results() const { return 2 * hidden() + v_.heads * sums_; }

  const VisionConfig& v_;
  int64_t compute_, sums_, angle_;
};

}  // namespace

VisionCost vision_cost(const ModelConfig& config, const VisionShape& shape) {
  const VisionConfig& vision = *config.vision;
  const PatchBytes patch(vision, shape);
  const int64_t p = shape.patches;
  const bool all = shape.training == VisionTraining::kAll;
  const int64_t levels = 1 + std::ssize(vision.deepstack);
  const int64_t saved = patch.saved_by_attention() + patch.saved_by_mlp();
  VisionCost cost;
  cost.row = levels * config.hidden_size * shape.compute;
  const int64_t merged = p / vision.patches_of_token() * (cost.row - cost.row / levels);
  cost.forward =
      std::max(p * patch.embedding_forward(), p * patch.block_forward() + merged) +
      p * (patch.tables() + patch.uploaded() + (shape.compute != kFloat ? patch.row() : 0));
  cost.trains_mergers = shape.training != VisionTraining::kNothing;
  if (cost.trains_mergers) {
    cost.deepstack = vision.deepstack;
  }
  cost.blocks = all ? vision.depth : 0;
  cost.inputs = all ? p * (patch.row() + patch.tables()) : 0;
  cost.block = p * (shape.recomputes ? patch.hidden() : saved);
  cost.recomputed = shape.recomputes ? p * (saved - patch.hidden()) : 0;
  // Of the two halves of a block's backward the second one has the MLP's memory.
  cost.block_flow = p * std::max(patch.mlp_flow(), patch.attention_flow() - patch.saved_by_mlp());
  // Its input is what the block behind it keeps too, but for the last one.
  cost.merger = p * (patch.saved_by_merger() + (all ? 0 : patch.hidden()));
  cost.merger_flow = p * 2 * patch.hidden();
  if (all) {
    cost.inputs += p * patch.hidden();
  }
  return cost;
}

}  // namespace ringside::engine
