#include "sp/mesh/shared_memory_communicator.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

namespace ringside::sp {
namespace {

const std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}

std::byte* mutable_data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

int64_t size_of(const at::Tensor& tensor) { return tensor.numel() * tensor.element_size(); }

void check_on_cpu(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu(), "shared memory carries tensors of the CPU, got ", tensor.device());
}

RowBytes all_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), size_of(tensor)};
}

// Only read through when it is sent.
RowBytes all_of_const(const at::Tensor& tensor) {
  return {const_cast<std::byte*>(data_of(tensor)), size_of(tensor)};
}

RowBytes rows_of(const RowParts& message) {
  std::vector<RowBytes::Part> parts;
  int64_t rows = 0;
  for (const at::Tensor& part : message) {
    const auto width = static_cast<int64_t>(part.element_size());
    if (part.numel() > 0) {
      rows = part.size(0);
      parts.push_back({const_cast<std::byte*>(data_of(part)), part.stride(0) * width,
                       part.numel() / rows * width});
    }
  }
  return {rows, std::move(parts)};
}

std::shared_ptr<const void> keep(std::vector<at::Tensor> tensors) {
  return std::make_shared<const std::vector<at::Tensor>>(std::move(tensors));
}

Reduce reduction_of(at::ScalarType dtype, bool sum) {
  return [dtype, sum](std::byte* out, const std::byte* a, const std::byte* b, int64_t elements) {
    const at::NoGradGuard data_only;
    const auto view = [&](const std::byte* data) {
      return at::from_blob(const_cast<std::byte*>(data), {elements}, at::TensorOptions(dtype));
    };
    at::Tensor result = view(out);
    sum ? at::add_out(result, view(a), view(b)) : at::maximum_out(result, view(a), view(b));
  };
}

class SharedMemoryTransfer final : public Transfer {
 public:
  SharedMemoryTransfer(std::shared_ptr<SharedMemoryGroup> group,
                       std::shared_ptr<SharedOperation> operation)
      : group_(std::move(group)), operation_(std::move(operation)) {}
  SharedMemoryTransfer(const SharedMemoryTransfer&) = delete;
  SharedMemoryTransfer& operator=(const SharedMemoryTransfer&) = delete;

  // Waits, because the group uses the buffers until the operation is done.
  ~SharedMemoryTransfer() override {
    try {
      wait();
    } catch (const std::exception&) {
      // Reached only while another error unwinds; that error is reported.
    }
  }

  void wait() override {
    if (const auto operation = std::exchange(operation_, nullptr)) {
      group_->wait(*operation);
    }
  }

 private:
  std::shared_ptr<SharedMemoryGroup> group_;
  std::shared_ptr<SharedOperation> operation_;
};

class SharedMemoryCommunicator final : public Communicator {
 public:
  explicit SharedMemoryCommunicator(std::shared_ptr<SharedMemoryGroup> group)
      : group_(std::move(group)) {
    for (int64_t p = 0; p < size(); ++p) {
      if (p != rank()) {
        others_.push_back(p);
      }
    }
  }

  int64_t rank() const override { return group_->members().me; }
  int64_t size() const override { return group_->members().size(); }

 protected:
  std::unique_ptr<Transfer> do_start_all_reduce(at::Tensor& tensor, Reduction reduction) override {
    check_on_cpu(tensor);
    return start(
        std::make_shared<ReductionOperation>(
            ReductionInput{mutable_data_of(tensor), tensor.numel(),
                           static_cast<int64_t>(tensor.element_size())},
            rank(), size(), reduction_of(tensor.scalar_type(), reduction == Reduction::kSum),
            keep({tensor})),
        others_, others_);
  }

