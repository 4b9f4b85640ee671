// FNV-1a hash of integers, the same on every machine: ranks compare plans by it.
#pragma once

#include <cstdint>

namespace ringside::sp {

class FnvHash {
 public:
  // Adds a number, byte by byte, the lowest first.
  void add(int64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash_ = (hash_ ^ ((static_cast<uint64_t>(value) >> (8 * byte)) & 0xff)) * 0x100000001b3ULL;
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ULL;
};

}  // namespace ringside::sp
