#include "sp/mesh/process_groups.h"

#include <array>
#include <stdexcept>
#include <utility>

#include "sp/mesh/c10d_communicator.h"

namespace ringside::sp {
namespace {

constexpr std::array<Axes, 5> kGroups = {axes::kLoss, axes::kSp, axes::kBatch, axes::kRing,
                                         axes::kUlysses};

constexpr std::array<std::pair<Axis, const char*>, 6> kAxisNames = {
    {{Axis::kDpReplicate, "dp_replicate"},
     {Axis::kDpShard, "dp_shard"},
     {Axis::kRing, "ring"},
     {Axis::kUlysses, "ulysses"},
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

}  // namespace

ProcessGroups::ProcessGroups(const Connect& tensors, const Connect& control, c10::Device device,
                             const std::vector<Axes>& more)
    : device_(device) {
  tensors_[axes::kNone] = make_single_rank_communicator();
  control_[axes::kNone] = tensors_[axes::kNone];
  for (const Axes axes : kGroups) {
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
  return ProcessGroups([alone = make_single_rank_communicator()](Axes) { return alone; }, nullptr,
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

ProcessGroups::Connect gloo_groups(const Mesh& mesh, const GroupRendezvous& rendezvous) {
  return [mesh, rendezvous](Axes axes) {
    return make_gloo_communicator(rendezvous.store, group_name(mesh, axes), mesh.coordinate(axes),
                                  mesh.size(axes), rendezvous.host, rendezvous.timeout);
  };
}

ProcessGroups connect_groups(const Mesh& mesh, const c10::intrusive_ptr<c10d::Store>& store,
                             const std::string& host, std::chrono::milliseconds timeout,
                             const std::vector<Axes>& more) {
  const GroupRendezvous rendezvous{store, host, timeout};
  await_ranks(rendezvous, "world", mesh.rank(), mesh.size(axes::kLoss));
  return ProcessGroups(gloo_groups(mesh, rendezvous), nullptr, c10::Device(c10::kCPU), more);
}

}  // namespace ringside::sp
