// A stream of bytes from one rank to another through shared memory, and the bell that wakes a rank.
// Torch-free.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace ringside::sp {

// The part of a ring in shared memory that both ends change. Zero is a fresh ring.
struct RingCounters {
  alignas(64) std::atomic<uint64_t> written;  // bytes in all, by the sender
  alignas(64) std::atomic<uint64_t> read;     // bytes in all, by the receiver
};

// One end of a ring of bytes. Bytes come out in the order in which they went in.
// Blocks: never.
// Thread safety: one thread at a time at each end; the two ends may be in different processes.
class ByteRing {
 public:
  // capacity: bytes at `data`, a power of two. Both must outlive the ring.
  ByteRing(RingCounters& counters, std::byte* data, int64_t capacity)
      : counters_(&counters), data_(data), capacity_(static_cast<uint64_t>(capacity)) {}

  // Moves `count` bytes of a message, from byte `offset` on, to or from `memory`.
  using Fill = std::function<void(std::byte* memory, int64_t offset, int64_t count)>;
  using Empty = std::function<void(const std::byte* memory, int64_t offset, int64_t count)>;

  // Copies as many bytes in as there is room for, at most `bytes`. Returns their number. fill:
  // called for each piece, in order; its offsets begin at 0.
  int64_t push(int64_t bytes, const Fill& fill);
  int64_t push(const std::byte* from, int64_t bytes);
  // Copies out as many bytes as are there, at most `bytes`. Returns their number. empty: as fill.
  int64_t pull(int64_t bytes, const Empty& empty);
  int64_t pull(std::byte* to, int64_t bytes);
  // Bytes that this end has moved in all.
  int64_t moved() const { return moved_; }

 private:
  RingCounters* counters_;
  std::byte* data_;
  uint64_t capacity_;
  int64_t moved_ = 0;
};

// What wakes a rank: others ring, it waits. Lies in shared memory; zero is a fresh bell.
// Thread safety: any thread of any process.
class Doorbell {
 public:
  // Number of rings so far, for await().
  uint32_t rings() const { return rings_.load(std::memory_order_seq_cst); }
  // Wakes those who wait.
  void ring();
  // Returns when rings() is not `seen`, or after the timeout. Looks again and again for some
  // microseconds before it sleeps in the kernel.
  // Blocks: for at most `timeout`.
  void await(uint32_t seen, std::chrono::microseconds timeout);

 private:
  std::atomic<uint32_t> rings_;
  std::atomic<uint32_t> sleepers_;
};

}  // namespace ringside::sp
