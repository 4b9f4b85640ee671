// Copy with non-temporal stores, for received weights, which are not read again soon. An ordinary
// copy first reads the cache lines that it overwrites, and evicts other data, among it the bytes
// that the network is delivering.
#pragma once

#include <cstddef>
#include <span>

namespace ringside::bridge {

// Smallest copy for which non-temporal stores pay. Smaller data stays in cache until it is used.
constexpr std::size_t kStreamBytes = 256 * 1024;

// Copies `from` to `to`. The two must not overlap and must have equal length. The bytes are visible
// to all threads when it returns. An ordinary copy where the processor has no such stores.
// Thread safety: any thread.
void stream_copy(std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace ringside::bridge
