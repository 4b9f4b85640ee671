// Guards that a tensor rebuilt from its changes is the published one bit for bit, for every dtype
// and density, and that no payload, however damaged, writes outside the tensor or half of itself.
#include "rollout_bridge/weights/delta_codec.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>

namespace ringside::bridge {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937& rng, std::size_t count) {
  Bytes out(count);
  for (std::byte& b : out) {
    b = static_cast<std::byte>(rng());
  }
  return out;
}

// A copy with each element replaced with probability `density`.
Bytes changed_copy(std::mt19937& rng, const Bytes& base, std::size_t element, double density) {
  std::uniform_real_distribution<double> uniform;
  Bytes next = base;
  for (std::size_t i = 0; i + element <= next.size(); i += element) {
    if (uniform(rng) < density) {
      next[i + rng() % element] ^= static_cast<std::byte>(1 + rng() % 255);
    }
  }
  return next;
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return Bytes(bytes.begin(), bytes.end());
}

TEST_CASE("applied changes make the new bytes, at any dtype, size and density", "[delta]") {
  std::mt19937 rng(11);
  int sent = 0;
  for (const std::size_t element : {1, 2, 4, 8}) {
    for (const std::size_t elements : {0, 1, 2, 31, 32, 33, 1000, 70001}) {
      for (const double density : {0.0, 0.0005, 0.01, 0.3, 0.6, 1.0}) {
        const Bytes base = random_bytes(rng, element * elements);
        const Bytes next = changed_copy(rng, base, element, density);
        const auto delta = encode_overwrite(base, next, element);
        if (!delta) {
          continue;
        }
        CAPTURE(element, elements, density, delta->changed);
        REQUIRE((delta->changed == 0) == (base == next));
        if (delta->changed == 0) {
          REQUIRE(delta->payload.empty());
          continue;
        }
        REQUIRE(delta->payload.size() < next.size());
        Bytes target = base;
        for (int twice = 0; twice < 2; ++twice) {  // values, not differences
          REQUIRE(apply_overwrite(delta->payload, delta->changed, element, target).ok());
          REQUIRE((target == next));  // without printing them
        }
        ++sent;
      }
    }
  }
  CHECK(sent >= 20);  // the rest had nothing to send, or too much
}

TEST_CASE("NaN payloads and signs of zero are changes and survive", "[delta]") {
  std::vector<uint16_t> base(4000, 0x3f80), next = base;
  base[7] = 0x0000, next[7] = 0x8000;        // 0.0 to -0.0: equal as numbers
  base[2000] = 0x7fc1, next[2000] = 0x7fc2;  // one NaN to another
  base[3999] = 0x7fc3, next[3999] = 0x7fc3;  // unequal to itself as a number, the same bytes
  const auto delta = encode_overwrite(bytes_of(base), bytes_of(next), 2);
  REQUIRE(delta.has_value());
  CHECK(delta->changed == 2);
  Bytes target = bytes_of(base);
  REQUIRE(apply_overwrite(delta->payload, delta->changed, 2, target).ok());
  CHECK((target == bytes_of(next)));
}

TEST_CASE("gaps of every width come back", "[delta]") {
  for (const std::size_t gap : {0, 255, 256, 65535, 65536, 300000}) {
    std::vector<uint16_t> base(700000, 1), next = base;
    for (const std::size_t at : {std::size_t{0}, gap + 1, 2 * gap + 2}) {
      next[at] = 2;
    }
    const auto delta = encode_overwrite(bytes_of(base), bytes_of(next), 2);
    REQUIRE(delta.has_value());
    CHECK(delta->changed == 3);
    Bytes target = bytes_of(base);
    REQUIRE(apply_overwrite(delta->payload, 3, 2, target).ok());
    CHECK((target == bytes_of(next)));
  }
}

TEST_CASE("where most elements changed, the tensor goes whole", "[delta]") {
  std::mt19937 rng(5);
  const Bytes base = random_bytes(rng, 20000);
  CHECK_FALSE(encode_overwrite(base, changed_copy(rng, base, 2, 1.0), 2).has_value());
  CHECK(encode_overwrite(base, changed_copy(rng, base, 2, 0.3), 2).has_value());
  const Bytes tiny = random_bytes(rng, 8);  // the table of lengths alone is longer
  CHECK_FALSE(encode_overwrite(tiny, changed_copy(rng, tiny, 4, 0.5), 4).has_value());
  CHECK_THROWS_AS(encode_overwrite(base, tiny, 2), std::invalid_argument);
  CHECK_THROWS_AS(encode_overwrite(tiny, tiny, 3), std::invalid_argument);
}

