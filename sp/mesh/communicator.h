// Communicator of one rank group: collectives, and counters of the logical bytes this rank sent, by
// tag. Every transfer of sp/ goes through it; tests compare the counters with the attention plan. A
// group of one rank copies nothing and counts nothing.
//
// Collective over: the group; send_recv and start_transfers over the pairs they name.
// Blocks: until this rank's part is done, unless said otherwise. With NCCL only the current stream
// waits.
// Throws: c10::Error on arguments that do not fit, before anything is sent; a std::exception of the
// backend on a transport failure or after the group's timeout.
// Thread safety: none; one thread of a rank drives a communicator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ringside::sp {

// A transfer in progress. The destructor waits too, but swallows a failure: call wait().
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Blocks: until the receive buffer is filled and the send buffer may be reused.
  // Throws: as the functions of the communicator.
  virtual void wait() = 0;
};

// A message of rows: row after row, and of each row the elements of every part in turn. The parts
// of a message have the same number of rows and dtype, and no gaps within a row.
using RowParts = std::vector<at::Tensor>;

// One end of a message between two ranks. Contiguous; without elements it is not sent.
struct PointToPoint {
  enum class Kind { kSend, kReceive };
  Kind kind = Kind::kSend;
  at::Tensor tensor;
  int64_t peer = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  // This rank's place in the group, from 0, and the number of its ranks.
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  // Sums in place, with the same bits on every rank. Counts 2 (P-1)/P of the tensor's bytes, the
  // volume of a ring all-reduce.
  // Shapes: contiguous, the same shape and dtype on every rank; also all_reduce_max().
  void all_reduce_sum(at::Tensor& tensor, const std::string& tag);

  // Starts all_reduce_sum and returns at once. The tensor must stay untouched until wait(). Counted
  // as all_reduce_sum, when started.
  std::unique_ptr<Transfer> start_all_reduce_sum(at::Tensor& tensor, const std::string& tag);

  // Element-wise maximum in place. Counted like all_reduce_sum.
  void all_reduce_max(at::Tensor& tensor, const std::string& tag);

  // Sends send_counts[p] consecutive elements to rank p and receives recv_counts[p] elements from
  // rank p. Counts the elements sent to other ranks.
  // Shapes: send is 1-D and contiguous; returns 1-D, in rank order. Counts may be 0.
  at::Tensor all_to_all(const at::Tensor& send, const std::vector<int64_t>& send_counts,
                        const std::vector<int64_t>& recv_counts, const std::string& tag);

  // Starts all_to_all and returns at once. Both buffers must stay untouched until wait(). Several
  // exchanges may be in progress if every rank starts them in the same order. Counted as
  // all_to_all, when started.
  // Shapes: receive is 1-D, contiguous, of send's dtype, with sum(recv_counts) elements.
  // Throws: as all_to_all, before anything is sent.
  std::unique_ptr<Transfer> start_all_to_all(const at::Tensor& send,
                                             const std::vector<int64_t>& send_counts,
                                             at::Tensor& receive,
                                             const std::vector<int64_t>& recv_counts,
                                             const std::string& tag);

  // start_all_to_all() of rows that lie in larger tensors: send[p] goes to rank p, receive[p] comes
  // from it. Messages are packed only where the group needs that. All tensors must stay untouched
  // until wait(). Counted as all_to_all, when started.
  // Shapes: a message for each rank; the two ends of one have as many elements.
  // Throws: c10::Error, before anything is sent, when parts of a message do not fit, and when no
  // message of this rank has a part; a part may have no elements.
  std::unique_ptr<Transfer> start_row_exchange(const std::vector<RowParts>& send,
                                               const std::vector<RowParts>& receive,
                                               const std::string& tag);

  // Gathers rows along dim 0. Rank p contributes rows_of[p] rows, which may be 0. Counts P-1 times
  // this rank's bytes.
  // Shapes: rows_of has P elements; rows has rows_of[rank()] rows; returns [sum of rows_of, ...] in
  // rank order.
  // Throws: c10::Error, before anything is sent, when rows_of does not match.
  at::Tensor all_gather_rows(const at::Tensor& rows, const std::vector<int64_t>& rows_of,
                             const std::string& tag);

  // Adjoint of all_gather_rows: returns this rank's rows summed over the ranks. The sum is in rank
  // order and in fp32 for narrower floats, so its bits are the same on every run. Counts the bytes
  // of the rows of other ranks.
  // Shapes: `full` has sum(rows_of) rows on every rank; returns rows_of[rank()] rows.
  at::Tensor reduce_scatter_rows(const at::Tensor& full, const std::vector<int64_t>& rows_of,
                                 const std::string& tag);

