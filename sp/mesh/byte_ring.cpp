#include "sp/mesh/byte_ring.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>

namespace ringside::sp {
namespace {

// The other end may begin while this one goes on.
constexpr uint64_t kPieceBytes = 64 * 1024;
constexpr int kLooks = 2000;  // before a rank sleeps: some tens of microseconds

static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

// The kernel wants the address of the word. C++ gives an atomic of 32 bits its layout.
uint32_t* word_of(std::atomic<uint32_t>& value) { return reinterpret_cast<uint32_t*>(&value); }

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

int64_t ByteRing::push(int64_t bytes, const Fill& fill) {
  const uint64_t begin = counters_->written.load(std::memory_order_relaxed);
  const uint64_t room = capacity_ - (begin - counters_->read.load(std::memory_order_acquire));
  const uint64_t end = begin + std::min(room, static_cast<uint64_t>(bytes));
  for (uint64_t at = begin; at < end;) {
    const uint64_t place = at & (capacity_ - 1);
    const uint64_t piece = std::min({end - at, capacity_ - place, kPieceBytes});
    fill(data_ + place, static_cast<int64_t>(at - begin), static_cast<int64_t>(piece));
    at += piece;
    counters_->written.store(at, std::memory_order_release);
  }
  moved_ += static_cast<int64_t>(end - begin);
  return static_cast<int64_t>(end - begin);
}

int64_t ByteRing::push(const std::byte* from, int64_t bytes) {
  return push(bytes, [from](std::byte* memory, int64_t offset, int64_t count) {
    std::memcpy(memory, from + offset, static_cast<std::size_t>(count));
  });
}

int64_t ByteRing::pull(int64_t bytes, const Empty& empty) {
  const uint64_t begin = counters_->read.load(std::memory_order_relaxed);
  const uint64_t there = counters_->written.load(std::memory_order_acquire) - begin;
  const uint64_t end = begin + std::min(there, static_cast<uint64_t>(bytes));
  for (uint64_t at = begin; at < end;) {
    const uint64_t place = at & (capacity_ - 1);
    const uint64_t piece = std::min({end - at, capacity_ - place, kPieceBytes});
    empty(data_ + place, static_cast<int64_t>(at - begin), static_cast<int64_t>(piece));
    at += piece;
    counters_->read.store(at, std::memory_order_release);
  }
  moved_ += static_cast<int64_t>(end - begin);
  return static_cast<int64_t>(end - begin);
}

int64_t ByteRing::pull(std::byte* to, int64_t bytes) {
  return pull(bytes, [to](const std::byte* memory, int64_t offset, int64_t count) {
    std::memcpy(to + offset, memory, static_cast<std::size_t>(count));
  });
}

void Doorbell::ring() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    syscall(SYS_futex, word_of(rings_), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

void Doorbell::await(uint32_t seen, std::chrono::microseconds timeout) {
  for (int look = 0; look < kLooks; ++look) {
    if (rings() != seen) {
      return;
    }
    pause_briefly();
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit{static_cast<time_t>(seconds.count()),
                       static_cast<long>(std::chrono::nanoseconds(timeout - seconds).count())};
  // ring() counts before it reads sleepers_, and the kernel compares the count with `seen`: a ring
  // is either seen here or finds the sleeper.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, word_of(rings_), FUTEX_WAIT, seen, &limit, nullptr, 0);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace ringside::sp
