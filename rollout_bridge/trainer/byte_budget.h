// Byte budget of the trainer's rollout memory.
//
// Each byte is free, holds a queued rollout, or is promised to one worker. A worker's promise is
// its window: the bytes that it may send before they are acknowledged. Workers that keep to their
// windows never exceed the budget together. Pure state without sockets or clocks.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ringside::bridge {

class ByteBudget {
 public:
  // total: most bytes queued and promised together. largest_window: most bytes promised to one
  // worker.
  // Throws: std::invalid_argument when either is below 1.
  ByteBudget(int64_t total, int64_t largest_window);

  void join(const std::string& worker);   // starts with no promise
  void leave(const std::string& worker);  // frees its promise

  // Raises the worker's promise to its share, as far as bytes are free. The share is the bytes that
  // are not queued, divided by the number of joined workers. Never lowers a promise, because the
  // worker may have sent data under it already. Returns window().
  // Throws: std::out_of_range for a worker that has not joined, like window(), is_low() and
  // arrived().
  int64_t raise(const std::string& worker);
  // The window to send to the worker. 0 while its promise is smaller than the largest rollout seen.
  int64_t window(const std::string& worker) const;
  // True when the window is below half of what raise() would make it, so that a message is worth
  // its cost.
  bool is_low(const std::string& worker) const;
  // Frees the promise of a worker that has nothing to send.
  void release(const std::string& worker);

  // Uses up `bytes` of the worker's promise: a rollout of that size has arrived.
  void arrived(const std::string& worker, int64_t bytes);
  // True when a rollout that has arrived can be queued. A rollout within the worker's promise
  // always fits. A rollout larger than the whole budget fits when nothing is queued.
  bool fits(int64_t bytes) const;
  void enqueue(int64_t bytes);
  void dequeue(int64_t bytes);

  int64_t queued() const { return queued_; }
  int64_t promised() const { return promised_; }
  int64_t peak() const { return peak_; }  // highest sum of both so far

 private:
  int64_t share() const;
  int64_t raised(int64_t promise) const;
  void update_peak();

  int64_t total_;
  int64_t largest_window_;
  int64_t unit_;  // smallest useful window: the largest rollout seen
  int64_t queued_ = 0;
  int64_t promised_ = 0;
  int64_t peak_ = 0;
  std::map<std::string, int64_t> promises_;
};

}  // namespace ringside::bridge
