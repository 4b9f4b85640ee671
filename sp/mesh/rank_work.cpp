#include "sp/mesh/rank_work.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace ringside::sp {
namespace {

using std::chrono::milliseconds;

// Repeated collectives of the ranks until all have finished. Thread: wait() on one thread, done()
// on another. Blocks on: the work, at most `round`, then the collective.
class Rendezvous {
 public:
  Rendezvous(Communicator& world, milliseconds round) : world_(world), round_(round) {}

  void done(bool failed) {
    const std::lock_guard lock(mutex_);
    done_ = true;
    failed_ = failed;
    changed_.notify_all();
  }

  // Returns the lowest rank that failed, or -1.
  int64_t wait() {
    for (;;) {
      at::Tensor state = own_state();
      world_.all_reduce_max(state, "rank work");
      if (state[0].item<int64_t>() == 0) {
        const auto failed = state[1].item<int64_t>();
        return failed == 0 ? -1 : world_.size() - failed;
      }
    }
  }

 private:
  // {1 while working, a value that is higher the lower the rank of a failed rank}
  at::Tensor own_state() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, round_, [this] { return done_; });
    return at::tensor(
        {done_ ? int64_t{0} : int64_t{1}, failed_ ? world_.size() - world_.rank() : int64_t{0}},
        at::kLong);
  }

  Communicator& world_;
  milliseconds round_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  bool failed_ = false;
};

}  // namespace

void run_rank_work(Communicator& world, milliseconds round, const std::function<void()>& work) {
  if (world.size() == 1) {
    if (work) {
      work();
    }
    return;
  }
  Rendezvous rendezvous(world, round);
  int64_t failed_rank = -1;
  std::exception_ptr of_work;
  std::exception_ptr of_rendezvous;
  const auto wait_for_all = [&] {
    try {
      failed_rank = rendezvous.wait();
    } catch (...) {
      of_rendezvous = std::current_exception();
    }
  };
  if (work) {
    std::thread thread(wait_for_all);
    try {
      work();
    } catch (...) {
      of_work = std::current_exception();
    }
    rendezvous.done(of_work != nullptr);
    thread.join();
  } else {
    rendezvous.done(false);
    wait_for_all();
  }
  if (of_work && (of_rendezvous || failed_rank == world.rank())) {
    std::rethrow_exception(of_work);
  }
  if (of_rendezvous) {
    std::rethrow_exception(of_rendezvous);
  }
  if (failed_rank >= 0) {
    throw RankFailed(failed_rank);
  }
}

}  // namespace ringside::sp
