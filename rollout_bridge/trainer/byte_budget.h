// How the trainer's memory for rollouts is shared out: each byte of it is free, holds a queued
// rollout, or is promised to one worker as the window of what it may send unacknowledged. So
// workers that keep to their windows find room for all they send, and together never send more than
// there is. Pure state without sockets or clocks; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ringside::bridge {

class ByteBudget {
 public:
  // total: bytes that may be queued and promised; largest_window: most that one worker is promised.
  // Throws std::invalid_argument below 1.
  ByteBudget(int64_t total, int64_t largest_window);

  void join(const std::string& worker);   // promised nothing yet
  void leave(const std::string& worker);  // its promise is free again

  // Promises the worker as much of its share - of what is not queued, divided by those that are in
  // - as is free. A promise is never lowered here: the worker may have sent by it already. Returns
  // window().
  int64_t raise(const std::string& worker);
  // What the worker may be told: 0 while its promise would not hold the largest rollout seen.
  int64_t window(const std::string& worker) const;
  // True when a raise is worth a message: the window is less than half of what it would become.
  bool is_low(const std::string& worker) const;
  // The worker has nothing to send: its promise is free again.
  void release(const std::string& worker);

  // A rollout of the worker is here: that much of its promise is used up.
  void arrived(const std::string& worker, int64_t bytes);
  // Whether a rollout that arrived can be queued: within the worker's promise it can. One larger
  // than everything goes alone.
  bool fits(int64_t bytes) const;
  void enqueue(int64_t bytes);
  void dequeue(int64_t bytes);

  int64_t queued() const { return queued_; }
  int64_t promised() const { return promised_; }
  int64_t peak() const { return peak_; }  // of the sum of both

 private:
  int64_t share() const;
  int64_t raised(int64_t promise) const;
  void note_peak();

  int64_t total_;
  int64_t largest_window_;
  int64_t unit_;  // smallest window that is of use: the largest rollout seen
  int64_t queued_ = 0;
  int64_t promised_ = 0;
  int64_t peak_ = 0;
  std::map<std::string, int64_t> promises_;
};

}  // namespace ringside::bridge