  std::unique_ptr<Transfer> do_start_all_to_all(at::Tensor& receive, at::Tensor& send,
                                                const std::vector<int64_t>& receive_counts,
                                                const std::vector<int64_t>& send_counts) override {
    check_on_cpu(send);
    check_on_cpu(receive);
    const auto operation = messages(MessageKind::kAllToAll, {send, receive});
    const auto width = static_cast<int64_t>(send.element_size());
    const std::byte* from = data_of(send);
    std::byte* to = mutable_data_of(receive);
    for (int64_t p = 0; p < size(); ++p) {
      if (p == rank()) {
        TORCH_CHECK(send_counts[p] == receive_counts[p], "rank ", p, " sends itself ",
                    send_counts[p], " elements and expects ", receive_counts[p]);
        copy(to, from, send_counts[p] * width);
      } else {
        operation->add_send(p, {const_cast<std::byte*>(from), send_counts[p] * width});
        operation->add_receive(p, {to, receive_counts[p] * width});
      }
      from += send_counts[p] * width;
      to += receive_counts[p] * width;
    }
    return start(operation, others_, others_);
  }

  // Straight from the tensors' rows to the tensors' rows.
  std::unique_ptr<Transfer> do_start_row_exchange(const std::vector<RowParts>& send,
                                                  const std::vector<RowParts>& receive) override {
    std::vector<at::Tensor> tensors;
    for (const auto* messages : {&send, &receive}) {
      for (const RowParts& message : *messages) {
        for (const at::Tensor& part : message) {
          check_on_cpu(part);
          tensors.push_back(part);
        }
      }
    }
    const auto operation = messages(MessageKind::kAllToAll, std::move(tensors));
    for (const int64_t p : others_) {
      operation->add_send(p, rows_of(send[p]));
      operation->add_receive(p, rows_of(receive[p]));
    }
    auto transfer = start(operation, others_, others_);
    copy_rows(rows_of(send[rank()]), rows_of(receive[rank()]));
    return transfer;
  }

  std::unique_ptr<Transfer> do_start_all_gather(at::Tensor& gathered,
                                                const at::Tensor& tensor) override {
    check_on_cpu(tensor);
    check_on_cpu(gathered);
    const auto operation = messages(MessageKind::kAllGather, {tensor, gathered});
    const int64_t bytes = size_of(tensor);
    std::byte* const to = mutable_data_of(gathered);
    copy(to + rank() * bytes, data_of(tensor), bytes);
    for (const int64_t p : others_) {
      operation->add_send(p, all_of_const(tensor));
      operation->add_receive(p, {to + p * bytes, bytes});
    }
    return start(operation, others_, others_);
  }

  void do_broadcast(at::Tensor& tensor, int64_t root) override {
    check_on_cpu(tensor);
    const auto operation = messages(MessageKind::kBroadcast, {tensor});
    if (rank() != root) {
      operation->add_receive(root, all_of(tensor));
      start(operation, {}, {root})->wait();
      return;
    }
    for (const int64_t p : others_) {
      operation->add_send(p, all_of_const(tensor));
    }
    start(operation, others_, {})->wait();
  }

  std::unique_ptr<Transfer> do_send_recv(const at::Tensor& send, int64_t to, at::Tensor& receive,
                                         int64_t from) override {
    check_on_cpu(send);
    check_on_cpu(receive);
    const auto operation = messages(MessageKind::kTransfer, {send, receive});
    operation->add_send(to, all_of_const(send));
    operation->add_receive(from, all_of(receive));
    return start(operation, {to}, {from});
  }

  std::vector<std::unique_ptr<Transfer>> do_start_transfers(
      std::span<const PointToPoint> transfers) override {
    std::vector<std::unique_ptr<Transfer>> started;
    for (const PointToPoint& one : transfers) {
      check_on_cpu(one.tensor);
      const auto operation = messages(MessageKind::kTransfer, {one.tensor});
      if (one.kind == PointToPoint::Kind::kSend) {
        operation->add_send(one.peer, all_of_const(one.tensor));
        started.push_back(start(operation, {one.peer}, {}));
      } else {
        operation->add_receive(one.peer, all_of(one.tensor));
        started.push_back(start(operation, {}, {one.peer}));
      }
    }
    return started;
  }

