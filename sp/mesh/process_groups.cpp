#include "sp/mesh/process_groups.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "sp/mesh/c10d_communicator.h"
#include "sp/mesh/shared_memory_communicator.h"

namespace ringside::sp {
namespace {

constexpr std::array<Axes, 9> kGroups = {axes::kWorld,   axes::kEntries,  axes::kLoss,
                                         axes::kSp,      axes::kBatch,    axes::kRing,
                                         axes::kUlysses, axes::kPipeline, axes::kTensor};

// The set of axes, connected before, whose communicators this one has; itself: it has its own.
Axes connected_as(Axes axes, const Mesh& mesh) {
  if ((axes == axes::kPipeline || axes == axes::kTensor) && mesh.size(axes) == 1) {
    return axes::kNone;
  }
  if (axes == axes::kEntries || axes == axes::kLoss) {
    for (const Axes larger : {axes::kWorld, axes::kEntries}) {
      if (mesh.size(axes) == mesh.size(larger)) {
        return larger;
      }
    }
  }
  return axes;
}

constexpr std::array<std::pair<Axis, const char*>, 8> kAxisNames = {
    {{Axis::kPipeline, "pipeline"},
     {Axis::kDpReplicate, "dp_replicate"},
     {Axis::kDpShard, "dp_shard"},
     {Axis::kRing, "ring"},
     {Axis::kUlysses, "ulysses"},
     {Axis::kTensor, "tensor"},
     {Axis::kExpertShard, "expert_shard"},
     {Axis::kExpert, "expert"}}};

const std::shared_ptr<Communicator>& find(
    const std::map<Axes, std::shared_ptr<Communicator>>& groups, Axes axes) {
  const auto found = groups.find(axes);
  if (found == groups.end()) {
    throw std::invalid_argument("no process group of these axes");
  }
  return found->second;
}

// The machines of all ranks, by world rank.
std::vector<std::string> places_of_all(const Mesh& mesh, const GroupRendezvous& rendezvous) {
  const auto key = [](int64_t rank) { return "machine of rank " + std::to_string(rank); };
  const std::string mine = rendezvous.machine.empty() ? machine_place() : rendezvous.machine;
  rendezvous.store->set(key(mesh.rank()), std::vector<uint8_t>(mine.begin(), mine.end()));
  std::vector<std::string> places;
  for (int64_t rank = 0; rank < mesh.size(axes::kWorld); ++rank) {
    rendezvous.store->wait({key(rank)}, rendezvous.timeout);
    const auto place = rendezvous.store->get(key(rank));
    places.emplace_back(place.begin(), place.end());
  }
  return places;
}

// Connects the groups of one rank. Copies share what they know.
class HostGroups {
 public:
  HostGroups(const Mesh& mesh, const GroupRendezvous& rendezvous)
      : mesh_(mesh), rendezvous_(rendezvous), shared_(std::make_shared<Shared>()) {
    if (rendezvous.transport != RankTransport::kGloo && mesh.size(axes::kWorld) > 1) {
      shared_->places = places_of_all(mesh, rendezvous);
    }
  }

  std::shared_ptr<Communicator> operator()(Axes axes) const {
    if (mesh_.size(axes) == 1) {
      return make_single_rank_communicator();
    }
    const GroupMembers members{group_name(mesh_, axes), mesh_.ranks(axes), mesh_.coordinate(axes)};
    const bool wanted = rendezvous_.transport == RankTransport::kSharedMemory;
    if (rendezvous_.transport == RankTransport::kGloo || !(wanted || on_one_machine(members))) {
      return over_gloo(members);
    }
    std::string reason = "its ranks are not processes of one user on one machine";
    if (on_one_machine(members)) {
      try {
        return make_shared_memory_communicator(rendezvous_, members, shared_->groups);
      } catch (const SharedMemoryUnavailable& error) {
        reason = error.what();
      }
    }
    if (wanted) {
      throw std::runtime_error("group " + members.name + " cannot use shared memory: " + reason +
                               "; expected the transport auto or gloo");
    }
    if (rendezvous_.report && mesh_.rank() == 0 && !shared_->reported) {
      shared_->reported = true;
      rendezvous_.report("ranks exchange over Gloo, which is slower than shared memory: " + reason);
    }
    return over_gloo(members);
  }

 private:
  struct Shared {
    std::vector<std::string> places;  // of each world rank; empty with Gloo
    std::shared_ptr<RankGroups> groups = std::make_shared<RankGroups>();
    bool reported = false;
  };

  bool on_one_machine(const GroupMembers& members) const {
    const std::string& first = shared_->places[members.ranks.front()];
    return !first.empty() &&
           std::all_of(members.ranks.begin(), members.ranks.end(),
                       [&](int64_t rank) { return shared_->places[rank] == first; });
  }

  std::shared_ptr<Communicator> over_gloo(const GroupMembers& members) const {
    return make_gloo_communicator(rendezvous_.store, members.name, members.me, members.size(),
                                  rendezvous_.host, rendezvous_.timeout);
  }

  Mesh mesh_;
  GroupRendezvous rendezvous_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace

ProcessGroups::ProcessGroups(const Mesh& mesh, const Connect& tensors, const Connect& control,
                             c10::Device device, const std::vector<Axes>& more)
    : device_(device) {
  tensors_[axes::kNone] = make_single_rank_communicator();
  control_[axes::kNone] = tensors_[axes::kNone];
  for (const Axes axes : kGroups) {
    if (const Axes as = connected_as(axes, mesh); as != axes) {
      tensors_[axes] = tensors_[as];
      control_[axes] = control_[as];
      continue;
    }
    tensors_[axes] = tensors(axes);
    control_[axes] = control ? control(axes) : tensors_[axes];
  }
  for (const Axes axes : more) {
    if (!tensors_.contains(axes)) {
      tensors_[axes] = tensors(axes);
    }
  }
}

const std::shared_ptr<Communicator>& ProcessGroups::tensors(Axes axes) const {
  return find(tensors_, axes);
}

const std::shared_ptr<Communicator>& ProcessGroups::control(Axes axes) const {
  return find(control_, axes);
}

ProcessGroups single_rank_groups(c10::Device device) {
  return ProcessGroups(
      Mesh({}, 0), [alone = make_single_rank_communicator()](Axes) { return alone; }, nullptr,
      device);
}

std::string group_name(const Mesh& mesh, Axes axes) {
  std::string name;
  for (const auto& [axis, text] : kAxisNames) {
    if (axes.contains(axis)) {
      name += (name.empty() ? "" : "+") + std::string(text);
    }
  }
  return name + "/" + std::to_string(mesh.ranks(axes).front()) + "/";
}

ProcessGroups::Connect host_groups(const Mesh& mesh, const GroupRendezvous& rendezvous) {
  return HostGroups(mesh, rendezvous);
}

ProcessGroups connect_groups(const Mesh& mesh, const GroupRendezvous& rendezvous,
                             const std::vector<Axes>& more) {
  await_ranks(rendezvous, "world", mesh.rank(), mesh.size(axes::kWorld));
  return ProcessGroups(mesh, host_groups(mesh, rendezvous), nullptr, c10::Device(c10::kCPU), more);
}

}  // namespace ringside::sp
