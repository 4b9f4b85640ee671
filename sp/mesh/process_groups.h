// The process groups of a rank: a communicator for each sub-mesh that something is sent over.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "sp/mesh/communicator.h"
#include "sp/mesh/mesh.h"

namespace c10d {
class Store;
}

namespace ringside::sp {

// Groups exist for kLoss, kSp, kBatch, kRing, kUlysses and kNone (this rank alone). A group's
// communicator is shared: whoever keeps work in flight keeps it alive. Thread safety: const
// functions may be called from any thread; one thread a rank launches collectives.
class ProcessGroups {
 public:
  using Connect = std::function<std::shared_ptr<Communicator>(Axes)>;

  // Calls connect for each of kLoss, kSp, kBatch, kRing, kUlysses in this order, for tensors and
  // once more for control where that is another backend. An empty `control` shares the tensors'
  // groups, which then must be of a CPU backend.
  explicit ProcessGroups(const Connect& tensors, const Connect& control = nullptr);

  // For tensors on the rank's device. Throws: std::invalid_argument for axes without a group.
  const std::shared_ptr<Communicator>& tensors(Axes axes) const;
  // For host numbers, hashes and rollouts: CPU tensors, whatever the device. Throws as tensors().
  const std::shared_ptr<Communicator>& control(Axes axes) const;

 private:
  using Groups = std::map<Axes, std::shared_ptr<Communicator>>;
  Groups tensors_;
  Groups control_;
};

// The groups of a world of one rank. Nothing is ever sent.
ProcessGroups single_rank_groups();

// Connects every group over Gloo, tensors and control alike.
// Collective over the world. Blocks until every rank has come. Throws when one does not come within
// timeout.
ProcessGroups connect_groups(const Mesh& mesh, const c10::intrusive_ptr<c10d::Store>& store,
                             const std::string& host, std::chrono::milliseconds timeout);

}  // namespace ringside::sp
