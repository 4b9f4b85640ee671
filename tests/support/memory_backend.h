// c10d backend whose ranks are threads of one process: bytes pass through a MemoryHub, as with
// MemoryCommunicator. Sums are in rank order.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "tests/support/memory_groups.h"

namespace ringside::test {

// A call whose data is taken by wait(). isCompleted() is true from the start: what is waited for
// needs no work of this rank.
class MemoryWork final : public c10d::Work {
 public:
  // receive: waits for the data and stores it.
  explicit MemoryWork(std::function<void()> receive) : transfer_(std::move(receive)) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    transfer_.wait();
    return true;
  }

 private:
  MemoryTransfer transfer_;
};

// One rank's end of a group. Tensors: on the CPU. Ranks must make their calls of a group in the
// same order. Throws: as MemoryHub::take, from wait(); c10::Error for a reduction other than sum
// and maximum and when the ranks' sizes differ.
class MemoryBackend final : public c10d::Backend {
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

 public:
  // group: equal on its ranks, and no other group's of the hub.
  MemoryBackend(std::shared_ptr<MemoryHub> hub, std::string group, int rank, int size)
      : Backend(rank, size), hub_(std::move(hub)), group_(std::move(group)) {}

  const std::string getBackendName() const override { return "memory"; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return exchange(tensors.at(0), [out = tensors[0], op = options.reduceOp](const Tensors& all) {
      out.copy_(reduced(all, op));
    });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return exchange(tensors.at(0), [out = tensors[0], op = options.reduceOp,
                                    is_root = options.rootRank == getRank()](const Tensors& all) {
      if (is_root) {
        out.copy_(reduced(all, op));
      }
    });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& options) override {
    return exchange(in, [out, op = options.reduceOp, rank = getRank()](const Tensors& all) {
      out.copy_(reduced(all, op).view({static_cast<int64_t>(all.size()), -1})[rank].view_as(out));
    });
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions&) override {
    return exchange(in, [out](const Tensors& all) {
      const at::Tensor rows = out.view({static_cast<int64_t>(all.size()), -1});
      for (std::size_t p = 0; p < all.size(); ++p) {
        rows[static_cast<int64_t>(p)].copy_(all[p].view({-1}));
      }
    });
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_splits,
                        std::vector<int64_t>& in_splits, const c10d::AllToAllOptions&) override {
    const int64_t call = collectives_++;
    const std::vector<at::Tensor> parts = split(in, in_splits);
    for (int p = 0; p < getSize(); ++p) {
      hub_->post({name_of_pair(getRank(), p), call, getRank()}, {parts[p].clone()}, 1);
    }
    std::vector<MemoryHub::Key> keys;
    for (int p = 0; p < getSize(); ++p) {
      keys.emplace_back(name_of_pair(p, getRank()), call, p);
    }
    return c10::make_intrusive<MemoryWork>([hub = hub_, keys, to = split(out, out_splits)] {
      for (std::size_t p = 0; p < keys.size(); ++p) {
        to[p].copy_(hub->take(keys[p]).values);
      }
    });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const at::Tensor x = tensors.at(0);
    const MemoryHub::Key key{group_ + "collective", collectives_++, options.rootRank};
    if (options.rootRank == getRank()) {
      hub_->post(key, {x.clone()}, getSize() - 1);
      return c10::make_intrusive<MemoryWork>([] {});
    }
    return c10::make_intrusive<MemoryWork>(
        [hub = hub_, key, x] { x.copy_(hub->take(key).values); });
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override {
    return exchange(at::zeros({1}), [](const Tensors&) {});
  }
  WorkPtr send(Tensors& tensors, int to, int) override {
    hub_->post({group_ + "to " + std::to_string(to), sent_[to]++, getRank()},
               {tensors.at(0).clone()}, 1);
    return c10::make_intrusive<MemoryWork>([] {});
  }
  WorkPtr recv(Tensors& tensors, int from, int) override {
    const MemoryHub::Key key{group_ + "to " + std::to_string(getRank()), received_[from]++, from};
    return c10::make_intrusive<MemoryWork>(
        [hub = hub_, key, x = tensors.at(0)] { x.copy_(hub->take(key).values.view_as(x)); });
  }

 private:
  static at::Tensor reduced(const Tensors& all, const c10d::ReduceOp& op) {
    TORCH_CHECK(op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::MAX,
                "a reduction that ranks in memory do not have");
    at::Tensor result = all[0].clone();
    for (std::size_t p = 1; p < all.size(); ++p) {
      op == c10d::ReduceOp::SUM ? result.add_(all[p]) : at::maximum_out(result, result, all[p]);
    }
    return result;
  }

  // Equal parts without sizes. Rows, as c10d counts them.
  std::vector<at::Tensor> split(const at::Tensor& x, const std::vector<int64_t>& sizes) const {
    return sizes.empty() ? x.chunk(getSize()) : x.split_with_sizes(sizes);
  }
  std::string name_of_pair(int from, int to) const {
    return group_ + std::to_string(from) + " to all, " + std::to_string(to);
  }

  // Sends `x` to every rank, and calls `receive` with those of all when they are waited for.
  template <class Receive>
  WorkPtr exchange(const at::Tensor& x, Receive receive) {
    const int64_t call = collectives_++;
    const std::string name = group_ + "collective";
    hub_->post({name, call, getRank()}, {x.detach().clone()}, getSize());
    return c10::make_intrusive<MemoryWork>([hub = hub_, name, call, size = getSize(), receive] {
      Tensors all;
      for (int p = 0; p < size; ++p) {
        all.push_back(hub->take({name, call, p}).values);
      }
      receive(all);
    });
  }

  std::shared_ptr<MemoryHub> hub_;
  const std::string group_;
  int64_t collectives_ = 0;
  std::map<int, int64_t> sent_, received_;  // by peer
};

}  // namespace ringside::test
