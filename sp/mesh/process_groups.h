// Process groups of a rank: one communicator for each sub-mesh used by a collective.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sp/mesh/communicator.h"
#include "sp/mesh/mesh.h"
#include "sp/mesh/rendezvous.h"

namespace ringside::sp {

// Groups exist for kWorld, kEntries, kLoss, kSp, kBatch, kRing, kUlysses, kPipeline, kTensor and
// kNone (this rank alone), and for the additional sets of axes that were requested at construction.
// kEntries and kLoss have the communicators of kWorld, and kLoss those of kEntries, where they are
// the same ranks. Communicators are shared, so work in flight keeps its communicator alive.
// Thread safety: const functions from any thread; one thread a rank launches collectives.
class ProcessGroups {
 public:
  // Connects this rank's group of a set of axes.
  using Connect = std::function<std::shared_ptr<Communicator>(Axes)>;

  // Calls `tensors` for each of kWorld, kEntries and kLoss (unless they have communicators
  // already), kSp, kBatch, kRing, kUlysses, kPipeline and kTensor (unless they are one rank), in
  // this order. Calls `control` as well when control data uses another backend. An empty `control`
  // shares the tensors' groups, which must then have a CPU backend. device: of this rank's tensors.
  // more: sets of axes that get a group for tensors too, in this order, after the others.
  // Collective over, blocks, throws: as the functions that it calls.
  ProcessGroups(const Mesh& mesh, const Connect& tensors, const Connect& control = nullptr,
                c10::Device device = c10::Device(c10::kCPU), const std::vector<Axes>& more = {});

  // The device of this rank, which `tensors` groups serve.
  c10::Device device() const { return device_; }

  // Group for tensors on the rank's device.
  // Throws: std::invalid_argument for axes without a group.
  const std::shared_ptr<Communicator>& tensors(Axes axes) const;
  // Group for host numbers, hashes and rollouts: CPU tensors, on any device.
  // Throws: as tensors().
  const std::shared_ptr<Communicator>& control(Axes axes) const;

 private:
  using Groups = std::map<Axes, std::shared_ptr<Communicator>>;
  Groups tensors_;
  Groups control_;
  c10::Device device_;
};

// Groups of a world of one rank on `device`, which send nothing.
ProcessGroups single_rank_groups(c10::Device device = c10::Device(c10::kCPU));

// Name of this rank's group of these axes, unlike that of every other group of the mesh.
// Throws: std::invalid_argument as Mesh::ranks().
std::string group_name(const Mesh& mesh, Axes axes);

// Connects groups of CPU tensors when it is called: over Gloo, or over shared memory where the
// rendezvous' transport wants it and all ranks of the group are on one machine. Says once, on rank
// 0, when the machine refuses shared memory and Gloo takes its place.
// Collective over: the world, this function; each call, its group.
// Blocks: until every rank of the world, or of the group, has called.
// Throws: c10::Error after the rendezvous' timeout. Each call: as make_gloo_communicator(); with
// kSharedMemory std::runtime_error, on every rank of the group, when they are not on one machine or
// it refuses.
ProcessGroups::Connect host_groups(const Mesh& mesh, const GroupRendezvous& rendezvous);

// Connects every group by host_groups(), for tensors and control, those of `more` included.
// Collective over: the world.
// Blocks: until every rank has joined.
// Throws: std::runtime_error that names the ranks that have not come within the timeout; then as
// host_groups().
ProcessGroups connect_groups(const Mesh& mesh, const GroupRendezvous& rendezvous,
                             const std::vector<Axes>& more = {});

}  // namespace ringside::sp
