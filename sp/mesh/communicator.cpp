#include "sp/mesh/communicator.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

#include <numeric>
#include <utility>

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
  std::vector<std::unique_ptr<Transfer>> do_start_transfers(
      std::span<const PointToPoint>) override {
    return {};
  }
};

int64_t elements_of(const RowParts& message) {
  int64_t elements = 0;
  for (const at::Tensor& part : message) {
    elements += part.numel();
  }
  return elements;
}

std::vector<int64_t> elements_of(const std::vector<RowParts>& messages) {
  std::vector<int64_t> counts;
  for (const RowParts& message : messages) {
    counts.push_back(elements_of(message));
  }
  return counts;
}

void check_parts(const std::vector<RowParts>& messages, int64_t ranks, at::ScalarType dtype) {
  TORCH_CHECK(static_cast<int64_t>(messages.size()) == ranks, "row exchange: ", messages.size(),
              " messages in a group of ", ranks);
  for (const RowParts& message : messages) {
    for (const at::Tensor& part : message) {
      TORCH_CHECK(part.dim() >= 1 && part.size(0) == message.front().size(0) &&
                      part.scalar_type() == dtype && (part.numel() == 0 || part[0].is_contiguous()),
                  "row exchange: a part has shape ", part.sizes(), ", strides ", part.strides(),
                  " and dtype ", part.scalar_type(), ", expected ", message.front().size(0),
                  " rows of ", dtype, " without gaps");
    }
  }
}

// The messages as one 1-D view, if they lie one after the other in memory; otherwise undefined.
at::Tensor packed_view(const std::vector<RowParts>& messages) {
  at::Tensor first;
  int64_t elements = 0;
  for (const RowParts& message : messages) {
    if (elements_of(message) == 0) {
      continue;
    }
    const at::Tensor& part = message.front();
    first = first.defined() ? first : part;
    if (message.size() > 1 || !part.is_contiguous() || !part.is_alias_of(first) ||
        part.storage_offset() != first.storage_offset() + elements) {
      return {};
    }
    elements += part.numel();
  }
  return first.defined() ? first.as_strided({elements}, {1}, first.storage_offset()) : first;
}

// Calls copy(part, its place in the packed messages) for all parts.
template <class Copy>
void for_each_part(const std::vector<RowParts>& messages, const at::Tensor& packed,
                   const Copy& copy) {
  int64_t begin = 0;
  for (const RowParts& message : messages) {
    const int64_t elements = elements_of(message);
    if (elements == 0) {
      continue;
    }
    const at::Tensor rows = packed.narrow(0, begin, elements).view({message.front().size(0), -1});
    int64_t column = 0;
    for (const at::Tensor& part : message) {
      const int64_t width = part.numel() / part.size(0);
      copy(part, rows.narrow(1, column, width).view(part.sizes()));
      column += width;
    }
    begin += elements;
  }
}

// Waits for packed messages and puts their parts where they belong.
class UnpackingTransfer final : public Transfer {
 public:
  UnpackingTransfer(std::unique_ptr<Transfer> transfer, at::Tensor packed,
                    std::vector<RowParts> messages)
      : transfer_(std::move(transfer)),
        packed_(std::move(packed)),
        messages_(std::move(messages)) {}
  void wait() override {
    if (const auto transfer = std::exchange(transfer_, nullptr)) {
      transfer->wait();
      const at::NoGradGuard data_only;
      for_each_part(messages_, packed_,
                    [](const at::Tensor& part, const at::Tensor& place) { part.copy_(place); });
      packed_.reset();
    }
  }

