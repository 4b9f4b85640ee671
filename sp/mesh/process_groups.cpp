#include "sp/mesh/process_groups.h"

#include <array>
#include <stdexcept>
#include <utility>

#include "sp/mesh/c10d_communicator.h"

namespace ringside::sp {
namespace {

struct NamedAxes {
  const char* name;
  Axes axes;
};

constexpr std::array<NamedAxes, 5> kGroups = {{{"world", axes::kLoss},
                                               {"sp", axes::kSp},
                                               {"dp", axes::kBatch},
                                               {"ring", axes::kRing},
                                               {"ulysses", axes::kUlysses}}};

const char* axes_name(Axes axes) {
  for (const NamedAxes& group : kGroups) {
    if (group.axes == axes) {
      return group.name;
    }
  }
  throw std::invalid_argument("no process group of these axes");
}

const std::shared_ptr<Communicator>& find(
    const std::map<Axes, std::shared_ptr<Communicator>>& groups, Axes axes) {
  const auto found = groups.find(axes);
  if (found == groups.end()) {
    throw std::invalid_argument("no process group of these axes");
  }
  return found->second;
}

}  // namespace

ProcessGroups::ProcessGroups(const Connect& tensors, const Connect& control, c10::Device device)
    : device_(device) {
  tensors_[axes::kNone] = make_single_rank_communicator();
  control_[axes::kNone] = tensors_[axes::kNone];
  for (const NamedAxes& group : kGroups) {
    tensors_[group.axes] = tensors(group.axes);
    control_[group.axes] = control ? control(group.axes) : tensors_[group.axes];
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
  return std::string(axes_name(axes)) + "/" + std::to_string(mesh.ranks(axes).front()) + "/";
}

ProcessGroups::Connect gloo_groups(const Mesh& mesh, const GroupRendezvous& rendezvous) {
  return [mesh, rendezvous](Axes axes) {
    return make_gloo_communicator(rendezvous.store, group_name(mesh, axes), mesh.coordinate(axes),
                                  mesh.size(axes), rendezvous.host, rendezvous.timeout);
  };
}

ProcessGroups connect_groups(const Mesh& mesh, const c10::intrusive_ptr<c10d::Store>& store,
                             const std::string& host, std::chrono::milliseconds timeout) {
  const GroupRendezvous rendezvous{store, host, timeout};
  await_ranks(rendezvous, "world", mesh.rank(), mesh.size(axes::kLoss));
  return ProcessGroups(gloo_groups(mesh, rendezvous));
}

}  // namespace ringside::sp
