// Memory for tensors that are being received. What a version leaves behind is used again for the
// next one: the first touch of new pages costs more than the transfer. A handle; copies share the
// same memory. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ringside::bridge {

class WeightMemory {
 public:
  WeightMemory();

  // `bytes` of memory with any content, in huge pages where the kernel has them to give. It comes
  // back when the last owner lets go, in whatever thread. Throws std::bad_alloc.
  std::shared_ptr<std::byte[]> take(std::size_t bytes);

  // What take() of so many bytes really takes.
  static std::size_t capacity(std::size_t bytes);

  // Lets memory that nobody owns lie for the next take() up to this many bytes (0 at first); frees
  // what is above.
  void keep(uint64_t bytes);
  uint64_t kept() const;

 private:
  class FreeList;
  std::shared_ptr<FreeList> shelf_;
};

}  // namespace ringside::bridge
