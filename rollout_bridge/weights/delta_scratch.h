// Internals shared by delta_codec.cpp and delta_apply.cpp; no other file includes this header.
#pragma once

#include <zstd.h>

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "rollout_bridge/weights/delta_codec.h"

namespace ringside::bridge {

struct DeltaScratch::Impl {
  struct FreeCctx {
    // Frees the context.
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };
  struct FreeDctx {
    // Frees the context.
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_CCtx, FreeCctx> compressor;
  std::unique_ptr<ZSTD_DCtx, FreeDctx> decompressor;
  std::vector<std::byte> plane;

  // The context, made by the first call.
  // Throws: std::bad_alloc.
  ZSTD_CCtx* compressing() {
    if (!compressor) {
      compressor.reset(ZSTD_createCCtx());
    }
    if (!compressor) {
      throw std::bad_alloc();
    }
    return compressor.get();
  }
  // The context, made by the first call.
  // Throws: std::bad_alloc.
  ZSTD_DCtx* decompressing() {
    if (!decompressor) {
      decompressor.reset(ZSTD_createDCtx());
    }
    if (!decompressor) {
      throw std::bad_alloc();
    }
    return decompressor.get();
  }
};

namespace delta {

using Scratch = DeltaScratch::Impl;
constexpr uint64_t kMaxChanged = uint64_t{1} << 31;  // a compressed plane's length fits into u32

template <class Word>
struct Changes {
  std::vector<uint32_t> gaps;
  std::vector<Word> values;
};

// Calls action(Word{}, scratch) with the unsigned integer type of element_bytes bytes; returns
// otherwise() when there is none.
template <class Action, class Otherwise>
auto with_word(std::size_t element_bytes, DeltaScratch* given, Action action, Otherwise otherwise)
    -> decltype(otherwise()) {
  std::optional<DeltaScratch> own;
  Scratch& scratch = given ? given->impl() : own.emplace().impl();
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

}  // namespace delta
}  // namespace ringside::bridge