  // Tensors of all ranks in rank order. Counts P-1 times the tensor's bytes.
  // Shapes: tensor has the same shape on every rank; returns [P, ...shape].
  at::Tensor all_gather(const at::Tensor& tensor, const std::string& tag);

  // Starts all_gather and returns at once. Both tensors must stay untouched until wait(). Counted
  // as all_gather, when started.
  // Shapes: tensor and gathered are contiguous; gathered has P times the elements, in rank order.
  // Throws: c10::Error, before anything is sent, on other shapes.
  std::unique_ptr<Transfer> start_all_gather(const at::Tensor& tensor, at::Tensor& gathered,
                                             const std::string& tag);

  // Broadcasts in place from rank `root` of this group, where P-1 times the bytes are counted.
  // Shapes: contiguous, the same shape and dtype on every rank.
  // Throws: c10::Error when root is outside the group.
  void broadcast(at::Tensor& tensor, int64_t root, const std::string& tag);

  // Starts sending `send` to rank `to` and receiving `receive` from rank `from`. Both are
  // contiguous; either may be empty. Returns at once; the buffers must stay untouched until wait().
  // Counts the bytes of `send`. Transfers of a pair are matched by their order.
  // Throws: c10::Error when `to` or `from` is this rank, or a tensor is not contiguous.
  std::unique_ptr<Transfer> send_recv(const at::Tensor& send, int64_t to, at::Tensor& receive,
                                      int64_t from, const std::string& tag);

  // Starts the messages and returns at once, with a Transfer for each. The tensors must stay
  // untouched until its wait(). The two ends of a pair name the same messages between them in the
  // same order, over all calls; those of one call progress together. With NCCL they complete
  // together. Counts the bytes of what is sent. No message is buffered for sure: a rank may wait
  // for one whose other end has not been started.
  // Throws: c10::Error for a peer that is this rank or none of the group, and for a tensor that is
  // not contiguous, before anything is sent.
  std::vector<std::unique_ptr<Transfer>> start_transfers(std::span<const PointToPoint> transfers,
                                                         const std::string& tag);

  // Bytes that this rank sent so far, by tag.
  const std::map<std::string, int64_t>& sent_bytes() const { return sent_bytes_; }
  // Forgets the bytes counted so far.
  void reset_counters() { sent_bytes_.clear(); }

 protected:
  enum class Reduction { kSum, kMax };
  // What a group of one kind must do: the functions above without checks and without counting. Each
  // may return before the transfer is complete, and is called in the same order on every rank.
  virtual std::unique_ptr<Transfer> do_start_all_reduce(at::Tensor& tensor,
                                                        Reduction reduction) = 0;
  virtual std::unique_ptr<Transfer> do_start_all_to_all(
      at::Tensor& receive, at::Tensor& send, const std::vector<int64_t>& receive_counts,
      const std::vector<int64_t>& send_counts) = 0;
  // Unless overridden, packs what is not packed already and calls do_start_all_to_all().
  virtual std::unique_ptr<Transfer> do_start_row_exchange(const std::vector<RowParts>& send,
                                                          const std::vector<RowParts>& receive);
  virtual std::unique_ptr<Transfer> do_start_all_gather(at::Tensor& gathered,
                                                        const at::Tensor& tensor) = 0;
  virtual void do_broadcast(at::Tensor& tensor, int64_t root) = 0;
  virtual std::unique_ptr<Transfer> do_send_recv(const at::Tensor& send, int64_t to,
                                                 at::Tensor& receive, int64_t from) = 0;
  // Of messages with elements, at least one. Returns one Transfer for each.
  virtual std::vector<std::unique_ptr<Transfer>> do_start_transfers(
      std::span<const PointToPoint> transfers) = 0;

 private:
  std::unique_ptr<Transfer> start_all_reduce(at::Tensor& tensor, Reduction reduction,
                                             const std::string& tag);
  void check_exchange(const at::Tensor& send, const std::vector<int64_t>& send_counts,
                      const std::vector<int64_t>& recv_counts) const;
  void check_rows(const at::Tensor& rows, int64_t expected,
                  const std::vector<int64_t>& rows_of) const;

  std::map<std::string, int64_t> sent_bytes_;
};

// Communicator of a group of one rank: collectives return or keep their input.
std::shared_ptr<Communicator> make_single_rank_communicator();

}  // namespace ringside::sp
