#include "sp/mesh/communicator.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

#include <numeric>

namespace ringside::sp {
namespace {

int64_t bytes_of(const at::Tensor& tensor) { return tensor.numel() * tensor.element_size(); }

int64_t total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

class FinishedTransfer final : public Transfer {
 public:
  void wait() override {}
};

class SingleRankCommunicator final : public Communicator {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }

 protected:
  // Unreachable: Communicator handles a group of one before it calls these.
  std::unique_ptr<Transfer> do_start_all_reduce(at::Tensor&, Reduction) override {
    return std::make_unique<FinishedTransfer>();
  }
  std::unique_ptr<Transfer> do_start_all_to_all(at::Tensor&, at::Tensor&,
                                                const std::vector<int64_t>&,
                                                const std::vector<int64_t>&) override {
    return std::make_unique<FinishedTransfer>();
  }
  std::unique_ptr<Transfer> do_start_all_gather(at::Tensor&, const at::Tensor&) override {
    return std::make_unique<FinishedTransfer>();
  }
  void do_broadcast(at::Tensor&, int64_t) override {}
  std::unique_ptr<Transfer> do_send_recv(const at::Tensor&, int64_t, at::Tensor&,
                                         int64_t) override {
    return std::make_unique<FinishedTransfer>();
  }
};

}  // namespace

std::unique_ptr<Transfer> Communicator::start_all_reduce(at::Tensor& tensor, Reduction reduction,
                                                         const std::string& tag) {
  TORCH_CHECK(tensor.is_contiguous(),
              "all_reduce of a tensor that is not contiguous: ", tensor.sizes());
  if (size() == 1 || tensor.numel() == 0) {
    return std::make_unique<FinishedTransfer>();
  }
  sent_bytes_[tag] += 2 * (size() - 1) * bytes_of(tensor) / size();
  return do_start_all_reduce(tensor, reduction);
}

void Communicator::all_reduce_sum(at::Tensor& tensor, const std::string& tag) {
  start_all_reduce(tensor, Reduction::kSum, tag)->wait();
}

std::unique_ptr<Transfer> Communicator::start_all_reduce_sum(at::Tensor& tensor,
                                                             const std::string& tag) {
  return start_all_reduce(tensor, Reduction::kSum, tag);
}

void Communicator::all_reduce_max(at::Tensor& tensor, const std::string& tag) {
  start_all_reduce(tensor, Reduction::kMax, tag)->wait();
}

void Communicator::check_exchange(const at::Tensor& send, const std::vector<int64_t>& send_counts,
                                  const std::vector<int64_t>& recv_counts) const {
  TORCH_CHECK(static_cast<int64_t>(send_counts.size()) == size() &&
                  static_cast<int64_t>(recv_counts.size()) == size(),
              "all_to_all needs ", size(), " counts each way, got ", send_counts.size(), " and ",
              recv_counts.size());
  TORCH_CHECK(send.dim() == 1 && send.is_contiguous() && send.numel() == total(send_counts),
              "all_to_all sends a contiguous 1-D tensor of ", total(send_counts), " elements, got ",
              send.sizes());
}

at::Tensor Communicator::all_to_all(const at::Tensor& send, const std::vector<int64_t>& send_counts,
                                    const std::vector<int64_t>& recv_counts,
                                    const std::string& tag) {
  check_exchange(send, send_counts, recv_counts);
  if (size() == 1) {
    return send;
  }
  at::Tensor receive = at::empty({total(recv_counts)}, send.options());
  start_all_to_all(send, send_counts, receive, recv_counts, tag)->wait();
  return receive;
}

std::unique_ptr<Transfer> Communicator::start_all_to_all(const at::Tensor& send,
                                                         const std::vector<int64_t>& send_counts,
                                                         at::Tensor& receive,
                                                         const std::vector<int64_t>& recv_counts,
                                                         const std::string& tag) {
  check_exchange(send, send_counts, recv_counts);
  TORCH_CHECK(receive.dim() == 1 && receive.is_contiguous() &&
                  receive.numel() == total(recv_counts) &&
                  receive.scalar_type() == send.scalar_type(),
              "all_to_all receives a contiguous 1-D ", send.scalar_type(), " tensor of ",
              total(recv_counts), " elements, got ", receive.scalar_type(), " ", receive.sizes());
  if (size() == 1) {
    receive.copy_(send);
    return std::make_unique<FinishedTransfer>();
  }
  sent_bytes_[tag] += (send.numel() - send_counts[rank()]) * send.element_size();
  at::Tensor input = send;
  return do_start_all_to_all(receive, input, recv_counts, send_counts);
}

