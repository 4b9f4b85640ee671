#include "rollout_bridge/delta_codec.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include "rollout_bridge/stream_copy.h"

namespace ringside::bridge {

struct DeltaScratch::Impl {
  struct FreeCctx {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };
  struct FreeDctx {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_CCtx, FreeCctx> compressor;
  std::unique_ptr<ZSTD_DCtx, FreeDctx> decompressor;
  std::vector<std::byte> plane;

  ZSTD_CCtx* compressing() {
    if (!compressor) compressor.reset(ZSTD_createCCtx());
    if (!compressor) throw std::bad_alloc();
    return compressor.get();
  }
  ZSTD_DCtx* decompressing() {
    if (!decompressor) decompressor.reset(ZSTD_createDCtx());
    if (!decompressor) throw std::bad_alloc();
    return decompressor.get();
  }
};

DeltaScratch::DeltaScratch() : impl_(std::make_unique<Impl>()) {}
DeltaScratch::~DeltaScratch() = default;

namespace {

using Scratch = DeltaScratch::Impl;

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
  if (changes.values.empty()) return Overwrite{};
  const uint32_t largest = *std::max_element(changes.gaps.begin(), changes.gaps.end());
  const std::size_t gap_bytes = largest < 256 ? 1 : largest < 65536 ? 2 : 4;
  PlaneWriter writer(gap_bytes + sizeof(Word), changes.values.size(), scratch);
  writer.write(changes.gaps, gap_bytes);
  writer.write(changes.values, sizeof(Word));
  Overwrite out{changes.values.size(), writer.take(gap_bytes)};
  if (out.payload.size() >= next.size()) return std::nullopt;
  return out;
}

Error malformed(const std::string& what) {
  return {Reason::kMalformed, "overwrite payload: " + what};
}

Status unknown_width(std::size_t element_bytes) {
  return malformed("elements of " + std::to_string(element_bytes) + " bytes");
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
Status read_planes(std::span<const std::span<const std::byte>> planes, std::vector<Word>& words,
                   Scratch& scratch) {
  scratch.plane.resize(words.size());
  for (std::size_t k = 0; k < planes.size(); ++k) {
    const std::size_t size =
        ZSTD_decompressDCtx(scratch.decompressing(), scratch.plane.data(), scratch.plane.size(),
                            planes[k].data(), planes[k].size());
    if (ZSTD_isError(size) || size != words.size()) return malformed("damaged zstd frame");
    for (std::size_t i = 0; i < words.size(); ++i) {
      const auto byte = std::to_integer<unsigned char>(scratch.plane[i]);
      words[i] = static_cast<Word>(words[i] | static_cast<Word>(byte) << (8 * k));
    }
  }
  return Success{};
}

// The changes of a payload to a tensor of `elements`, all positions in it.
template <class Word>
Result<Changes<Word>> decode(std::span<const std::byte> payload, uint64_t changed,
                             uint64_t elements, Scratch& scratch) {
  if (changed < 1 || changed > std::min(elements, kMaxChanged)) {
    return malformed(std::to_string(changed) + " changes of " + std::to_string(elements) +
                     " elements");
  }
  const auto planes = split(payload, changed, sizeof(Word));
  if (!planes) return planes.error();
  const std::span<const std::span<const std::byte>> frames(planes.value());
  const std::size_t gap_bytes = frames.size() - sizeof(Word);
  Changes<Word> out{std::vector<uint32_t>(changed), std::vector<Word>(changed)};
  if (Status s = read_planes(frames.first(gap_bytes), out.gaps, scratch); !s) return s.error();
  if (Status s = read_planes(frames.subspan(gap_bytes), out.values, scratch); !s) return s.error();
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
Status apply(std::span<const std::byte> payload, uint64_t changed, std::span<std::byte> target,
             Scratch& scratch) {
  const auto changes = decode<Word>(payload, changed, target.size() / sizeof(Word), scratch);
  if (!changes) return changes.error();
  ChangeWriter<Word>(changes.value()).write(0, target);
  return Success{};
}

template <class Word>
Status copy(std::span<const std::byte> payload, uint64_t changed, std::span<const std::byte> base,
            std::span<std::byte> target, Hash128& hash, Scratch& scratch) {
  const auto changes = decode<Word>(payload, changed, target.size() / sizeof(Word), scratch);
  if (!changes) return changes.error();
  ChangeWriter<Word> writer(changes.value());
  for (std::size_t at = 0; at < target.size(); at += kStreamBytes) {
    const auto from = base.subspan(at, std::min(kStreamBytes, target.size() - at));
    const auto to = target.subspan(at, from.size());
    const bool small = from.size() < kStreamBytes;
    if (!small) scratch.plane.resize(kStreamBytes);
    const auto block = small ? to : std::span(scratch.plane);  // changed in cache, then written out
    std::memcpy(block.data(), from.data(), from.size());
    writer.write(at / sizeof(Word), block);
    hash.update(block);
    if (!small) stream_copy(to, block);
  }
  return Success{};
}

// Calls action(Word{}, scratch) with the unsigned word of so many bytes, or returns otherwise().
template <class Action, class Otherwise>
auto with_word(std::size_t element_bytes, DeltaScratch* given, Action action, Otherwise otherwise)
    -> decltype(otherwise()) {
  DeltaScratch own;
  Scratch& scratch = given ? given->impl() : own.impl();
  switch (element_bytes) {
    case 1:
      return action(uint8_t{}, scratch);
    case 2:
      return action(uint16_t{}, scratch);
    case 4:
      return action(uint32_t{}, scratch);
    case 8:
      return action(uint64_t{}, scratch);
    default:
      return otherwise();
  }
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
                                    std::to_string(element_bytes) + " bytes, expected 1, 2, 4 or 8");
      });
}

Status apply_overwrite(std::span<const std::byte> payload, uint64_t changed,
                       std::size_t element_bytes, std::span<std::byte> target,
                       DeltaScratch* scratch) {
  return with_word(
      element_bytes, scratch,
      [&](auto word, Scratch& s) { return apply<decltype(word)>(payload, changed, target, s); },
      [&] { return unknown_width(element_bytes); });
}

Status copy_overwritten(std::span<const std::byte> payload, uint64_t changed,
                        std::size_t element_bytes, std::span<const std::byte> base,
                        std::span<std::byte> target, Hash128& hash, DeltaScratch* scratch) {
  if (base.size() != target.size()) {
    throw std::invalid_argument("copy_overwritten: base of " + std::to_string(base.size()) +
                                " bytes, target of " + std::to_string(target.size()));
  }
  return with_word(
      element_bytes, scratch,
      [&](auto word, Scratch& s) {
        return copy<decltype(word)>(payload, changed, base, target, hash, s);
      },
      [&] { return unknown_width(element_bytes); });
}

}  // namespace ringside::bridge