 private:
  std::unique_ptr<Transfer> transfer_;
  at::Tensor packed_;
  std::vector<RowParts> messages_;
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

std::unique_ptr<Transfer> Communicator::start_row_exchange(const std::vector<RowParts>& send,
                                                           const std::vector<RowParts>& receive,
                                                           const std::string& tag) {
  const RowParts* some = nullptr;
  for (const auto* messages : {&send, &receive}) {
    for (const RowParts& message : *messages) {
      some = message.empty() ? some : &message;
    }
  }
  TORCH_CHECK(some != nullptr, "row exchange: no message has a part, which would tell the dtype");
  check_parts(send, size(), some->front().scalar_type());
  check_parts(receive, size(), some->front().scalar_type());
  const std::vector<int64_t> counts = elements_of(send);
  TORCH_CHECK(counts[rank()] == elements_of(receive)[rank()], "row exchange: rank ", rank(),
              " sends itself ", counts[rank()], " elements and expects ",
              elements_of(receive)[rank()]);
  if (size() == 1) {
    const at::NoGradGuard data_only;
    const at::Tensor packed = at::empty({counts[0]}, some->front().options());
    for_each_part(send, packed,
                  [](const at::Tensor& part, const at::Tensor& place) { place.copy_(part); });
    for_each_part(receive, packed,
                  [](const at::Tensor& part, const at::Tensor& place) { part.copy_(place); });
    return std::make_unique<FinishedTransfer>();
  }
  sent_bytes_[tag] += (total(counts) - counts[rank()]) * some->front().element_size();
  return do_start_row_exchange(send, receive);
}

std::unique_ptr<Transfer> Communicator::do_start_row_exchange(
    const std::vector<RowParts>& send, const std::vector<RowParts>& receive) {
  const at::NoGradGuard data_only;
  const auto send_counts = elements_of(send), receive_counts = elements_of(receive);
  const auto options = [&] {
    for (const auto* messages : {&send, &receive}) {
      for (const RowParts& message : *messages) {
        if (!message.empty()) {
          return message.front().options();
        }
      }
    }
    return at::TensorOptions();
  }();
  at::Tensor packed = packed_view(send);
  if (!packed.defined()) {
    packed = at::empty({total(send_counts)}, options);
    for_each_part(send, packed,
                  [](const at::Tensor& part, const at::Tensor& place) { place.copy_(part); });
  }
  at::Tensor arrivals = packed_view(receive);
  const bool in_place = arrivals.defined();
  if (!in_place) {
    arrivals = at::empty({total(receive_counts)}, options);
  }
  auto transfer = do_start_all_to_all(arrivals, packed, receive_counts, send_counts);
  return in_place ? std::move(transfer)
                  : std::make_unique<UnpackingTransfer>(std::move(transfer), arrivals, receive);
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

std::vector<std::unique_ptr<Transfer>> Communicator::start_transfers(
    std::span<const PointToPoint> transfers, const std::string& tag) {
  std::vector<PointToPoint> with_elements;
  int64_t bytes = 0;
  for (const PointToPoint& one : transfers) {
    TORCH_CHECK(one.peer >= 0 && one.peer < size() && one.peer != rank(), "rank ", rank(), " of ",
                size(), " cannot exchange a message with rank ", one.peer);
    TORCH_CHECK(one.tensor.is_contiguous(),
                "a message of a tensor that is not contiguous: ", one.tensor.sizes());
    bytes += one.kind == PointToPoint::Kind::kSend ? bytes_of(one.tensor) : 0;
    if (one.tensor.numel() > 0) {
      with_elements.push_back(one);
    }
  }
  sent_bytes_[tag] += bytes;
  std::vector<std::unique_ptr<Transfer>> started;
  if (!with_elements.empty()) {
    started = do_start_transfers(with_elements);
  }
  std::vector<std::unique_ptr<Transfer>> all;
  auto next = started.begin();
  for (const PointToPoint& one : transfers) {
    all.push_back(one.tensor.numel() > 0 ? std::move(*next++)
                                         : std::make_unique<FinishedTransfer>());
  }
  return all;
}

std::shared_ptr<Communicator> make_single_rank_communicator() {
  return std::make_shared<SingleRankCommunicator>();
}

}  // namespace ringside::sp
