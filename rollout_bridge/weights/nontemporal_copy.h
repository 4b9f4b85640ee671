// A copy past the caches, for bytes that come once and are not read again soon: received weights.
// An ordinary copy first reads the lines it is about to overwrite and pushes everything else out of
// the caches, among it what the network is just bringing in.
#pragma once

#include <cstddef>
#include <span>

namespace ringside::bridge {

// From this size on it pays: what is smaller stays in cache until it is used.
constexpr std::size_t kStreamBytes = 256 * 1024;

// Copies `from` to `to`, which do not overlap and are equally long; done when it returns, for other
// threads too. Where the processor has no such stores it is an ordinary copy. Thread-safe.
void stream_copy(std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace ringside::bridge
