#include "sp/comm/mesh.h"

#include <algorithm>
#include <stdexcept>

#include "sp/comm/c10d_communicator.h"

namespace ringside::sp {
namespace {

const char* axis_name(MeshAxis axis) {
  switch (axis) {
    case MeshAxis::kUlysses:
      return "ulysses";
    case MeshAxis::kRing:
      return "ring";
    case MeshAxis::kSp:
      return "sp";
    case MeshAxis::kDp:
      return "dp";
    case MeshAxis::kWorld:
      return "world";
    case MeshAxis::kSelf:
      return "self";
  }
  throw std::invalid_argument("unknown mesh axis");
}

}  // namespace

Mesh::Mesh(MeshShape shape, int64_t rank) : shape_(shape), rank_(rank) {
  if (shape.dp_replicate < 1 || shape.ring < 1 || shape.ulysses < 1) {
    throw std::invalid_argument("mesh: every axis must be at least 1, got dp_replicate " +
                                std::to_string(shape.dp_replicate) + ", ring " +
                                std::to_string(shape.ring) + ", ulysses " +
                                std::to_string(shape.ulysses));
  }
  if (rank < 0 || rank >= shape.world_size()) {
    throw std::invalid_argument("mesh: rank " + std::to_string(rank) + " of a world of " +
                                std::to_string(shape.world_size()));
  }
}

std::vector<int64_t> Mesh::group(MeshAxis axis) const {
  const int64_t sp_begin = dp_rank() * shape_.sp_size();
  int64_t first = 0;
  int64_t stride = 1;
  int64_t count = shape_.world_size();
  switch (axis) {
    case MeshAxis::kUlysses:
      first = sp_begin + ring_rank() * shape_.ulysses;
      count = shape_.ulysses;
      break;
    case MeshAxis::kRing:
      first = sp_begin + ulysses_rank();
      stride = shape_.ulysses;
      count = shape_.ring;
      break;
    case MeshAxis::kSp:
      first = sp_begin;
      count = shape_.sp_size();
      break;
    case MeshAxis::kDp:
      first = sp_rank();
      stride = shape_.sp_size();
      count = shape_.dp_replicate;
      break;
    case MeshAxis::kWorld:
      break;
    case MeshAxis::kSelf:
      first = rank_;
      count = 1;
      break;
  }
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < count; ++i) {
    ranks.push_back(first + i * stride);
  }
  return ranks;
}

MeshAlias mesh_alias(const std::string& name) {
  if (name == "dp") {
    return MeshAlias::kDp;
  }
  if (name == "sp") {
    return MeshAlias::kSp;
  }
  if (name == "dp_shard_sp") {
    return MeshAlias::kDpShardSp;
  }
  if (name == "dp_sp") {
    return MeshAlias::kDpSp;
  }
  throw std::invalid_argument("mesh: no group named \"" + name + "\"; there are dp, sp, dp_shard_sp, dp_sp");
}

MeshAxis alias_axis(MeshAlias alias, CpFsdpMode mode) {
  switch (alias) {
    case MeshAlias::kDp:
      return MeshAxis::kDp;
    case MeshAlias::kSp:
      return MeshAxis::kSp;
    case MeshAlias::kDpSp:
      return MeshAxis::kWorld;
    case MeshAlias::kDpShardSp:
      break;
  }
  switch (mode) {
    case CpFsdpMode::kAll:
      return MeshAxis::kSp;
    case CpFsdpMode::kUlyssesOnly:
      return MeshAxis::kUlysses;
    case CpFsdpMode::kRingOnly:
      return MeshAxis::kRing;
    case CpFsdpMode::kNone:
      return MeshAxis::kSelf;
  }
  throw std::invalid_argument("unknown cp_fsdp_mode");
}

std::shared_ptr<Communicator> MeshCommunicators::of(MeshAxis axis) const {
  switch (axis) {
    case MeshAxis::kUlysses:
      return ulysses;
    case MeshAxis::kRing:
      return ring;
    case MeshAxis::kSp:
      return sp;
    case MeshAxis::kDp:
      return dp;
    case MeshAxis::kWorld:
      return world;
    case MeshAxis::kSelf:
      return make_single_rank_communicator();
  }
  throw std::invalid_argument("unknown mesh axis");
}

MeshCommunicators connect_mesh(const Mesh& mesh, const c10::intrusive_ptr<c10d::Store>& store,
                               const std::string& host, std::chrono::milliseconds timeout) {
  const auto connect = [&](MeshAxis axis) {
    const auto ranks = mesh.group(axis);
    const auto me = std::find(ranks.begin(), ranks.end(), mesh.rank()) - ranks.begin();
    const std::string name = std::string(axis_name(axis)) + "/" + std::to_string(ranks.front()) + "/";
    return make_gloo_communicator(store, name, me, static_cast<int64_t>(ranks.size()), host, timeout);
  };
  MeshCommunicators comms;
  comms.world = connect(MeshAxis::kWorld);
  comms.sp = connect(MeshAxis::kSp);
  comms.dp = connect(MeshAxis::kDp);
  comms.ring = connect(MeshAxis::kRing);
  comms.ulysses = connect(MeshAxis::kUlysses);
  return comms;
}

}  // namespace ringside::sp
