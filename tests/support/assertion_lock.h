// Catch's assertions are for one thread at a time: two that assert at once damage its records, and
// with them the heap.
#pragma once

#include <mutex>

namespace ringside::test {

// Hold it around the assertions of a rank that is a thread. Nothing that waits for another rank is
// called meanwhile.
[[nodiscard]] inline std::unique_lock<std::recursive_mutex> assertion_lock() {
  static std::recursive_mutex mutex;
  return std::unique_lock(mutex);
}

}  // namespace ringside::test
