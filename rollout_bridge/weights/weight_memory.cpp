#include "rollout_bridge/weights/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

namespace ringside::bridge {
namespace {

constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kAlignment = 64;

std::byte* allocate(std::size_t capacity) {
  const std::size_t alignment = capacity < kHugePage ? kAlignment : kHugePage;
  void* memory = std::aligned_alloc(alignment, capacity);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  // Advice only; the memory is usable without it.
  if (capacity >= kHugePage) {
    (void)::madvise(memory, capacity, MADV_HUGEPAGE);
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

class WeightMemory::FreeList {
 public:
  FreeList() = default;
  ~FreeList() { trim(0); }
  FreeList(const FreeList&) = delete;
  FreeList& operator=(const FreeList&) = delete;

  std::byte* take(std::size_t capacity) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = free_.find(capacity);
      if (found != free_.end()) {
        std::byte* memory = found->second;
        free_.erase(found);
        kept_ -= capacity;
        return memory;
      }
    }
    return allocate(capacity);
  }

  void reopen(std::byte* memory, std::size_t capacity) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      if (kept_ + capacity <= limit_) {
        free_.emplace(capacity, memory);
        kept_ += capacity;
        return;
      }
    } catch (const std::bad_alloc&) {  // no memory for the free list's entry
    }
    std::free(memory);
  }

  void keep(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
    trim(bytes);
  }

  uint64_t kept() const {
    const std::lock_guard lock(mutex_);
    return kept_;
  }

 private:
  void trim(uint64_t bytes) {
    while (kept_ > bytes) {
      const auto largest = std::prev(free_.end());
      kept_ -= largest->first;
      std::free(largest->second);
      free_.erase(largest);
    }
  }

  mutable std::mutex mutex_;
  std::multimap<std::size_t, std::byte*> free_;  // by capacity
  uint64_t kept_ = 0;
  uint64_t limit_ = 0;
};

WeightMemory::WeightMemory() : free_list_(std::make_shared<FreeList>()) {}

std::size_t WeightMemory::capacity(std::size_t bytes) {
  const std::size_t unit = bytes < kHugePage ? kAlignment : kHugePage;
  return std::max(unit, (bytes + unit - 1) / unit * unit);
}

std::shared_ptr<std::byte[]> WeightMemory::take(std::size_t bytes) {
  const std::size_t taken = capacity(bytes);
  const auto release = [weak = std::weak_ptr(free_list_), taken](std::byte* memory) {
    if (const auto shelf = weak.lock()) {
      return shelf->reopen(memory, taken);
    }
    std::free(memory);  // the pool is gone
  };
  return {free_list_->take(taken), release};
}

void WeightMemory::keep(uint64_t bytes) { free_list_->keep(bytes); }
uint64_t WeightMemory::kept() const { return free_list_->kept(); }

}  // namespace ringside::bridge
