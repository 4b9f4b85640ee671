// Memory pool for tensors that are being received. Memory of an earlier version is reused, because
// the first touch of new pages costs more than the transfer. Copies of the pool share the same
// memory.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ringside::bridge {

class WeightMemory {
 public:
  // Holds no memory yet.
  WeightMemory();

  // Memory of `bytes` bytes with undefined content, in huge pages when the kernel has them. It
  // returns to the pool when the last owner releases it, in any thread.
  // Throws: std::bad_alloc.
  std::shared_ptr<std::byte[]> take(std::size_t bytes);

  // Bytes that take(bytes) allocates.
  static std::size_t capacity(std::size_t bytes);

  // Keeps at most this many released bytes for the next take() (0 at first). Frees released memory
  // above that.
  void keep(uint64_t bytes);
  uint64_t kept() const;

 private:
  class FreeList;
  std::shared_ptr<FreeList> free_list_;
};

}  // namespace ringside::bridge
