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
constexpr std::size_t kCopyBytes = 256 * 1024;       // copied and hashed at once: fits the L2 cache
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
    if (ZSTD_findFrameCompressedSize(out.back().data(), length) != length) {
      return malformed("a plane is not one whole zstd frame");
    }
  }
  if (!rest.empty()) return malformed(std::to_string(rest.size()) + " bytes after the last plane");
  return out;
}

// Puts byte planes together to words.
template <class Word>
Status read_planes(ZSTD_DCtx* context, std::span<const std::span<const std::byte>> planes,
                   std::vector<unsigned char>& plane, std::vector<Word>& words) {
  for (std::size_t k = 0; k < planes.size(); ++k) {
    const std::size_t size = ZSTD_decompressDCtx(context, plane.data(), plane.size(),
                                                 planes[k].data(), planes[k].size());
    if (ZSTD_isError(size) || size != plane.size()) return malformed("damaged zstd frame");
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = static_cast<Word>(words[i] | static_cast<Word>(plane[i]) << (8 * k));
    }
  }
  return Success{};
}

// The changes of a payload to a tensor of `elements`, all positions in it.
template <class Word>
Result<Changes<Word>> decode(std::span<const std::byte> payload, uint64_t changed,
                             uint64_t elements) {
  if (changed < 1 || changed > std::min(elements, kMaxChanged)) {
    return malformed(std::to_string(changed) + " changes of " + std::to_string(elements) +
                     " elements");
  }
  const auto planes = split(payload, changed, sizeof(Word));
  if (!planes) return planes.error();
  const std::span<const std::span<const std::byte>> frames(planes.value());
  const std::size_t gap_bytes = frames.size() - sizeof(Word);
  const std::unique_ptr<ZSTD_DCtx, FreeDctx> context(ZSTD_createDCtx());
  if (!context) throw std::bad_alloc();
  Changes<Word> out{std::vector<uint32_t>(changed), std::vector<Word>(changed)};
  std::vector<unsigned char> plane(changed);
  if (Status s = read_planes(context.get(), frames.first(gap_bytes), plane, out.gaps); !s) {
    return s.error();
  }
  if (Status s = read_planes(context.get(), frames.subspan(gap_bytes), plane, out.values); !s) {
    return s.error();
  }
  uint64_t end = changed;  // 2^31 gaps of 32 bits do not overflow
  for (const uint32_t gap : out.gaps) end += gap;
  if (end > elements) {  // positions rise strictly as they are coded, so the last is the largest
    return malformed("position " + std::to_string(end - 1) + " of " + std::to_string(elements));
  }
  return out;
}

// Writes changes into the elements [begin, begin + block) of a tensor, block after block.
template <class Word>
class ChangeWriter {
 public:
  explicit ChangeWriter(const Changes<Word>& changes) : changes_(changes) {
    if (!changes_.gaps.empty()) position_ = changes_.gaps[0];
  }
  void write(uint64_t begin, std::span<std::byte> block) {
    const uint64_t end = begin + block.size() / sizeof(Word);
    while (next_ < changes_.gaps.size() && position_ < end) {
      std::memcpy(block.data() + (position_ - begin) * sizeof(Word), &changes_.values[next_],
                  sizeof(Word));
      if (++next_ < changes_.gaps.size()) position_ += 1 + uint64_t{changes_.gaps[next_]};
    }
  }

 private:
  const Changes<Word>& changes_;
  std::size_t next_ = 0;
  uint64_t position_ = 0;  // of the next change
};

template <class Word>
Status apply(std::span<const std::byte> payload, uint64_t changed, std::span<std::byte> target) {
  const auto changes = decode<Word>(payload, changed, target.size() / sizeof(Word));
  if (!changes) return changes.error();
  ChangeWriter<Word>(changes.value()).write(0, target);
  return Success{};
}

template <class Word>
Status copy(std::span<const std::byte> payload, uint64_t changed, std::span<const std::byte> base,
            std::span<std::byte> target, Hash128& hash) {
  const auto changes = decode<Word>(payload, changed, target.size() / sizeof(Word));
  if (!changes) return changes.error();
  ChangeWriter<Word> writer(changes.value());
  for (std::size_t at = 0; at < target.size(); at += kCopyBytes) {
    const auto block = target.subspan(at, std::min(kCopyBytes, target.size() - at));
    std::memcpy(block.data(), base.data() + at, block.size());
    writer.write(at / sizeof(Word), block);
    hash.update(block);
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

Status copy_overwritten(std::span<const std::byte> payload, uint64_t changed,
                        std::size_t element_bytes, std::span<const std::byte> base,
                        std::span<std::byte> target, Hash128& hash) {
  if (base.size() != target.size()) {
    throw std::invalid_argument("copy_overwritten: base of " + std::to_string(base.size()) +
                                " bytes, target of " + std::to_string(target.size()));
  }
  switch (element_bytes) {
    case 1:
      return copy<uint8_t>(payload, changed, base, target, hash);
    case 2:
      return copy<uint16_t>(payload, changed, base, target, hash);
    case 4:
      return copy<uint32_t>(payload, changed, base, target, hash);
    case 8:
      return copy<uint64_t>(payload, changed, base, target, hash);
    default:
      return malformed("elements of " + std::to_string(element_bytes) + " bytes");
  }
}

}  // namespace ringside::bridge
