#include "tests/support/standin/pinned_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace ringside::standin {
namespace {

constexpr size_t kPageBytes = 4096;

Bytes whole_pages(Bytes bytes) {
  return {bytes.begin / kPageBytes * kPageBytes,
          (bytes.end + kPageBytes - 1) / kPageBytes * kPageBytes};
}

void set_protection(Bytes pages, int protection) {
  mprotect(reinterpret_cast<void*>(pages.begin), pages.size(), protection);
}

char* map_shared(int file) {
  void* p =
      mmap(nullptr, kPinnedBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (p == MAP_FAILED) {
    throw std::runtime_error("stand-in: cannot map pinned memory");
  }
  return static_cast<char*>(p);
}

}  // namespace

PinnedMemory::PinnedMemory(ReportLog& reports)
    : reports_(reports), heap_(kPinnedBytes, kPageBytes) {
  const int file = memfd_create("standin-pinned", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(kPinnedBytes)) != 0) {
    throw std::runtime_error("stand-in: cannot make a memory file for pinned memory");
  }
  host_ = map_shared(file);
  kernel_ = map_shared(file);
  close(file);
}

bool PinnedMemory::owns(const void* p) const { return p >= host_ && p < host_ + kPinnedBytes; }

bool PinnedMemory::allocated(const void* p) const {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<uintptr_t>(p);
  const auto next = sizes_.upper_bound(address);
  return next != sizes_.begin() && address < std::prev(next)->first + std::prev(next)->second;
}

void* PinnedMemory::kernel_address(const void* p) const {
  return kernel_ + (static_cast<const char*>(p) - host_);
}

void* PinnedMemory::allocate(size_t size) {
  const std::lock_guard lock(mutex_);
  const size_t bytes = heap_.rounded(size);
  const auto offset = heap_.allocate(bytes);
  if (!offset) {
    throw std::runtime_error("stand-in: no room for " + std::to_string(size) +
                             " bytes of pinned memory");
  }
  char* p = host_ + *offset;
  sizes_[reinterpret_cast<uintptr_t>(p)] = bytes;
  std::memset(kernel_address(p), 0xFF, bytes);
  return p;
}

void PinnedMemory::free(void* p) {
  const std::lock_guard lock(mutex_);
  const auto found = sizes_.find(reinterpret_cast<uintptr_t>(p));
  if (found == sizes_.end()) {
    throw std::runtime_error("stand-in: freed pinned memory that is not allocated");
  }
  const Bytes block{found->first, found->first + found->second};
  std::erase_if(guarded_, [&](const Guarded& one) { return block.contains(one.bytes); });
  set_protection(block, PROT_READ | PROT_WRITE);
  madvise(kernel_address(p), block.size(), MADV_REMOVE);
  heap_.free(static_cast<char*>(p) - host_, block.size());
  sizes_.erase(found);
}

void PinnedMemory::guard(Bytes bytes, Moment moment, Copy copy, std::string what) {
  const std::lock_guard lock(mutex_);
  guarded_.push_back({bytes, moment, copy, std::move(what)});
  protect(bytes);
}

void PinnedMemory::release(const std::function<bool(Moment)>& host_knows) {
  const std::lock_guard lock(mutex_);
  const auto kept =
      std::stable_partition(guarded_.begin(), guarded_.end(),
                            [&](const Guarded& one) { return !host_knows(one.moment); });
  const std::vector<Guarded> released(kept, guarded_.end());
  guarded_.erase(kept, guarded_.end());
  for (const Guarded& one : released) {
    protect(one.bytes);
  }
}

void PinnedMemory::release_all() {
  release([](Moment) { return true; });
}

bool PinnedMemory::open_after_fault(const void* p) {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<uintptr_t>(p);
  const Bytes page = whole_pages({address, address + 1});
  bool guarded = false;
  for (const Guarded& one : guarded_) {
    guarded = guarded || one.bytes.overlaps(page);
    if (one.bytes.begin <= address && address < one.bytes.end) {
      const bool writes = one.copy == Copy::kWrites;
      reports_.add(writes ? Fault::kPinnedTouchedEarly : Fault::kPinnedReusedEarly,
                   std::string("the host ") + (writes ? "touches" : "overwrites") +
                       " pinned memory that " + one.what + " on " + to_string(one.moment.stream) +
                       " may still " + (writes ? "write" : "read") +
                       "; wait for an event recorded after the copy");
    }
  }
  if (guarded) {
    set_protection(page, PROT_READ | PROT_WRITE);
  }
  return guarded;
}

// mutex_ is held. Readers first, so that a writer's stricter rule wins on a shared page.
void PinnedMemory::protect(Bytes bytes) const {
  const Bytes pages = whole_pages(bytes);
  set_protection(pages, PROT_READ | PROT_WRITE);
  for (const Copy copy : {Copy::kReads, Copy::kWrites}) {
    for (const Guarded& one : guarded_) {
      const Bytes own = whole_pages(one.bytes);
      const Bytes shared{std::max(own.begin, pages.begin), std::min(own.end, pages.end)};
      if (one.copy == copy && !shared.empty()) {
        set_protection(shared, copy == Copy::kReads ? PROT_READ : PROT_NONE);
      }
    }
  }
}

}  // namespace ringside::standin
