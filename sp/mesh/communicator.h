// Collectives among the ranks of one mesh axis, and the count of logical bytes this rank sent, by
// tag. The counters are what tests hold against the attention plan, so every transfer of sp/ goes
// through here.
//
// All calls are collective over the group (send_recv over the pairs it names), block until this
// rank's part is done unless said otherwise, and throw c10::Error on a transport failure or when
// the group's timeout passes. Not thread-safe: one thread of a rank drives a communicator. A group
// of one copies nothing and counts nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ringside::sp {

// A transfer under way. Destroying it without wait() waits too, and swallows a failure: call
// wait().
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void
  wait() = 0;  // blocks; afterwards the receive buffer is filled and the send buffer free again
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  // In place; the same bits on every rank. Counts 2 (P-1)/P of the tensor's bytes, what a ring
  // all-reduce sends.
  void all_reduce_sum(at::Tensor& tensor, const std::string& tag);

  // Element-wise maximum in place. Counted like all_reduce_sum.
  void all_reduce_max(at::Tensor& tensor, const std::string& tag);

  // send: 1-D contiguous, send_counts[p] consecutive elements go to rank p. Returns 1-D,
  // recv_counts[p] elements from rank p, in rank order. Counts may be 0. Counts the elements for
  // other ranks.
  at::Tensor all_to_all(const at::Tensor& send, const std::vector<int64_t>& send_counts,
                        const std::vector<int64_t>& recv_counts, const std::string& tag);

  // The same exchange without blocking: starts it and returns at once. receive: 1-D contiguous,
  // send's dtype, of the sum of recv_counts; both buffers must stay untouched until wait(). Several
  // may be under way, started in the same order on every rank. Throws like all_to_all before
  // anything is sent. Counted like all_to_all, when started.
  std::unique_ptr<Transfer> start_all_to_all(const at::Tensor& send,
                                             const std::vector<int64_t>& send_counts,
                                             at::Tensor& receive,
                                             const std::vector<int64_t>& recv_counts,
                                             const std::string& tag);

  // Rows along dim 0, as many from each rank as rows_of (size P) says, 0 included: rows has
  // rows_of[rank()] of them. Returns [sum of rows_of, ...] in rank order. Counts P-1 times this
  // rank's bytes. Throws c10::Error, before anything is sent, when rows_of does not fit.
  at::Tensor all_gather_rows(const at::Tensor& rows, const std::vector<int64_t>& rows_of,
                             const std::string& tag);

  // The adjoint of all_gather_rows: `full` has sum(rows_of) rows on every rank; returns this rank's
  // rows_of[rank()] rows summed over the ranks in rank order, in fp32 for narrower floats, so the
  // bits are the same on every run. Counts the bytes of the rows of others.
  at::Tensor reduce_scatter_rows(const at::Tensor& full, const std::vector<int64_t>& rows_of,
                                 const std::string& tag);

  // tensor has the same shape on every rank. Returns [P, ...shape].
  at::Tensor all_gather(const at::Tensor& tensor, const std::string& tag);

  // In place, from `root` of this group.
  void broadcast(at::Tensor& tensor, int64_t root, const std::string& tag);

  // Starts sending `send` to `to` and receiving into `receive` from `from`; both contiguous, either
  // may be empty. Returns at once; the buffers must stay untouched until wait().
  std::unique_ptr<Transfer> send_recv(const at::Tensor& send, int64_t to, at::Tensor& receive,
                                      int64_t from, const std::string& tag);

  const std::map<std::string, int64_t>& sent_bytes() const { return sent_bytes_; }
  void reset_counters() { sent_bytes_.clear(); }

 protected:
  enum class Reduction { kSum, kMax };
  virtual void do_all_reduce(at::Tensor& tensor, Reduction reduction) = 0;
  virtual std::unique_ptr<Transfer> do_start_all_to_all(
      at::Tensor& receive, at::Tensor& send, const std::vector<int64_t>& receive_counts,
      const std::vector<int64_t>& send_counts) = 0;
  virtual void do_all_gather(at::Tensor& gathered, const at::Tensor& tensor) = 0;
  virtual void do_broadcast(at::Tensor& tensor, int64_t root) = 0;
  virtual std::unique_ptr<Transfer> do_send_recv(const at::Tensor& send, int64_t to,
                                                 at::Tensor& receive, int64_t from) = 0;

 private:
  void all_reduce(at::Tensor& tensor, Reduction reduction, const std::string& tag);
  void check_exchange(const at::Tensor& send, const std::vector<int64_t>& send_counts,
                      const std::vector<int64_t>& recv_counts) const;
  void check_rows(const at::Tensor& rows, int64_t expected,
                  const std::vector<int64_t>& rows_of) const;

  std::map<std::string, int64_t> sent_bytes_;
};

// The communicator of a group of one rank.
std::shared_ptr<Communicator> make_single_rank_communicator();

}  // namespace ringside::sp
