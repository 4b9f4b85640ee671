#include "tests/support/standin/backend.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "tests/support/standin/kernel_view.h"
#include "tests/support/standin/machine.h"
#include "tests/support/standin/streams.h"

namespace ringside::standin {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// A launched collective or group call: its place in the fabric, the works, and the tensors that
// must live until the bytes are moved.
class Movement {
 public:
  explicit Movement(std::shared_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}

  void keep(const Tensors& tensors) { kept_.insert(kept_.end(), tensors.begin(), tensors.end()); }
  void started(WorkPtr work) { works_.push_back(std::move(work)); }
  void launch(int device, std::vector<Fabric::Part> parts) {
    launch_ = fabric_->launch(device, std::move(parts));
  }
  void complete() {
    fabric_->wait(*launch_);
    for (const WorkPtr& work : works_) {
      work->wait();
    }
    kept_.clear();
  }
  bool done() const {
    return fabric_->complete(*launch_) &&
           std::all_of(works_.begin(), works_.end(),
                       [](const WorkPtr& work) { return work->isCompleted(); });
  }

 private:
  std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<Fabric::Launch> launch_;
  std::vector<WorkPtr> works_;
  Tensors kept_;
};

// What Work::wait() orders the current stream after. Holds the tensors until then.
class StandinWork final : public c10d::Work {
 public:
  StandinWork(std::shared_ptr<Transfer> transfer, Clock end, int device, Tensors kept)
      : transfer_(std::move(transfer)),
        end_(std::move(end)),
        device_(device),
        kept_(std::move(kept)) {}

  bool isCompleted() override { return transfer_->done(); }
  bool isSuccess() const override { return transfer_->done(); }
  void synchronize() override {
    machine().accesses.join(current_stream(device_), end_);
    machine().in_flight.reap(device_);
    kept_.clear();
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }

 private:
  std::shared_ptr<Transfer> transfer_;
  Clock end_;
  int device_;
  Tensors kept_;
};

class StandinBackend final : public c10d::Backend {
 public:
  StandinBackend(std::shared_ptr<Fabric> fabric, std::string group, std::vector<int> devices,
                 c10::intrusive_ptr<c10d::Backend> mover)
      : Backend(mover->getRank(), mover->getSize()),
        fabric_(std::move(fabric)),
        group_(std::move(group)),
        devices_(std::move(devices)),
        mover_(std::move(mover)),
        stream_(new_stream(devices_.at(getRank()))) {
    machine().accesses.name_stream(stream_, "communicator " + group_);
  }

  const std::string getBackendName() const override { return "standin"; }
  bool supportsCoalescing() const override { return true; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return collective(
        "allreduce", tensors, tensors, options.asyncOp,
        [mover = mover_, options](auto in, auto) { return mover->allreduce(in, options); });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const bool root = options.rootRank == getRank();
    const Tensors none;
    return collective("broadcast from " + std::to_string(options.rootRank), root ? tensors : none,
                      root ? none : tensors, options.asyncOp,
                      [mover = mover_, options, root](auto in, auto out) {
                        return mover->broadcast(root ? in : out, options);
                      });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return collective(
        "reduce to " + std::to_string(options.rootRank), tensors, tensors, options.asyncOp,
        [mover = mover_, options](auto in, auto) { return mover->reduce(in, options); });
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in,
                          const c10d::AllgatherOptions& options) override {
    return collective("allgather", {in}, {out}, options.asyncOp,
                      [mover = mover_, options](auto ins, auto outs) {
                        return mover->_allgather_base(outs[0], ins[0], options);
                      });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& options) override {
    return collective("reduce_scatter", {in}, {out}, options.asyncOp,
                      [mover = mover_, options](auto ins, auto outs) {
                        return mover->_reduce_scatter_base(outs[0], ins[0], options);
                      });
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_splits,
                        std::vector<int64_t>& in_splits,
                        const c10d::AllToAllOptions& options) override {
    return collective(
        "alltoall", {in}, {out}, options.asyncOp,
        [mover = mover_, options, out_splits, in_splits](auto ins, auto outs) mutable {
          return mover->alltoall_base(outs[0], ins[0], out_splits, in_splits, options);
        },
        /*sizes_agree=*/false);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    const WorkPtr work =
        collective("barrier", {}, {}, /*async=*/true,
                   [mover = mover_, options](auto, auto) { return mover->barrier(options); });
    // NCCL's barrier is an all-reduce that the host waits for.
    machine().host_waits(stream_.device, machine().accesses.snapshot(stream_), "barrier");
    return work;
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return transfer(Fabric::Kind::kSend, tensors, to, tag);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return transfer(Fabric::Kind::kReceive, tensors, from, tag);
  }

  void startCoalescing() override {
    TORCH_CHECK(!grouped_, group_, ": startCoalescing inside a group call");
    grouped_.emplace();
  }
  WorkPtr endCoalescing() override {
    TORCH_CHECK(grouped_, group_, ": endCoalescing without startCoalescing");
    std::vector<Call> calls = std::move(*grouped_);
    grouped_.reset();
    return calls.empty() ? WorkPtr() : launch(std::move(calls), stream_);
  }

 private:
  struct Call {
    Fabric::Kind kind;
    std::string name;  // for reports
    std::string call;  // for matching
    Tensors reads, writes;
    std::vector<int> devices;
    size_t bytes = 0;
    std::function<WorkPtr(Tensors reads, Tensors writes)> start;
  };

