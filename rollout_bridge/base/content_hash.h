// XXH3 hashes (xxhash.com, seed 0): 64 bits for frames and records, 128 bits for tensors and
// weights. libxxhash chooses the instruction set at run time where it can; AVX2 is several times as
// fast as SSE2, with the same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace ringside::bridge {

// XXH3-64. Thread-safe.
uint64_t hash64(std::span<const std::byte> bytes);

// XXH3-128 as 32 lower-case hex digits, high half first. Thread-safe.
std::string hash128(std::span<const std::byte> bytes);

// Incremental XXH3-128.
// Thread safety: none.
class Hash128 {
 public:
  Hash128();  // throws std::bad_alloc
  ~Hash128();
  // A hash that was moved from may only be destroyed or assigned to.
  Hash128(Hash128&&) noexcept;
  Hash128& operator=(Hash128&&) noexcept;

  // Appends bytes.
  void update(std::span<const std::byte> bytes);
  std::string hex() const;  // of the bytes so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringside::bridge
