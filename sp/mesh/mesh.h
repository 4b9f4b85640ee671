// Mesh of ranks with axes [pipeline, dp_replicate, dp_shard, ring, ulysses, tensor], outermost
// first, so the ranks that send the most are neighbours. Expert parallelism cuts the same ranks
// another way, into [pipeline, dp_replicate, expert_shard, expert]. The only place that maps ranks
// to axes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace ringside::sp {

// Number of ranks along each axis, all at least 1.
struct MeshShape {
  int64_t dp_replicate = 1;
  int64_t ring = 1;
  int64_t ulysses = 1;
  int64_t dp_shard = 1;  // outside ring, inside dp_replicate
  int64_t expert = 1;    // ranks that hold all experts together; divides replica_size()
  int64_t pipeline = 1;  // groups of ranks with stages of their own, outside all others
  int64_t tensor = 1;    // ranks that share the same tokens' matrices, inside ulysses

  int64_t sp_size() const { return ring * ulysses; }
  int64_t dp_size() const { return dp_replicate * dp_shard; }
  // Ranks of one copy of a stage, and of all its copies.
  int64_t replica_size() const { return dp_shard * sp_size() * tensor; }
  int64_t stage_size() const { return dp_replicate * replica_size(); }
  int64_t world_size() const { return pipeline * stage_size(); }
};

// Outermost first. kExpertShard x kExpert are the ranks of kDpShard x kRing x kUlysses x kTensor
// once more, so a set of axes has some of the one or some of the other.
enum class Axis {
  kPipeline,
  kDpReplicate,
  kDpShard,
  kRing,
  kUlysses,
  kTensor,
  kExpertShard,
  kExpert
};

// A set of axes. It names a sub-mesh: the ranks that differ from this one only in these
// coordinates.
class Axes {
 public:
  constexpr Axes() = default;
  // The axes named.
  constexpr Axes(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) {
      bits_ |= bit(axis);
    }
  }
  // Whether the axis is in the set.
  constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  // This set and one more axis.
  constexpr Axes with(Axis axis) const {
    Axes more = *this;
    more.bits_ |= bit(axis);
    return more;
  }
  constexpr auto operator<=>(const Axes&) const = default;

 private:
  static constexpr uint32_t bit(Axis axis) { return uint32_t{1} << static_cast<uint32_t>(axis); }
  uint32_t bits_ = 0;
};

// Sequence-parallel axes whose ranks share one copy of the model, besides kDpShard.
enum class CpFsdpMode { kAll, kUlyssesOnly, kRingOnly, kNone };

namespace axes {
inline constexpr Axes kNone{};  // this rank alone
inline constexpr Axes kRing{Axis::kRing};
inline constexpr Axes kUlysses{Axis::kUlysses};
// Ranks with different documents.
inline constexpr Axes kBatch{Axis::kDpReplicate, Axis::kDpShard};
// Ranks that share documents.
inline constexpr Axes kSp{Axis::kRing, Axis::kUlysses};
// All ranks: agreements, votes, errors, and what rank 0 hands to everybody.
inline constexpr Axes kWorld{Axis::kPipeline, Axis::kDpReplicate, Axis::kDpShard,
                             Axis::kRing,     Axis::kUlysses,     Axis::kTensor};
// Ranks with different loss entries: losses and gradients are summed over it. Tensor ranks have the
// same entries, and the ranks of other stages none.
inline constexpr Axes kLoss{Axis::kDpReplicate, Axis::kDpShard, Axis::kRing, Axis::kUlysses};
// Ranks of one stage, whose rows of the residual stream are disjoint: gradients of a parameter that
// tensor ranks use whole are summed over it.
inline constexpr Axes kRows{Axis::kDpReplicate, Axis::kDpShard, Axis::kRing, Axis::kUlysses,
                            Axis::kTensor};
// The stages of the same tokens, and the ranks that share their matrices.
inline constexpr Axes kPipeline{Axis::kPipeline};
inline constexpr Axes kTensor{Axis::kTensor};
// Ranks whose numbers of loss entries make up those of all: kLoss, and the stages, of which only
// the last has numbers other than 0. Tensor ranks have the same numbers.
inline constexpr Axes kEntries = kLoss.with(Axis::kPipeline);
// Ranks that hold all experts together, neighbours of each other.
inline constexpr Axes kExpert{Axis::kExpert};
// Ranks of one replica that hold the same experts; those of all replicas.
inline constexpr Axes kExpertShard{Axis::kExpertShard};
inline constexpr Axes kSameExperts{Axis::kDpReplicate, Axis::kExpertShard};

// fsdp: the ranks that share one sharded copy of the model. without_fsdp: all other axes, over
// which the gradients of a shard must still be summed.
Axes fsdp(CpFsdpMode mode);
Axes without_fsdp(CpFsdpMode mode);
// The sequence-parallel axes of without_fsdp().
Axes sp_without_fsdp(CpFsdpMode mode);
}  // namespace axes

// A rank and its place in the mesh.
// Thread safety: immutable.
class Mesh {
 public:
  // Throws: std::invalid_argument when a size is below 1, rank is outside the world, or the expert
  // axis does not divide the ranks of a replica.
  Mesh(MeshShape shape, int64_t rank);

  const MeshShape& shape() const { return shape_; }
  int64_t rank() const { return rank_; }

  // Number of ranks of the sub-mesh, and this rank's index in it: row-major over its axes,
  // outermost first.
  // Throws: std::invalid_argument for a set with axes of both cuts of a replica's ranks; also
  // ranks().
  int64_t size(Axes axes) const;
  int64_t coordinate(Axes axes) const;
  // World ranks of this rank's sub-mesh, by coordinate; size(axes) of them.
  std::vector<int64_t> ranks(Axes axes) const;

  int64_t dp_rank() const { return coordinate(axes::kBatch); }
  int64_t sp_rank() const { return coordinate(axes::kSp); }
  int64_t ring_rank() const { return coordinate(axes::kRing); }
  int64_t ulysses_rank() const { return coordinate(axes::kUlysses); }

 private:
  MeshShape shape_;
  int64_t rank_;
};

}  // namespace ringside::sp
