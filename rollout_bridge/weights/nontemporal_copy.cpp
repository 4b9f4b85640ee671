#include "rollout_bridge/weights/nontemporal_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace ringside::bridge {

#ifdef __SSE2__

void stream_copy(std::span<std::byte> to, std::span<const std::byte> from) {
  constexpr std::size_t kLine = 64;
  const auto misaligned = reinterpret_cast<std::uintptr_t>(to.data()) % kLine;
  const std::size_t head = std::min(to.size(), misaligned == 0 ? 0 : kLine - misaligned);
  const std::size_t end = head + (to.size() - head) / kLine * kLine;
  if (head > 0) {
    std::memcpy(to.data(), from.data(), head);
  }
  for (std::size_t at = head; at < end; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from.data() + at);
    auto* target = reinterpret_cast<__m128i*>(to.data() + at);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();  // orders the non-temporal stores
  if (end < to.size()) {
    std::memcpy(to.data() + end, from.data() + end, to.size() - end);
  }
}

#else

void stream_copy(std::span<std::byte> to, std::span<const std::byte> from) {
  std::copy(from.begin(), from.end(), to.begin());
}

#endif

}  // namespace ringside::bridge
