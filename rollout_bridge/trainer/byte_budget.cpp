#include "rollout_bridge/trainer/byte_budget.h"

#include <algorithm>
#include <stdexcept>

namespace ringside::bridge {
namespace {

constexpr int64_t kFirstUnit = 64 * 1024;  // until a rollout has been seen

}  // namespace

ByteBudget::ByteBudget(int64_t total, int64_t largest_window)
    : total_(total),
      largest_window_(std::min(largest_window, total)),
      unit_(std::min(kFirstUnit, largest_window_)) {
  if (total < 1 || largest_window < 1) {
    throw std::invalid_argument("byte budget of " + std::to_string(total) + " bytes, windows of " +
                                std::to_string(largest_window) + "; expected at least 1 each");
  }
}

void ByteBudget::join(const std::string& worker) { promises_.emplace(worker, 0); }

void ByteBudget::leave(const std::string& worker) {
  release(worker);
  promises_.erase(worker);
}

int64_t ByteBudget::share() const {
  const auto workers = static_cast<int64_t>(std::max<std::size_t>(promises_.size(), 1));
  return std::clamp(std::max<int64_t>(total_ - queued_, 0) / workers, unit_, largest_window_);
}

int64_t ByteBudget::raised(int64_t promise) const {
  const int64_t free = std::max<int64_t>(total_ - queued_ - promised_, 0);
  const int64_t to = std::max(promise, std::min(share(), promise + free));
  return to < unit_ ? promise
                    : to;  // a window below one rollout would only take bytes from other workers
}

int64_t ByteBudget::raise(const std::string& worker) {
  int64_t& promise = promises_.at(worker);
  const int64_t to = raised(promise);
  promised_ += to - promise;
  promise = to;
  update_peak();
  return window(worker);
}

int64_t ByteBudget::window(const std::string& worker) const {
  const int64_t promise = promises_.at(worker);
  return promise < unit_ ? 0 : promise;
}

bool ByteBudget::is_low(const std::string& worker) const {
  const int64_t to = raised(promises_.at(worker));
  return to >= unit_ && 2 * window(worker) < to;
}

void ByteBudget::release(const std::string& worker) {
  const auto it = promises_.find(worker);
  if (it == promises_.end()) {
    return;
  }
  promised_ -= it->second;
  it->second = 0;
}

void ByteBudget::arrived(const std::string& worker, int64_t bytes) {
  int64_t& promise = promises_.at(worker);
  const int64_t used = std::min(promise, bytes);
  promise -= used;
  promised_ -= used;
  unit_ = std::min(std::max(unit_, bytes), largest_window_);
}

bool ByteBudget::fits(int64_t bytes) const {
  return queued_ + promised_ + bytes <= total_ || (queued_ == 0 && bytes > total_);
}

void ByteBudget::enqueue(int64_t bytes) {
  queued_ += bytes;
  update_peak();
}

void ByteBudget::dequeue(int64_t bytes) { queued_ -= bytes; }

void ByteBudget::update_peak() { peak_ = std::max(peak_, queued_ + promised_); }

}  // namespace ringside::bridge
