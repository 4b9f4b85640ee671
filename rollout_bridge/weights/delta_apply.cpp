// Decoder of delta_codec.h; payloads are untrusted.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "rollout_bridge/weights/delta_scratch.h"

namespace ringside::bridge {
namespace {

using namespace delta;

// Bytes copied and hashed at once; fits the L2 cache.
constexpr std::size_t kCopyBytes = 256 * 1024;

Error malformed(const std::string& what) {
  return {Reason::kMalformed, "overwrite payload: " + what};
}

Status unknown_width(std::size_t element_bytes) {
  return malformed("elements of " + std::to_string(element_bytes) + " bytes");
}

// Splits a payload into its zstd frames. Each must decompress to one byte a changed element.
Result<std::vector<std::span<const std::byte>>> split(std::span<const std::byte> payload,
                                                      uint64_t changed, std::size_t element_bytes) {
  if (payload.empty()) {
    return malformed("empty");
  }
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
    if (content != changed) {
      return malformed("a plane does not hold one byte a changed element");
    }
    if (ZSTD_findFrameCompressedSize(out.back().data(), length) != length) {
      return malformed("a plane is not one whole zstd frame");
    }
  }
  if (!rest.empty()) {
    return malformed(std::to_string(rest.size()) + " bytes after the last plane");
  }
  return out;
}

// Combines byte planes to words.
template <class Word>
Status read_planes(std::span<const std::span<const std::byte>> planes, std::vector<Word>& words,
                   Scratch& scratch) {
  scratch.plane.resize(words.size());
  for (std::size_t k = 0; k < planes.size(); ++k) {
    const std::size_t size =
        ZSTD_decompressDCtx(scratch.decompressing(), scratch.plane.data(), scratch.plane.size(),
                            planes[k].data(), planes[k].size());
    if (ZSTD_isError(size) || size != words.size()) {
      return malformed("damaged zstd frame");
    }
    for (std::size_t i = 0; i < words.size(); ++i) {
      const auto byte = std::to_integer<unsigned char>(scratch.plane[i]);
      words[i] = static_cast<Word>(words[i] | static_cast<Word>(byte) << (8 * k));
    }
  }
  return Success{};
}

// Decodes the changes of a payload for a tensor of `elements`. Every position is checked to be
// inside it.
template <class Word>
Result<Changes<Word>> decode(std::span<const std::byte> payload, uint64_t changed,
                             uint64_t elements, Scratch& scratch) {
  if (changed < 1 || changed > std::min(elements, kMaxChanged)) {
    return malformed(std::to_string(changed) + " changes of " + std::to_string(elements) +
                     " elements");
  }
  const auto planes = split(payload, changed, sizeof(Word));
  if (!planes) {
    return planes.error();
  }
  const std::span<const std::span<const std::byte>> frames(planes.value());
  const std::size_t gap_bytes = frames.size() - sizeof(Word);
  Changes<Word> out{std::vector<uint32_t>(changed), std::vector<Word>(changed)};
  if (Status s = read_planes(frames.first(gap_bytes), out.gaps, scratch); !s) {
    return s.error();
  }
  if (Status s = read_planes(frames.subspan(gap_bytes), out.values, scratch); !s) {
    return s.error();
  }
  uint64_t end = changed;  // cannot overflow: at most 2^31 gaps of 32 bits
  for (const uint32_t gap : out.gaps) {
    end += gap;
  }
  if (end > elements) {  // positions rise strictly, so the last one is the largest
    return malformed("position " + std::to_string(end - 1) + " of " + std::to_string(elements));
  }
  return out;
}

// Writes changes into the elements [begin, begin + block) of a tensor, block by block.
template <class Word>
class ChangeWriter {
 public:
  explicit ChangeWriter(const Changes<Word>& changes) : changes_(changes) {
    if (!changes_.gaps.empty()) {
      position_ = changes_.gaps[0];
    }
  }
  void write(uint64_t begin, std::span<std::byte> block) {
    const uint64_t end = begin + block.size() / sizeof(Word);
    while (next_ < changes_.gaps.size() && position_ < end) {
      std::memcpy(block.data() + (position_ - begin) * sizeof(Word), &changes_.values[next_],
                  sizeof(Word));
      if (++next_ < changes_.gaps.size()) {
        position_ += 1 + uint64_t{changes_.gaps[next_]};
      }
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
  if (!changes) {
    return changes.error();
  }
  ChangeWriter<Word>(changes.value()).write(0, target);
  return Success{};
}

template <class Word>
Status copy(std::span<const std::byte> payload, uint64_t changed, std::span<const std::byte> base,
            std::span<std::byte> target, Hash128& hash, Scratch& scratch) {
  const auto changes = decode<Word>(payload, changed, target.size() / sizeof(Word), scratch);
  if (!changes) {
    return changes.error();
  }
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
