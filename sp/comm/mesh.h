// The grid of ranks: axes [dp_replicate, ring, ulysses], outermost first, so the ranks of a Ulysses group are
// neighbours. The only place that maps ranks to axes.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sp/comm/communicator.h"

namespace c10d {
class Store;
}

namespace ringside::sp {

struct MeshShape {
  int64_t dp_replicate = 1;
  int64_t ring = 1;
  int64_t ulysses = 1;

  int64_t sp_size() const { return ring * ulysses; }
  int64_t world_size() const { return dp_replicate * sp_size(); }
};

enum class MeshAxis { kUlysses, kRing, kSp, kDp, kWorld, kSelf };  // kSelf: this rank alone

// Which sequence-parallel axes parameter sharding folds in, and so reduces gradients over by itself.
enum class CpFsdpMode { kAll, kUlyssesOnly, kRingOnly, kNone };

// Groups by the names other trainers give them. There is no axis that shards parameters inside dp, so its size is 1.
enum class MeshAlias {
  kDp,         // "dp": data parallel, dp_replicate
  kSp,         // "sp": ring x ulysses
  kDpShardSp,  // "dp_shard_sp": the ranks that would share one sharded parameter, the axes CpFsdpMode folds in
  kDpSp,       // "dp_sp": dp x sp, over which losses and token counts are summed
};

// Throws std::invalid_argument for another name, listing the four.
MeshAlias mesh_alias(const std::string& name);

// The axis an alias stands for. mode matters to kDpShardSp only.
MeshAxis alias_axis(MeshAlias alias, CpFsdpMode mode);

class Mesh {
 public:
  // Throws std::invalid_argument when a size is below 1 or rank is outside the world.
  Mesh(MeshShape shape, int64_t rank);

  const MeshShape& shape() const { return shape_; }
  int64_t rank() const { return rank_; }
  int64_t dp_rank() const { return rank_ / shape_.sp_size(); }
  int64_t sp_rank() const { return rank_ % shape_.sp_size(); }
  int64_t ring_rank() const { return sp_rank() / shape_.ulysses; }
  int64_t ulysses_rank() const { return sp_rank() % shape_.ulysses; }

  // The world ranks of this rank's group along an axis, in group order.
  std::vector<int64_t> group(MeshAxis axis) const;

 private:
  MeshShape shape_;
  int64_t rank_;
};

// One communicator per axis. Gradients are summed over `world`, which is dp x sp.
struct MeshCommunicators {
  std::shared_ptr<Communicator> ulysses;
  std::shared_ptr<Communicator> ring;
  std::shared_ptr<Communicator> sp;
  std::shared_ptr<Communicator> dp;
  std::shared_ptr<Communicator> world;

  // The communicator of an axis. Never blocks.
  std::shared_ptr<Communicator> of(MeshAxis axis) const;
};

// Connects every axis over Gloo. Collective over the world; blocks; throws when a rank does not come within timeout.
MeshCommunicators connect_mesh(const Mesh& mesh, const c10::intrusive_ptr<c10d::Store>& store,
                               const std::string& host, std::chrono::milliseconds timeout);

}  // namespace ringside::sp