// What the wire costs where it matters: few changes to weights drawn like a model's.
TEST_CASE("a changed bf16 element costs at most 3.5 bytes", "[delta]") {
  std::mt19937 rng(3);
  std::normal_distribution<float> weight(0.0F, 0.02F);
  std::vector<uint16_t> base(1 << 20);
  for (uint16_t& w : base) {
    const float value = weight(rng);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    w = static_cast<uint16_t>(bits >> 16);
  }
  std::uniform_real_distribution<double> uniform;
  for (const double density : {0.001, 0.01, 0.03, 0.1}) {
    std::vector<uint16_t> next = base;
    for (uint16_t& w : next) {
      if (uniform(rng) < density) {
        w = static_cast<uint16_t>(w + 1);
      }
    }
    const auto delta = encode_overwrite(bytes_of(base), bytes_of(next), 2);
    REQUIRE(delta.has_value());
    const double cost =
        static_cast<double>(delta->payload.size()) / static_cast<double>(delta->changed);
    CAPTURE(density, delta->changed, cost);
    CHECK(cost <= 3.5);
  }
}

TEST_CASE("damaged payloads are refused and leave the tensor alone", "[delta]") {
  std::mt19937 rng(17);
  const Bytes base = random_bytes(rng, 6000);
  const auto delta = encode_overwrite(base, changed_copy(rng, base, 2, 0.02), 2);
  REQUIRE(delta.has_value());
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes payload = delta->payload;
    uint64_t changed = delta->changed;
    std::size_t element = 2;
    for (int hits = 1 + static_cast<int>(rng() % 3); hits > 0; --hits) {
      payload[rng() % payload.size()] ^= static_cast<std::byte>(1 + rng() % 255);
    }
    if (rng() % 4 == 0) {
      payload.resize(rng() % payload.size(), std::byte{7});
    }
    if (rng() % 4 == 0) {
      payload.resize(payload.size() + rng() % 20, std::byte{7});
    }
    if (rng() % 4 == 0) {
      changed = rng() % 5 == 0 ? rng() : changed + rng() % 3 - 1;
    }
    if (rng() % 8 == 0) {
      element = std::size_t{1} << (rng() % 4);
    }
    Bytes guarded(64, std::byte{0xA5});  // a fence on both sides
    guarded.insert(guarded.end(), base.begin(), base.end());
    guarded.resize(guarded.size() + 64, std::byte{0xA5});
    const std::span<std::byte> target = std::span(guarded).subspan(64, base.size());
    const Status applied = apply_overwrite(payload, changed, element, target);
    if (!applied) {
      ++refused;
      REQUIRE(std::equal(target.begin(), target.end(), base.begin()));
    }
    for (std::size_t i = 0; i < 64; ++i) {
      REQUIRE(guarded[i] == std::byte{0xA5});
      REQUIRE(guarded[guarded.size() - 1 - i] == std::byte{0xA5});
    }
  }
  CHECK(refused > 10000);
}

TEST_CASE("impossible counts are refused before anything is allocated", "[delta]") {
  Bytes target(100);
  const Bytes payload(50, std::byte{1});
  for (const uint64_t changed :
       {uint64_t{0}, uint64_t{51}, uint64_t{1} << 40, std::numeric_limits<uint64_t>::max()}) {
    CHECK_FALSE(apply_overwrite(payload, changed, 2, target).ok());
  }
  CHECK_FALSE(apply_overwrite(payload, 1, 3, target).ok());
  CHECK_FALSE(apply_overwrite({}, 1, 2, target).ok());
}

// A position just past the end: each gap is valid, their sum is not.
TEST_CASE("positions that leave the tensor are refused", "[delta]") {
  std::vector<uint16_t> base(1000, 1), next = base;
  next[998] = next[999] = 2;
  const auto delta = encode_overwrite(bytes_of(base), bytes_of(next), 2);
  REQUIRE(delta.has_value());
  Bytes whole(2000), shorter(1998);
  CHECK(apply_overwrite(delta->payload, 2, 2, whole).ok());
  CHECK_FALSE(apply_overwrite(delta->payload, 2, 2, shorter).ok());
  CHECK(shorter == Bytes(1998));
}

TEST_CASE("changes made beside the base are those made in place, and hashed", "[delta]") {
  std::mt19937 rng(12);
  for (const std::size_t element : {1, 2, 4, 8}) {
    for (const std::size_t elements : {1, 1000, 300000}) {  // below and above a block
      for (const double density : {0.001, 0.3}) {
        const Bytes base = random_bytes(rng, element * elements);
        Bytes next = changed_copy(rng, base, element, density);
        next.back() ^= std::byte{1};
        const auto delta = encode_overwrite(base, next, element);
        if (!delta) {
          continue;  // dense is shorter
        }
        Bytes target(base.size(), std::byte{0xA5});
        Hash128 hash;
        CAPTURE(element, elements, density);
        REQUIRE(copy_overwritten(delta->payload, delta->changed, element, base, target, hash).ok());
        CHECK(target == next);
        CHECK(hash.hex() == hash128(next));
      }
    }
  }
  Hash128 hash;
  Bytes target(4);
  CHECK_FALSE(copy_overwritten({}, 1, 2, Bytes(4), target, hash).ok());
  CHECK_FALSE(copy_overwritten({}, 1, 3, Bytes(4), target, hash).ok());
  CHECK_THROWS_AS(copy_overwritten({}, 1, 2, Bytes(6), target, hash), std::invalid_argument);
}

}  // namespace
}  // namespace ringside::bridge
