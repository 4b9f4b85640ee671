#include "rollout_bridge/delta_codec.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

namespace ringside::bridge {
namespace {

// Levels 2 and 3 save nothing on planes of random bytes and cost a third of the speed.
constexpr int kLevel = 1;
constexpr std::size_t kScanBytes = 64;               // compared at once: most of them are equal
constexpr uint64_t kMaxChanged = uint64_t{1} << 31;  // a compressed plane's length fits into u32

template <class Word>
struct Changes {
  std::vector<uint32_t> gaps;
  std::vector<Word> values;
};

// False when there are more than `most` changes or a gap does not fit.
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
    if (std::memcmp(a, b, count * sizeof(Word)) == 0) continue;
    std::array<std::size_t, kBlock> where;  // filled without a branch: nobody can predict it
    std::size_t hits = 0;
    for (std::size_t i = 0; i < count; ++i) {
      where[hits] = i;
      hits += std::memcmp(a + i * sizeof(Word), b + i * sizeof(Word), sizeof(Word)) != 0 ? 1 : 0;
    }
    if (out.values.size() + hits > most) return false;
    for (const std::size_t i : std::span(where).first(hits)) {
      const uint64_t gap = begin + i - unchanged_from;
      if (gap > std::numeric_limits<uint32_t>::max()) return false;
      out.gaps.push_back(static_cast<uint32_t>(gap));
      std::memcpy(&out.values.emplace_back(), b + i * sizeof(Word), sizeof(Word));
      unchanged_from = begin + i + 1;
    }
  }
  return true;
}

