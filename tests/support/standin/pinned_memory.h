// Pinned host memory, guarded while a copy is under way. The same pages are mapped twice: the host
// uses one mapping, copies the other. While a download may still write a range, its host pages are
// inaccessible; while an upload may still read it, they are read-only. They open again when the
// host has waited for the copy. No torch.
//
// A host access that comes too early is reported and then carried out. A range that ends inside a
// page shares it with its neighbour; the first access to the neighbour opens that page.
// Thread safety: any thread; the fault handler calls open_after_fault.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/standin/clock.h"
#include "tests/support/standin/range_heap.h"
#include "tests/support/standin/reports.h"

namespace ringside::standin {

class PinnedMemory {
 public:
  // Throws: std::runtime_error when the system gives no memory file.
  explicit PinnedMemory(ReportLog& reports);
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  bool owns(const void* p) const;             // an address of the host's mapping
  bool allocated(const void* p) const;        // inside a block that is not freed
  void* kernel_address(const void* p) const;  // the same byte in the mapping of the copies

  // Whole pages, filled with 0xFF.
  // Throws: std::runtime_error when the address space is used up.
  void* allocate(size_t size);
  // Frees a block and its guards. The system gets the pages back.
  // Throws: std::runtime_error unless p is a block that is not freed yet.
  void free(void* p);

  enum class Copy { kReads, kWrites };
  // Guards `bytes` until release() finds that the host knows `moment`.
  void guard(Bytes bytes, Moment moment, Copy copy, std::string what);
  // Ends the guards of copies that the host knows to be done.
  void release(const std::function<bool(Moment)>& host_knows);
  // Ends all guards.
  void release_all();

  // Opens the page of a faulting address, and reports when a guarded copy uses the address. False
  // when the page was not guarded.
  bool open_after_fault(const void* p);

 private:
  struct Guarded {
    Bytes bytes;
    Moment moment;
    Copy copy;
    std::string what;
  };

  void protect(Bytes bytes) const;  // as the guarded copies demand

  ReportLog& reports_;
  mutable std::mutex mutex_;
  char* host_ = nullptr;
  char* kernel_ = nullptr;
  RangeHeap heap_;
  std::map<uintptr_t, size_t> sizes_;
  std::vector<Guarded> guarded_;
};

}  // namespace ringside::standin
