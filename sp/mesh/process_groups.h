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

// Groups exist for kLoss, kSp, kBatch, kRing, kUlysses and kNone (this rank alone), and for the
// additional sets of axes that were requested at construction. Communicators are shared, so work
// in flight keeps its communicator alive.
// Thread safety: const functions from any thread; one thread a rank launches collectives.
class ProcessGroups {
 public:
  // Connects this rank's group of a set of axes.
  using Connect = std::function<std::shared_ptr<Communicator>(Axes)>;

  // Calls `tensors` for each of kLoss, kSp, kBatch, kRing, kUlysses, in this order. Calls `control`
  // as well when control data uses another backend. An empty `control` shares the tensors' groups,
  // which must then have a CPU backend. device: of this rank's tensors. more: sets of axes that get
  // a group for tensors too, in this order, after the others.
  // Collective over, blocks, throws: as the functions that it calls.
  explicit ProcessGroups(const Connect& tensors, const Connect& control = nullptr,
                         c10::Device device = c10::Device(c10::kCPU),
                         const std::vector<Axes>& more = {});

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

// Connects groups over Gloo when it is called.
// Collective over, blocks, throws: each call, as make_gloo_communicator().
ProcessGroups::Connect gloo_groups(const Mesh& mesh, const GroupRendezvous& rendezvous);

// Connects every group over Gloo, for tensors and control, those of `more` included.
// Collective over: the world.
// Blocks: until every rank has joined.
// Throws: std::runtime_error that names the ranks that have not come within `timeout`; then as
// make_gloo_communicator().
ProcessGroups connect_groups(const Mesh& mesh, const c10::intrusive_ptr<c10d::Store>& store,
                             const std::string& host, std::chrono::milliseconds timeout,
                             const std::vector<Axes>& more = {});

}  // namespace ringside::sp
