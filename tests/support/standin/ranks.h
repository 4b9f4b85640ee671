// Ranks as threads, each with a stand-in device of its own and communicators with NCCL's rules.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "engine/device/rank_thread.h"
#include "sp/mesh/c10d_communicator.h"
#include "sp/mesh/process_groups.h"
#include "tests/support/memory_backend.h"
#include "tests/support/ranks.h"
#include "tests/support/standin/backend.h"
#include "tests/support/standin/standin.h"

namespace ringside::standin {

// Joins a group of `size` ranks whose i-th rank has device devices[i].
// Blocks: until all ranks have called with the same store and name.
// Throws: as check_own_devices(), at once.
inline c10::intrusive_ptr<c10d::Backend> connect_backend(
    const std::shared_ptr<Fabric>& fabric, const c10::intrusive_ptr<c10d::Store>& store,
    const std::string& name, int rank, std::vector<int> devices) {
  check_own_devices(name, devices);  // before a rank can lose the connection of one that throws
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(30));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>("standin/" + name, store), rank,
      static_cast<int>(devices.size()), options);
  return make_backend(fabric, name, std::move(devices), gloo);
}

// Joins a group whose i-th rank has device devices[i], as this rank of it.
using ConnectBackend = std::function<c10::intrusive_ptr<c10d::Backend>(
    const std::string& name, int rank, std::vector<int> devices)>;

using RankBody = std::function<void(const sp::Mesh&, const sp::ProcessGroups&, c10::Device)>;

// Runs `body` as the rank of `mesh`, on device standin:rank.
inline void run_standin_rank(const sp::Mesh& mesh, const sp::ProcessGroups& control,
                             const ConnectBackend& connect, const RankBody& body,
                             const std::vector<sp::Axes>& more) {
  const c10::Device here = device(static_cast<int>(mesh.rank()));
  const engine::RankThread thread(here);
  int made = 0;
  const sp::ProcessGroups groups(
      mesh,
      [&](sp::Axes axes) -> std::shared_ptr<sp::Communicator> {
        const std::vector<int64_t> ranks = mesh.ranks(axes);
        const std::string name =
            "group " + std::to_string(made++) + " of rank " + std::to_string(ranks.front());
        if (ranks.size() == 1) {
          return sp::make_single_rank_communicator();
        }
        return sp::make_c10d_communicator(
            connect(name, static_cast<int>(mesh.coordinate(axes)), {ranks.begin(), ranks.end()}));
      },
      [&](sp::Axes axes) { return control.control(axes); }, here, more);
  body(mesh, groups, here);
}

// Runs `body` once per rank, as test::run_ranks does. Rank r has device standin:r; `tensors` of its
// groups are stand-in communicators, `control` is Gloo. deadline: of collectives that do not match.
inline void run_standin_ranks(sp::MeshShape shape, const RankBody& body,
                              std::chrono::milliseconds deadline = std::chrono::seconds(20),
                              const std::vector<sp::Axes>& more = test::fully_sharded_axes()) {
  const auto fabric = make_fabric(deadline);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  test::run_ranks(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& control) {
    const auto connect = [&](const std::string& name, int rank, std::vector<int> devices) {
      return connect_backend(fabric, store, name, rank, std::move(devices));
    };
    run_standin_rank(mesh, control, connect, body, more);
  });
}

// run_standin_ranks() with shared memory in place of Gloo, as test::run_ranks_in_memory(): a rank
// that waits for Gloo keeps a core busy. Sums have the bits of test::run_ranks_in_memory().
inline void run_standin_ranks_in_memory(
    sp::MeshShape shape, const RankBody& body,
    std::chrono::milliseconds deadline = std::chrono::seconds(20),
    const std::vector<sp::Axes>& more = test::fully_sharded_axes()) {
  const auto fabric = make_fabric(deadline);
  const auto hub = std::make_shared<test::MemoryHub>(std::chrono::seconds(60));
  test::run_ranks_in_memory(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& control) {
    const auto connect = [&](const std::string& name, int rank, std::vector<int> devices) {
      const auto size = static_cast<int>(devices.size());
      return make_backend(fabric, name, std::move(devices),
                          c10::make_intrusive<test::MemoryBackend>(hub, name, rank, size));
    };
    run_standin_rank(mesh, control, connect, body, more);
  });
}

}  // namespace ringside::standin