void Communicator::check_rows(const at::Tensor& rows, int64_t expected,
                              const std::vector<int64_t>& rows_of) const {
  TORCH_CHECK(static_cast<int64_t>(rows_of.size()) == size(), "row counts for ", rows_of.size(),
              " ranks in a group of ", size());
  TORCH_CHECK(rows.dim() >= 1 && rows.size(0) == expected, "rank ", rank(), " of row counts ",
              rows_of, " passes ", expected, " rows, got shape ", rows.sizes());
}

at::Tensor Communicator::all_gather_rows(const at::Tensor& rows,
                                         const std::vector<int64_t>& rows_of,
                                         const std::string& tag) {
  check_rows(rows, rank() < static_cast<int64_t>(rows_of.size()) ? rows_of[rank()] : 0, rows_of);
  if (size() == 1) {
    return rows;
  }
  const at::NoGradGuard data_only;
  const int64_t P = size(), me = rank();
  const at::Tensor send = rows.contiguous();
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[0] = total(rows_of);
  const at::Tensor gathered = at::empty(shape, rows.options());
  std::vector<at::Tensor> parts = gathered.split_with_sizes(rows_of);
  parts[me].copy_(send);
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int64_t step = 1; step < P; ++step) {
    const int64_t from = (me + P - step) % P;
    transfers.push_back(send_recv(send, (me + step) % P, parts[from], from, tag));
  }
  for (const auto& transfer : transfers) {
    transfer->wait();
  }
  return gathered;
}

at::Tensor Communicator::reduce_scatter_rows(const at::Tensor& full,
                                             const std::vector<int64_t>& rows_of,
                                             const std::string& tag) {
  check_rows(full, total(rows_of), rows_of);
  if (size() == 1) {
    return full;
  }
  const at::NoGradGuard data_only;
  std::vector<int64_t> shape = full.sizes().vec();
  shape[0] = rows_of[rank()];
  const int64_t row_elements = c10::multiply_integers(full.sizes().slice(1));
  std::vector<int64_t> send_counts;
  for (const int64_t rows : rows_of) {
    send_counts.push_back(rows * row_elements);
  }
  const std::vector<int64_t> recv_counts(size(), send_counts[rank()]);
  const at::Tensor received =
      all_to_all(full.contiguous().view({-1}), send_counts, recv_counts, tag);
  at::Tensor sum = at::zeros(shape, full.options().dtype(at::toOpMathType(full.scalar_type())));
  for (const at::Tensor& part : received.split_with_sizes(recv_counts)) {
    sum.add_(part.view(shape));
  }
  return sum.to(full.scalar_type());
}

at::Tensor Communicator::all_gather(const at::Tensor& tensor, const std::string& tag) {
  if (size() == 1) {
    return tensor.unsqueeze(0);
  }
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape.insert(shape.begin(), size());
  at::Tensor gathered = at::empty(shape, tensor.options());
  start_all_gather(tensor.contiguous(), gathered, tag)->wait();
  return gathered;
}

std::unique_ptr<Transfer> Communicator::start_all_gather(const at::Tensor& tensor,
                                                         at::Tensor& gathered,
                                                         const std::string& tag) {
  TORCH_CHECK(tensor.is_contiguous() && gathered.is_contiguous() &&
                  gathered.numel() == size() * tensor.numel() &&
                  gathered.scalar_type() == tensor.scalar_type(),
              "all_gather of ", size(), " ranks: ", tensor.scalar_type(), " ", tensor.sizes(),
              " does not fit ", gathered.scalar_type(), " ", gathered.sizes());
  if (size() == 1) {
    gathered.copy_(tensor.view(gathered.sizes()));
    return std::make_unique<FinishedTransfer>();
  }
  if (tensor.numel() == 0) {
    return std::make_unique<FinishedTransfer>();
  }
  sent_bytes_[tag] += (size() - 1) * bytes_of(tensor);
  return do_start_all_gather(gathered, tensor);
}

void Communicator::broadcast(at::Tensor& tensor, int64_t root, const std::string& tag) {
  TORCH_CHECK(root >= 0 && root < size(), "broadcast from rank ", root, " of ", size());
  TORCH_CHECK(tensor.is_contiguous(),
              "broadcast of a tensor that is not contiguous: ", tensor.sizes());
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
  TORCH_CHECK(to != rank() && from != rank(), "rank ", rank(),
              " cannot send to or receive from itself");
  TORCH_CHECK(send.is_contiguous() && receive.is_contiguous(),
              "send_recv needs contiguous tensors");
  sent_bytes_[tag] += bytes_of(send);
  return do_send_recv(send, to, receive, from);
}

std::shared_ptr<Communicator> make_single_rank_communicator() {
  return std::make_shared<SingleRankCommunicator>();
}

}  // namespace ringside::sp