struct FreeCctx {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};
struct FreeDctx {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

// Appends the byte planes of `words` to `payload` and their lengths to the table at `table`.
class PlaneWriter {
 public:
  PlaneWriter(std::size_t planes, std::size_t changed)
      : context_(ZSTD_createCCtx()), plane_(changed), payload_(1 + planes * sizeof(uint32_t)) {
    if (!context_) throw std::bad_alloc();
    payload_[0] = static_cast<std::byte>(0);
  }
  template <class Word>
  void write(const std::vector<Word>& words, std::size_t bytes) {
    for (std::size_t k = 0; k < bytes; ++k) {
      for (std::size_t i = 0; i < words.size(); ++i) {
        plane_[i] = static_cast<std::byte>(words[i] >> (8 * k));
      }
      const std::size_t at = payload_.size();
      payload_.resize(at + ZSTD_compressBound(plane_.size()));
      const std::size_t size =
          ZSTD_compressCCtx(context_.get(), payload_.data() + at, payload_.size() - at,
                            plane_.data(), plane_.size(), kLevel);
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
  std::unique_ptr<ZSTD_CCtx, FreeCctx> context_;
  std::vector<std::byte> plane_;
  std::vector<std::byte> payload_;
  std::size_t written_ = 0;
};

template <class Word>
std::optional<Overwrite> encode(std::span<const std::byte> base, std::span<const std::byte> next) {
  const uint64_t elements = next.size() / sizeof(Word);
  Changes<Word> changes;
  if (!scan(base, next, std::min(elements - elements / 4, kMaxChanged), changes)) {
    return std::nullopt;
  }
  if (changes.values.empty()) return Overwrite{};
  const uint32_t largest = *std::max_element(changes.gaps.begin(), changes.gaps.end());
  const std::size_t gap_bytes = largest < 256 ? 1 : largest < 65536 ? 2 : 4;
  PlaneWriter writer(gap_bytes + sizeof(Word), changes.values.size());
  writer.write(changes.gaps, gap_bytes);
  writer.write(changes.values, sizeof(Word));
  Overwrite out{changes.values.size(), writer.take(gap_bytes)};
  if (out.payload.size() >= next.size()) return std::nullopt;
  return out;
}

Error malformed(const std::string& what) {
  return {Reason::kMalformed, "overwrite payload: " + what};
}

// Splits a payload into its zstd frames, checked against the one size they may have.
Result<std::vector<std::span<const std::byte>>> split(std::span<const std::byte> payload,
                                                      uint64_t changed, std::size_t element_bytes) {
  if (payload.empty()) return malformed("empty");
  const auto gap_bytes = static_cast<std::size_t>(payload[0]);
  if (gap_bytes != 1 && gap_bytes != 2 && gap_bytes != 4) {
    return malformed("gaps of " + std::to_string(gap_bytes) + " bytes, expected 1, 2 or 4");
  }
  const std::size_t planes = gap_bytes + element_bytes;
  if (payload.size() < 1 + planes * sizeof(uint32_t)) {
    return malformed(std::to_string(payload.size()) + " bytes, too few for " +
                     std::to_string(planes) + " lengths");
  }
  std::span<const std::byte> rest = payload.subspan(1 + planes * sizeof(uint32_t));
  std::vector<std::span<const std::byte>> out;
  for (std::size_t k = 0; k < planes; ++k) {
    uint32_t length = 0;
    std::memcpy(&length, payload.data() + 1 + k * sizeof length, sizeof length);
    if (length > rest.size()) {
      return malformed("plane of " + std::to_string(length) + " bytes, " +
                       std::to_string(rest.size()) + " left");
    }
    out.push_back(rest.first(length));
    rest = rest.subspan(length);
    const unsigned long long content = ZSTD_getFrameContentSize(out.back().data(), length);
    if (content != changed) return malformed("a plane does not hold one byte a changed element");
  }
  if (!rest.empty()) return malformed(std::to_string(rest.size()) + " bytes after the last plane");
  return out;
}

// Puts byte planes together to words.
template <class Word>
Status read_planes(std::span<const std::span<const std::byte>> planes, std::vector<Word>& words) {
  const std::unique_ptr<ZSTD_DCtx, FreeDctx> context(ZSTD_createDCtx());
  if (!context) throw std::bad_alloc();
  std::vector<unsigned char> plane(words.size());
  for (std::size_t k = 0; k < planes.size(); ++k) {
    const std::size_t size = ZSTD_decompressDCtx(context.get(), plane.data(), plane.size(),
                                                 planes[k].data(), planes[k].size());
    if (ZSTD_isError(size) || size != plane.size()) return malformed("damaged zstd frame");
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = static_cast<Word>(words[i] | static_cast<Word>(plane[i]) << (8 * k));
    }
  }
  return Success{};
}

template <class Word>
Status apply(std::span<const std::byte> payload, uint64_t changed, std::span<std::byte> target) {
  const uint64_t elements = target.size() / sizeof(Word);
  if (changed < 1 || changed > std::min(elements, kMaxChanged)) {
    return malformed(std::to_string(changed) + " changes of " + std::to_string(elements) +
                     " elements");
  }
  const auto planes = split(payload, changed, sizeof(Word));
  if (!planes) return planes.error();
  const std::span<const std::span<const std::byte>> frames(planes.value());
  const std::size_t gap_bytes = frames.size() - sizeof(Word);
  std::vector<uint32_t> gaps(changed);
  std::vector<Word> values(changed);
  if (Status s = read_planes(frames.first(gap_bytes), gaps); !s) return s;
  if (Status s = read_planes(frames.subspan(gap_bytes), values); !s) return s;
  uint64_t end = changed;  // 2^31 gaps of 32 bits do not overflow
  for (const uint32_t gap : gaps) end += gap;
  if (end > elements) {  // positions rise strictly as they are coded, so the last is the largest
    return malformed("position " + std::to_string(end - 1) + " of " + std::to_string(elements));
  }
  std::byte* at = target.data();
  for (uint64_t i = 0; i < changed; ++i) {
    at += gaps[i] * sizeof(Word);
    std::memcpy(at, &values[i], sizeof(Word));
    at += sizeof(Word);
  }
  return Success{};
}

}  // namespace

std::optional<Overwrite> encode_overwrite(std::span<const std::byte> base,
                                          std::span<const std::byte> next,
                                          std::size_t element_bytes) {
  if (base.size() != next.size() || element_bytes == 0 || next.size() % element_bytes != 0) {
    throw std::invalid_argument("encode_overwrite: " + std::to_string(base.size()) + " and " +
                                std::to_string(next.size()) + " bytes of elements of " +
                                std::to_string(element_bytes));
  }
  switch (element_bytes) {
    case 1:
      return encode<uint8_t>(base, next);
    case 2:
      return encode<uint16_t>(base, next);
    case 4:
      return encode<uint32_t>(base, next);
    case 8:
      return encode<uint64_t>(base, next);
    default:
      throw std::invalid_argument("encode_overwrite: elements of " + std::to_string(element_bytes) +
                                  " bytes, expected 1, 2, 4 or 8");
  }
}

Status apply_overwrite(std::span<const std::byte> payload, uint64_t changed,
                       std::size_t element_bytes, std::span<std::byte> target) {
  switch (element_bytes) {
    case 1:
      return apply<uint8_t>(payload, changed, target);
    case 2:
      return apply<uint16_t>(payload, changed, target);
    case 4:
      return apply<uint32_t>(payload, changed, target);
    case 8:
      return apply<uint64_t>(payload, changed, target);
    default:
      return malformed("elements of " + std::to_string(element_bytes) + " bytes");
  }
}

}  // namespace ringside::bridge