  template <class Start>
  WorkPtr collective(const std::string& name, const Tensors& reads, const Tensors& writes,
                     bool async, Start start, bool sizes_agree = true) {
    check(name, reads);
    check(name, writes);
    const Tensors& sized = reads.empty() ? writes : reads;
    std::string call = name;
    if (sizes_agree && !sized.empty()) {
      call += c10::str(" of ", sized[0].numel(), " ", sized[0].scalar_type());
    }
    Call one{Fabric::Kind::kCollective, name, call, reads, writes, devices_, 0, std::move(start)};
    return submit(std::move(one), async);
  }

  WorkPtr transfer(Fabric::Kind kind, const Tensors& tensors, int peer, int tag) {
    const bool sends = kind == Fabric::Kind::kSend;
    const char* name = sends ? "send" : "receive";
    check(name, tensors);
    TORCH_CHECK(tensors.size() == 1, name, " takes one tensor, got ", tensors.size());
    Call one{kind,
             name,
             c10::str(name, " of ", tensors[0].numel(), " ", tensors[0].scalar_type()),
             sends ? tensors : Tensors(),
             sends ? Tensors() : tensors,
             {devices_.at(peer)},
             tensors[0].nbytes(),
             [mover = mover_, sends, peer, tag](Tensors in, Tensors out) {
               return sends ? mover->send(in, peer, tag) : mover->recv(out, peer, tag);
             }};
    return submit(std::move(one), /*async=*/true);
  }

  void check(const std::string& name, const Tensors& tensors) const {
    for (const at::Tensor& tensor : tensors) {
      TORCH_CHECK(tensor.is_privateuseone() && tensor.device().index() == stream_.device, name,
                  " [", group_, "]: expected a tensor on standin:", stream_.device, ", got one on ",
                  tensor.device());
      TORCH_CHECK(tensor.is_contiguous(), name, " [", group_,
                  "]: the tensor must be contiguous, its strides are ", tensor.strides());
    }
  }

  // NCCL orders its stream after the current one at the call, also inside a group.
  WorkPtr submit(Call call, bool async) {
    const StreamKey current = current_stream(stream_.device);
    machine().accesses.join(stream_, machine().accesses.snapshot(current));
    if (grouped_) {
      grouped_->push_back(std::move(call));
      return {};
    }
    return launch({std::move(call)}, async ? stream_ : current);
  }

  WorkPtr launch(std::vector<Call> calls, StreamKey stream) {
    auto movement = std::make_shared<Movement>(fabric_);
    std::vector<Fabric::Part> parts;
    std::vector<Use> reads, writes;
    Tensors kept;
    std::string name;
    for (const Call& call : calls) {
      const auto append = [&](const Tensors& tensors, std::vector<Use>& uses) {
        const auto more = uses_of(tensors);
        uses.insert(uses.end(), more.begin(), more.end());
        kept.insert(kept.end(), tensors.begin(), tensors.end());
      };
      append(call.reads, reads);
      append(call.writes, writes);
      name += (name.empty() ? "" : " + ") + call.name;
      machine().counters.kernel(stream.device, "c10d::" + call.name);
      parts.push_back(part_of(call, movement));
    }
    name += " [" + group_ + "]";
    const Moment moment = machine().begin(stream, name, reads, writes);
    movement->keep(kept);
    movement->launch(stream.device, std::move(parts));
    auto transfer = std::make_shared<Transfer>(
        name + " of standin:" + std::to_string(stream.device), reads, writes, moment,
        [movement] { movement->complete(); }, [movement] { return movement->done(); });
    machine().in_flight.add(transfer);
    return c10::make_intrusive<StandinWork>(transfer, machine().accesses.snapshot(stream),
                                            stream.device, std::move(kept));
  }

  Fabric::Part part_of(const Call& call, const std::shared_ptr<Movement>& movement) const {
    const auto views = [](const Tensors& tensors) {
      Tensors result;
      for (const at::Tensor& tensor : tensors) {
        result.push_back(kernel_view(tensor));
      }
      return result;
    };
    Fabric::Part part{call.kind, group_, call.call, call.devices, call.bytes, {}};
    // Weak: the movement holds the launch, which holds this.
    part.start = [start = call.start, in = views(call.reads), out = views(call.writes),
                  weak = std::weak_ptr<Movement>(movement)] {
      const auto alive = weak.lock();
      TORCH_CHECK(alive, "the launch was dropped, its tensors may be freed");
      alive->started(start(in, out));
    };
    return part;
  }

  std::shared_ptr<Fabric> fabric_;
  const std::string group_;
  const std::vector<int> devices_;
  c10::intrusive_ptr<c10d::Backend> mover_;
  const StreamKey stream_;
  std::optional<std::vector<Call>> grouped_;
};

}  // namespace

std::shared_ptr<Fabric> make_fabric(std::chrono::milliseconds deadline) {
  return std::make_shared<Fabric>(machine().reports, deadline);
}

void check_own_devices(const std::string& group, const std::vector<int>& devices) {
  TORCH_CHECK(std::set<int>(devices.begin(), devices.end()).size() == devices.size(), group,
              ": two ranks share a device; a communicator needs one for each");
}

c10::intrusive_ptr<c10d::Backend> make_backend(std::shared_ptr<Fabric> fabric, std::string group,
                                               std::vector<int> devices,
                                               c10::intrusive_ptr<c10d::Backend> mover) {
  TORCH_CHECK(static_cast<int>(devices.size()) == mover->getSize(), group, ": ", devices.size(),
              " devices for ", mover->getSize(), " ranks");
  check_own_devices(group, devices);
  return c10::make_intrusive<StandinBackend>(std::move(fabric), std::move(group),
                                             std::move(devices), std::move(mover));
}

}  // namespace ringside::standin
