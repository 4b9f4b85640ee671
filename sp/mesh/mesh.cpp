#include "sp/mesh/mesh.h"

#include <stdexcept>
#include <string>

namespace ringside::sp {
namespace {

struct AxisSize {
  Axis axis;
  int64_t size;
};

// The cut of the ranks that a set of axes belongs to: its axes with their sizes, outermost first.
std::vector<AxisSize> axis_sizes(const MeshShape& shape, Axes axes) {
  if (!axes.contains(Axis::kExpertShard) && !axes.contains(Axis::kExpert)) {
    return {{Axis::kPipeline, shape.pipeline}, {Axis::kDpReplicate, shape.dp_replicate},
            {Axis::kDpShard, shape.dp_shard},  {Axis::kRing, shape.ring},
            {Axis::kUlysses, shape.ulysses},   {Axis::kTensor, shape.tensor}};
  }
  for (const Axis axis : {Axis::kDpShard, Axis::kRing, Axis::kUlysses, Axis::kTensor}) {
    if (axes.contains(axis)) {
      throw std::invalid_argument(
          "mesh: the axes of experts cut the ranks of dp_shard, ring, ulysses and tensor another "
          "way; a set has one or the other");
    }
  }
  return {{Axis::kPipeline, shape.pipeline},
          {Axis::kDpReplicate, shape.dp_replicate},
          {Axis::kExpertShard, shape.replica_size() / shape.expert},
          {Axis::kExpert, shape.expert}};
}

}  // namespace

namespace axes {

Axes fsdp(CpFsdpMode mode) {
  switch (mode) {
    case CpFsdpMode::kAll:
      return {Axis::kDpShard, Axis::kRing, Axis::kUlysses};
    case CpFsdpMode::kUlyssesOnly:
      return {Axis::kDpShard, Axis::kUlysses};
    case CpFsdpMode::kRingOnly:
      return {Axis::kDpShard, Axis::kRing};
    case CpFsdpMode::kNone:
      return {Axis::kDpShard};
  }
  throw std::invalid_argument("unknown cp_fsdp_mode");
}

Axes sp_without_fsdp(CpFsdpMode mode) {
  switch (mode) {
    case CpFsdpMode::kAll:
      return kNone;
    case CpFsdpMode::kUlyssesOnly:
      return kRing;
    case CpFsdpMode::kRingOnly:
      return kUlysses;
    case CpFsdpMode::kNone:
      return kSp;
  }
  throw std::invalid_argument("unknown cp_fsdp_mode");
}

Axes without_fsdp(CpFsdpMode mode) {
  const Axes sp = sp_without_fsdp(mode);
  Axes rest{Axis::kDpReplicate};
  for (const Axis axis : {Axis::kRing, Axis::kUlysses}) {
    rest = sp.contains(axis) ? rest.with(axis) : rest;
  }
  return rest;
}

}  // namespace axes

Mesh::Mesh(MeshShape shape, int64_t rank) : shape_(shape), rank_(rank) {
  if (shape.dp_replicate < 1 || shape.dp_shard < 1 || shape.ring < 1 || shape.ulysses < 1 ||
      shape.expert < 1 || shape.pipeline < 1 || shape.tensor < 1) {
    throw std::invalid_argument(
        "mesh: every axis must be at least 1, got dp_replicate " +
        std::to_string(shape.dp_replicate) + ", dp_shard " + std::to_string(shape.dp_shard) +
        ", ring " + std::to_string(shape.ring) + ", ulysses " + std::to_string(shape.ulysses) +
        ", expert " + std::to_string(shape.expert) + ", pipeline " +
        std::to_string(shape.pipeline) + ", tensor " + std::to_string(shape.tensor));
  }
  if (shape.replica_size() % shape.expert != 0) {
    throw std::invalid_argument("mesh: groups of " + std::to_string(shape.expert) +
                                " ranks with all experts do not divide the " +
                                std::to_string(shape.replica_size()) + " ranks of a replica");
  }
  if (rank < 0 || rank >= shape.world_size()) {
    throw std::invalid_argument("mesh: rank " + std::to_string(rank) + " of a world of " +
                                std::to_string(shape.world_size()));
  }
}

int64_t Mesh::size(Axes axes) const {
  int64_t size = 1;
  for (const AxisSize& a : axis_sizes(shape_, axes)) {
    size *= axes.contains(a.axis) ? a.size : 1;
  }
  return size;
}

int64_t Mesh::coordinate(Axes axes) const {
  int64_t coordinate = 0;
  int64_t stride = shape_.world_size();  // of the axis in world ranks
  for (const AxisSize& a : axis_sizes(shape_, axes)) {
    stride /= a.size;
    if (axes.contains(a.axis)) {
      coordinate = coordinate * a.size + rank_ / stride % a.size;
    }
  }
  return coordinate;
}

std::vector<int64_t> Mesh::ranks(Axes axes) const {
  std::vector<int64_t> ranks{0};
  int64_t stride = shape_.world_size();
  for (const AxisSize& a : axis_sizes(shape_, axes)) {
    stride /= a.size;
    const int64_t mine = rank_ / stride % a.size;
    std::vector<int64_t> longer;
    for (const int64_t base : ranks) {
      const bool varies = axes.contains(a.axis);
      for (int64_t i = varies ? 0 : mine; i < (varies ? a.size : mine + 1); ++i) {
        longer.push_back(base + i * stride);
      }
    }
    ranks = std::move(longer);
  }
  return ranks;
}

}  // namespace ringside::sp
