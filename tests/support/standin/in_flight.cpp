#include "tests/support/standin/in_flight.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ringside::standin {
namespace {

bool any_overlap(const std::vector<Use>& a, const std::vector<Use>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Use& x) {
    return std::any_of(b.begin(), b.end(), [&](const Use& y) { return x.bytes.overlaps(y.bytes); });
  });
}

}  // namespace

bool Transfer::conflicts(const std::vector<Use>& reads, const std::vector<Use>& writes) const {
  return any_overlap(writes_, reads) || any_overlap(writes_, writes) || any_overlap(reads_, writes);
}

void Transfer::complete() {
  const std::lock_guard lock(mutex_);
  if (complete_) {
    complete_();
    complete_ = nullptr;  // frees the buffers that it holds
  }
}

bool Transfer::done() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && (!complete_ || done_());
}

void InFlight::add(std::shared_ptr<Transfer> transfer) {
  const std::lock_guard lock(mutex_);
  transfers_.push_back(std::move(transfer));
}

void InFlight::complete_conflicts(const std::vector<Use>& reads, const std::vector<Use>& writes) {
  complete(select([&](const Transfer& one) { return one.conflicts(reads, writes); }));
}

void InFlight::complete_before(const Clock& clock) {
  complete(select([&](const Transfer& one) { return clock.covers(one.moment()); }));
}

bool InFlight::all_done_before(const Clock& clock) {
  const auto found = select([&](const Transfer& one) { return clock.covers(one.moment()); });
  return std::all_of(found.begin(), found.end(), [](const auto& one) { return one->done(); });
}

void InFlight::reap(int device) {
  const auto found =
      select([&](const Transfer& one) { return one.moment().stream.device == device; });
  std::vector<std::shared_ptr<Transfer>> done;
  std::copy_if(found.begin(), found.end(), std::back_inserter(done),
               [](const auto& one) { return one->done(); });
  complete(done);
}

std::vector<std::string> InFlight::drop_all() {
  std::vector<std::shared_ptr<Transfer>> dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(transfers_);
  }
  std::vector<std::string> names;
  for (const auto& transfer : dropped) {
    if (!transfer->done()) {
      names.push_back(transfer->name());
    }
  }
  return names;
}

std::vector<std::shared_ptr<Transfer>> InFlight::select(
    const std::function<bool(const Transfer&)>& wanted) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Transfer>> found;
  std::copy_if(transfers_.begin(), transfers_.end(), std::back_inserter(found),
               [&](const auto& one) { return wanted(*one); });
  return found;
}

// A transfer stays listed until it is complete, so that a second thread waits for it too.
void InFlight::complete(const std::vector<std::shared_ptr<Transfer>>& transfers) {
  for (const auto& transfer : transfers) {
    transfer->complete();
    const std::lock_guard lock(mutex_);
    std::erase(transfers_, transfer);
  }
}

}  // namespace ringside::standin