 private:
  std::shared_ptr<MessageOperation> messages(MessageKind kind, std::vector<at::Tensor> tensors) {
    return std::make_shared<MessageOperation>(kind, size(), keep(std::move(tensors)));
  }

  static void copy(std::byte* to, const std::byte* from, int64_t bytes) {
    if (bytes > 0) {
      std::memcpy(to, from, static_cast<std::size_t>(bytes));
    }
  }

  std::unique_ptr<Transfer> start(std::shared_ptr<SharedOperation> operation,
                                  const std::vector<int64_t>& send_to,
                                  const std::vector<int64_t>& receive_from) {
    group_->start(operation, send_to, receive_from);
    return std::make_unique<SharedMemoryTransfer>(group_, std::move(operation));
  }

  std::shared_ptr<SharedMemoryGroup> group_;
  std::vector<int64_t> others_;
};

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> raw(const std::string& text) { return {text.begin(), text.end()}; }

// This rank's segment. Member 0 makes it and tells the others where it is, or "" when it cannot.
std::unique_ptr<SharedSegment> open_segment(const GroupRendezvous& rendezvous,
                                            const GroupMembers& members) {
  c10d::Store& store = *rendezvous.store;
  const std::string key = "shared memory/" + members.name + "/segment";
  const int64_t bytes = SharedMemoryGroup::segment_bytes(members.size());
  if (members.me > 0) {
    store.wait({key}, rendezvous.timeout);
    const std::string address = text_of(store.get(key));
    return address.empty() ? nullptr : SharedSegment::open(address, bytes);
  }
  try {
    auto segment = SharedSegment::create(bytes);
    store.set(key, raw(segment->address()));
    return segment;
  } catch (const std::system_error&) {
    store.set(key, std::vector<uint8_t>{});
    throw;
  }
}

// The reasons of the members that could not join, in their order; "" when all could. mine: this
// rank's, or "".
std::string reasons_of_all(const GroupRendezvous& rendezvous, const GroupMembers& members,
                           const std::string& mine) {
  c10d::Store& store = *rendezvous.store;
  const auto key = [&](int64_t member) {
    return "shared memory/" + members.name + "/joined/" + std::to_string(member);
  };
  store.set(key(members.me), raw(mine));
  std::string reasons;
  for (int64_t p = 0; p < members.size(); ++p) {
    store.wait({key(p)}, rendezvous.timeout);
    const std::string reason = text_of(store.get(key(p)));
    if (!reason.empty()) {
      reasons += (reasons.empty() ? "rank " : "; rank ") + std::to_string(members.ranks[p]) + ": " +
                 reason;
    }
  }
  return reasons;
}

}  // namespace

std::shared_ptr<Communicator> make_shared_memory_communicator(
    const GroupRendezvous& rendezvous, const GroupMembers& members,
    const std::shared_ptr<RankGroups>& mine) {
  if (members.size() == 1) {
    return make_single_rank_communicator();
  }
  std::shared_ptr<SharedMemoryGroup> group;
  std::string reason;
  try {
    if (auto segment = open_segment(rendezvous, members)) {
      group = std::make_shared<SharedMemoryGroup>(std::move(segment), members, rendezvous.timeout,
                                                  mine);
    }
  } catch (const std::system_error& error) {
    reason = error.what();
  } catch (const std::invalid_argument& error) {
    reason = error.what();
  }
  const std::string reasons = reasons_of_all(rendezvous, members, reason);
  if (!reasons.empty()) {
    throw SharedMemoryUnavailable("group " + members.name + ": " + reasons);
  }
  mine->add(group);
  return std::make_shared<SharedMemoryCommunicator>(std::move(group));
}

}  // namespace ringside::sp
