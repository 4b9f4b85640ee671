#include "sp/mesh/nccl_groups.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <nccl.h>

#include <exception>
#include <map>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "sp/mesh/c10d_communicator.h"

// ProcessGroupNCCL's options embed NCCL's configuration: another header lays them out differently
// than the library does.
static_assert(NCCL_VERSION_CODE == 22809, "torch 2.11 is built with NCCL 2.28.9");

namespace ringside::sp {
namespace {

using NcclGroup = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;
using NcclOptions = c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options>;

NcclOptions blocking_options(std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  // A group that is bound to a device would otherwise be initialised in the background, where an
  // error shows at the first collective only.
  options->config.blocking = 1;
  return options;
}

NcclGroup connect(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                  c10::Device device, const NcclOptions& options) {
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, static_cast<int>(rank),
                                                           static_cast<int>(size), options);
  group->setBoundDeviceId(device);
  group->eagerConnectSingleDevice(device);
  return group;
}

// A group that ends its work when its last communicator goes.
class OwnedGroup {
 public:
  explicit OwnedGroup(NcclGroup group) : group_(std::move(group)) {}
  OwnedGroup(const OwnedGroup&) = delete;
  OwnedGroup& operator=(const OwnedGroup&) = delete;
  // While an exception is in flight the peers may be gone: the group's own destructor then aborts
  // what is pending.
  ~OwnedGroup() {
    if (std::uncaught_exceptions() > 0) {
      return;
    }
    try {
      group_->shutdown();
    } catch (const std::exception&) {
      // Every result that was waited for is there; the destructor aborts the rest.
    }
  }

  const NcclGroup& get() const { return group_; }

 private:
  NcclGroup group_;
};

// The groups of one mesh on one device, by their world ranks.
class MeshGroups {
 public:
  MeshGroups(Mesh mesh, GroupRendezvous rendezvous, c10::Device device)
      : mesh_(std::move(mesh)), rendezvous_(std::move(rendezvous)), device_(device) {}

  std::shared_ptr<Communicator> communicator(Axes axes) {
    if (mesh_.size(axes) == 1) {
      return make_single_rank_communicator();
    }
    const c10::DeviceGuard on_device(device_);
    const std::shared_ptr<OwnedGroup> group = find_or_connect(axes);
    // The communicator is destroyed before the group that it uses.
    struct Owner {
      std::shared_ptr<OwnedGroup> group;
      std::shared_ptr<Communicator> communicator;
    };
    const auto owner = std::make_shared<Owner>(Owner{group, make_c10d_communicator(group->get())});
    return {owner, owner->communicator.get()};
  }

 private:
  std::shared_ptr<OwnedGroup> find_or_connect(Axes axes) {
    const std::vector<int64_t> ranks = mesh_.ranks(axes);
    std::weak_ptr<OwnedGroup>& known = groups_[ranks];
    std::shared_ptr<OwnedGroup> group = known.lock();
    if (group) {
      return group;
    }
    if (world_) {
      group = std::make_shared<OwnedGroup>(split(axes, ranks));
    } else {
      TORCH_CHECK(axes == axes::kWorld,
                  "the world's NCCL group comes first: the others are split from it");
      world_ = connect_world();
      group = std::make_shared<OwnedGroup>(world_);
    }
    known = group;
    warm_up(group->get(), axes);
    return group;
  }

  NcclGroup connect_world() const {
    auto group = make_nccl_process_group(
        c10::make_intrusive<c10d::PrefixStore>("nccl/", rendezvous_.store), mesh_.rank(),
        mesh_.size(axes::kWorld), device_, rendezvous_.timeout);
    return c10::static_intrusive_pointer_cast<c10d::ProcessGroupNCCL>(group);
  }

  // Every rank of the world splits, each into the group that it is in: the sub-meshes of one set
  // of axes cover the world.
  NcclGroup split(Axes axes, const std::vector<int64_t>& ranks) const {
    const std::string name = "nccl/" + group_name(mesh_, axes);
    auto options = blocking_options(rendezvous_.timeout);
    options->split_from = world_;
    options->split_color = static_cast<int>(ranks.front());
    options->group_name = name;
    options->global_ranks_in_group.assign(ranks.begin(), ranks.end());
    return connect(c10::make_intrusive<c10d::PrefixStore>(name, rendezvous_.store),
                   mesh_.coordinate(axes), mesh_.size(axes), device_, options);
  }

  void warm_up(const NcclGroup& group, Axes axes) const {
    at::Tensor one = at::ones({1}, at::TensorOptions().device(device_).dtype(at::kFloat));
    make_c10d_communicator(group)->all_reduce_sum(one, "warm_up");
    const float sum = one.item<float>();
    TORCH_CHECK(sum == static_cast<float>(group->getSize()), "NCCL group ", group_name(mesh_, axes),
                ": the sum of 1 over its ranks is ", sum, ", not ", group->getSize());
  }

  Mesh mesh_;
  GroupRendezvous rendezvous_;
  c10::Device device_;
  NcclGroup world_;
  std::map<std::vector<int64_t>, std::weak_ptr<OwnedGroup>> groups_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_process_group(
    const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size, c10::Device device,
    std::chrono::milliseconds timeout) {
  TORCH_CHECK(device.is_cuda() && device.has_index(),
              "an NCCL group needs a CUDA device with an index, got ", device);
  return connect(store, rank, size, device, blocking_options(timeout));
}

ProcessGroups::Connect nccl_groups(const Mesh& mesh, const GroupRendezvous& rendezvous,
                                   c10::Device device) {
  return [groups = std::make_shared<MeshGroups>(mesh, rendezvous, device)](Axes axes) {
    return groups->communicator(axes);
  };
}

}  // namespace ringside::sp
