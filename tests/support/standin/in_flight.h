// Transfers that are launched and not known to be done. Kernels run at once, transfers when the
// peers have launched theirs: a kernel that uses a transfer's memory first completes the transfer.
// So Work::wait() need not block the host. No torch.
//
// Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/standin/clock.h"

namespace ringside::standin {

// One collective or transfer, as its launching rank sees it.
class Transfer {
 public:
  // reads, writes: memory of its arguments. complete: blocks until the data is there. done: whether
  // it is, without blocking.
  Transfer(std::string name, std::vector<Use> reads, std::vector<Use> writes, Moment moment,
           std::function<void()> complete, std::function<bool()> done)
      : name_(std::move(name)),
        reads_(std::move(reads)),
        writes_(std::move(writes)),
        moment_(moment),
        complete_(std::move(complete)),
        done_(std::move(done)) {}

  const std::string& name() const { return name_; }
  Moment moment() const { return moment_; }
  // Whether a kernel with these arguments must be ordered with this transfer.
  bool conflicts(const std::vector<Use>& reads, const std::vector<Use>& writes) const;
  // Blocks: until the data is there.
  // Throws: when the transfer failed or its deadline passed.
  void complete();
  // False while another thread completes it.
  bool done();

 private:
  std::string name_;
  std::vector<Use> reads_, writes_;
  Moment moment_;
  std::mutex mutex_;
  std::function<void()> complete_;  // empty once completed
  std::function<bool()> done_;
};

class InFlight {
 public:
  // Lists a launched transfer until it is completed or dropped.
  void add(std::shared_ptr<Transfer> transfer);
  // Complete the transfers that a kernel with these arguments must come before or after.
  void complete_conflicts(const std::vector<Use>& reads, const std::vector<Use>& writes);
  // Complete the transfers that a clock is ordered after.
  void complete_before(const Clock& clock);
  bool all_done_before(const Clock& clock);
  // Forgets a device's transfers that are done.
  void reap(int device);
  // Forgets all; returns those that were not done.
  std::vector<std::string> drop_all();

 private:
  std::vector<std::shared_ptr<Transfer>> select(
      const std::function<bool(const Transfer&)>& wanted) const;
  void complete(const std::vector<std::shared_ptr<Transfer>>& transfers);

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Transfer>> transfers_;
};

}  // namespace ringside::standin
