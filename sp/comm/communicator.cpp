#include "sp/comm/communicator.h"

#include <ATen/ATen.h>

#include <numeric>

namespace ringside::sp {
namespace {

int64_t bytes_of(const at::Tensor& tensor) { return tensor.numel() * tensor.element_size(); }

class FinishedTransfer final : public Transfer {
 public:
  void wait() override {}
};

class SingleRankCommunicator final : public Communicator {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }

 protected:
  // Communicator answers for a group of one before it comes to these.
  void do_all_reduce(at::Tensor&, Reduction) override {}
  void do_all_to_all(at::Tensor&, at::Tensor&, const std::vector<int64_t>&,
                     const std::vector<int64_t>&) override {}
  void do_all_gather(at::Tensor&, const at::Tensor&) override {}
  void do_broadcast(at::Tensor&, int64_t) override {}
  std::unique_ptr<Transfer> do_send_recv(const at::Tensor&, int64_t, at::Tensor&,
                                         int64_t) override {
    return std::make_unique<FinishedTransfer>();
  }
};

}  // namespace

void Communicator::all_reduce(at::Tensor& tensor, Reduction reduction, const std::string& tag) {
  TORCH_CHECK(tensor.is_contiguous(), "all_reduce of a tensor that is not contiguous: ", tensor.sizes());
  if (size() == 1 || tensor.numel() == 0) {
    return;
  }
  sent_bytes_[tag] += 2 * (size() - 1) * bytes_of(tensor) / size();
  do_all_reduce(tensor, reduction);
}

void Communicator::all_reduce_sum(at::Tensor& tensor, const std::string& tag) {
  all_reduce(tensor, Reduction::kSum, tag);
}

void Communicator::all_reduce_max(at::Tensor& tensor, const std::string& tag) {
  all_reduce(tensor, Reduction::kMax, tag);
}

at::Tensor Communicator::all_to_all(const at::Tensor& send, const std::vector<int64_t>& send_counts,
                                    const std::vector<int64_t>& recv_counts, const std::string& tag) {
  const auto total = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  TORCH_CHECK(static_cast<int64_t>(send_counts.size()) == size() &&
                  static_cast<int64_t>(recv_counts.size()) == size(),
              "all_to_all needs ", size(), " counts each way, got ", send_counts.size(), " and ",
              recv_counts.size());
  TORCH_CHECK(send.dim() == 1 && send.is_contiguous() && send.numel() == total(send_counts),
              "all_to_all sends a contiguous 1-D tensor of ", total(send_counts), " elements, got ",
              send.sizes());
  if (size() == 1) {
    return send;
  }
  sent_bytes_[tag] += (send.numel() - send_counts[rank()]) * send.element_size();
  at::Tensor receive = at::empty({total(recv_counts)}, send.options());
  at::Tensor input = send;
  do_all_to_all(receive, input, recv_counts, send_counts);
  return receive;
}

at::Tensor Communicator::all_gather(const at::Tensor& tensor, const std::string& tag) {
  if (size() == 1) {
    return tensor.unsqueeze(0);
  }
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape.insert(shape.begin(), size());
  at::Tensor gathered = at::empty(shape, tensor.options());
  if (tensor.numel() > 0) {
    sent_bytes_[tag] += (size() - 1) * bytes_of(tensor);
    do_all_gather(gathered, tensor.contiguous());
  }
  return gathered;
}

void Communicator::broadcast(at::Tensor& tensor, int64_t root, const std::string& tag) {
  TORCH_CHECK(root >= 0 && root < size(), "broadcast from rank ", root, " of ", size());
  TORCH_CHECK(tensor.is_contiguous(), "broadcast of a tensor that is not contiguous: ", tensor.sizes());
  if (size() == 1 || tensor.numel() == 0) {
    return;
  }
  if (rank() == root) {
    sent_bytes_[tag] += (size() - 1) * bytes_of(tensor);
  }
  do_broadcast(tensor, root);
}

std::unique_ptr<Transfer> Communicator::send_recv(const at::Tensor& send, int64_t to,
                                                  at::Tensor& receive, int64_t from,
                                                  const std::string& tag) {
  TORCH_CHECK(to != rank() && from != rank(), "rank ", rank(), " cannot send to or receive from itself");
  TORCH_CHECK(send.is_contiguous() && receive.is_contiguous(), "send_recv needs contiguous tensors");
  sent_bytes_[tag] += bytes_of(send);
  return do_send_recv(send, to, receive, from);
}

std::shared_ptr<Communicator> make_single_rank_communicator() {
  return std::make_shared<SingleRankCommunicator>();
}

}  // namespace ringside::sp
