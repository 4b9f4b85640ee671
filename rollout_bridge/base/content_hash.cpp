#include "rollout_bridge/base/content_hash.h"

#include <xxhash.h>
#if RINGSIDE_XXH_DISPATCH
#include <xxh_x86dispatch.h>  // replaces the functions below by dispatching ones
#endif

#include <new>

namespace ringside::bridge {
namespace {

std::string hex(XXH128_hash_t hash) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const uint64_t half : {hash.high64, hash.low64}) {
    for (int shift = 60; shift >= 0; shift -= 4) {
      out += kDigits[(half >> shift) & 15];
    }
  }
  return out;
}

}  // namespace

uint64_t hash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string hash128(std::span<const std::byte> bytes) {
  return hex(XXH3_128bits(bytes.data(), bytes.size()));
}

struct Hash128::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(xxh); }
};

Hash128::Hash128() : state_(std::make_unique<State>()) {
  if (state_->xxh == nullptr) {
    throw std::bad_alloc();
  }
  XXH3_128bits_reset(state_->xxh);
}
Hash128::~Hash128() = default;
Hash128::Hash128(Hash128&&) noexcept = default;
Hash128& Hash128::operator=(Hash128&&) noexcept = default;

void Hash128::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}

std::string Hash128::hex() const { return bridge::hex(XXH3_128bits_digest(state_->xxh)); }

}  // namespace ringside::bridge
