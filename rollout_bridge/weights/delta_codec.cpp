#include "rollout_bridge/weights/delta_codec.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include "rollout_bridge/weights/delta_scratch.h"

namespace ringside::bridge {

DeltaScratch::DeltaScratch() : impl_(std::make_unique<Impl>()) {}
DeltaScratch::~DeltaScratch() = default;

namespace {

using namespace delta;

// Levels 2 and 3 save nothing on planes of random bytes and cost a third of the speed.
constexpr int kLevel = 1;
constexpr std::size_t kScanBytes = 64;  // bytes compared at once, because most are equal

// Collects the changes. Returns false when there are more than `most` or a gap does not fit into 32
// bits.
template <class Word>
bool scan(std::span<const std::byte> base, std::span<const std::byte> next, uint64_t most,
          Changes<Word>& out) {
  constexpr std::size_t kBlock = kScanBytes / sizeof(Word);
  const std::size_t elements = next.size() / sizeof(Word);
  uint64_t unchanged_from = 0;  // after the last change
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t count = std::min(kBlock, elements - begin);
    const std::byte* a = base.data() + begin * sizeof(Word);
    const std::byte* b = next.data() + begin * sizeof(Word);
    if (std::memcmp(a, b, count * sizeof(Word)) == 0) {
      continue;
    }
    std::array<std::size_t, kBlock> where;  // filled without a branch, which could not be predicted
    std::size_t hits = 0;
    for (std::size_t i = 0; i < count; ++i) {
      where[hits] = i;
      hits += std::memcmp(a + i * sizeof(Word), b + i * sizeof(Word), sizeof(Word)) != 0 ? 1 : 0;
    }
    if (out.values.size() + hits > most) {
      return false;
    }
    for (const std::size_t i : std::span(where).first(hits)) {
      const uint64_t gap = begin + i - unchanged_from;
      if (gap > std::numeric_limits<uint32_t>::max()) {
        return false;
      }
      out.gaps.push_back(static_cast<uint32_t>(gap));
      std::memcpy(&out.values.emplace_back(), b + i * sizeof(Word), sizeof(Word));
      unchanged_from = begin + i + 1;
    }
  }
  return true;
}

// Appends the byte planes of `words` to `payload` and their lengths to the table at `table`.
class PlaneWriter {
 public:
  PlaneWriter(std::size_t planes, std::size_t changed, Scratch& scratch)
      : scratch_(scratch), payload_(1 + planes * sizeof(uint32_t)) {
    scratch_.plane.resize(changed);
  }
  template <class Word>
  void write(const std::vector<Word>& words, std::size_t bytes) {
    std::vector<std::byte>& plane = scratch_.plane;
    for (std::size_t k = 0; k < bytes; ++k) {
      for (std::size_t i = 0; i < words.size(); ++i) {
        plane[i] = static_cast<std::byte>(words[i] >> (8 * k));
      }
      const std::size_t at = payload_.size();
      payload_.resize(at + ZSTD_compressBound(plane.size()));
      const std::size_t size =
          ZSTD_compressCCtx(scratch_.compressing(), payload_.data() + at, payload_.size() - at,
                            plane.data(), plane.size(), kLevel);
      if (ZSTD_isError(size)) {
        throw std::runtime_error(std::string("zstd: ") + ZSTD_getErrorName(size));
      }
      payload_.resize(at + size);
      const auto length = static_cast<uint32_t>(size);
      std::memcpy(payload_.data() + 1 + written_++ * sizeof length, &length, sizeof length);
    }
  }
  std::vector<std::byte> take(std::size_t gap_bytes) {
    payload_[0] = static_cast<std::byte>(gap_bytes);
    return std::move(payload_);
  }

 private:
  Scratch& scratch_;
  std::vector<std::byte> payload_;
  std::size_t written_ = 0;
};

template <class Word>
std::optional<Overwrite> encode(std::span<const std::byte> base, std::span<const std::byte> next,
                                Scratch& scratch) {
  const uint64_t elements = next.size() / sizeof(Word);
  Changes<Word> changes;
  if (!scan(base, next, std::min(elements - elements / 4, kMaxChanged), changes)) {
    return std::nullopt;
  }
  if (changes.values.empty()) {
    return Overwrite{};
  }
  const uint32_t largest = *std::max_element(changes.gaps.begin(), changes.gaps.end());
  const std::size_t gap_bytes = largest < 256 ? 1 : largest < 65536 ? 2 : 4;
  PlaneWriter writer(gap_bytes + sizeof(Word), changes.values.size(), scratch);
  writer.write(changes.gaps, gap_bytes);
  writer.write(changes.values, sizeof(Word));
  Overwrite out{changes.values.size(), writer.take(gap_bytes)};
  if (out.payload.size() >= next.size()) {
    return std::nullopt;
  }
  return out;
}

}  // namespace

std::optional<Overwrite> encode_overwrite(std::span<const std::byte> base,
                                          std::span<const std::byte> next,
                                          std::size_t element_bytes, DeltaScratch* scratch) {
  if (base.size() != next.size() || element_bytes == 0 || next.size() % element_bytes != 0) {
    throw std::invalid_argument("encode_overwrite: " + std::to_string(base.size()) + " and " +
                                std::to_string(next.size()) + " bytes of elements of " +
                                std::to_string(element_bytes));
  }
  return with_word(
      element_bytes, scratch,
      [&](auto word, Scratch& s) { return encode<decltype(word)>(base, next, s); },
      [&]() -> std::optional<Overwrite> {
        throw std::invalid_argument("encode_overwrite: elements of " +
                                    std::to_string(element_bytes) +
                                    " bytes, expected 1, 2, 4 or 8");
      });
}

}  // namespace ringside::bridge
