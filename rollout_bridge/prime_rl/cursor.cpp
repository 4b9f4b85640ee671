#include "rollout_bridge/prime_rl/cursor.h"

#include <bit>
#include <limits>

namespace ringside::bridge::prime_rl {
namespace {

// First bytes of MessagePack's types (msgpack spec, "Formats").
enum Head : uint8_t {
  kFixMap = 0x80,
  kFixArray = 0x90,
  kFixStr = 0xa0,
  kNil = 0xc0,
  kFalse = 0xc2,
  kTrue = 0xc3,
  kFloat32 = 0xca,
  kFloat64 = 0xcb,
  kUint8 = 0xcc,
  kUint64 = 0xcf,
  kInt8 = 0xd0,
  kInt64 = 0xd3,
  kStr8 = 0xd9,
  kStr32 = 0xdb,
  kArray16 = 0xdc,
  kArray32 = 0xdd,
  kNegative = 0xe0,
};

const char* type_name(uint8_t head) {
  if (head < kFixMap || head >= kNegative || (head >= kUint8 && head <= kInt64)) {
    return "an integer";
  }
  if (head < kFixArray || head > kArray32) {
    return "a map";
  }
  if (head < kFixStr || head >= kArray16) {
    return "an array";
  }
  if (head < kNil || head >= kStr8) {
    return "a string";
  }
  if (head == kNil) {
    return "nil";
  }
  if (head == kFalse || head == kTrue) {
    return "a boolean";
  }
  if (head == kFloat32 || head == kFloat64) {
    return "a float";
  }
  return "bytes";
}

// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<uint8_t>(text[i++]);
    const int more = lead < 0x80                   ? 0
                     : lead >= 0xc2 && lead < 0xe0 ? 1
                     : (lead & 0xf0) == 0xe0       ? 2
                     : lead >= 0xf0 && lead < 0xf5 ? 3
                                                   : -1;
    if (more < 0 || text.size() - i < static_cast<std::size_t>(more)) {
      return false;
    }
    for (int k = 0; k < more; ++k) {
      const auto next = static_cast<uint8_t>(text[i++]);
      const uint8_t low = k > 0 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
      const uint8_t high = k > 0 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
      if (next < low || next > high) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

uint8_t Cursor::peek() const {
  if (done()) {
    throw Refused("the message ends at byte " + std::to_string(position_) + " within a value");
  }
  return static_cast<uint8_t>(bytes_[position_]);
}

void Cursor::refuse_type(const char* expected) const {
  throw Refused(std::string(type_name(peek())) + " at byte " + std::to_string(position_) +
                ", expected " + expected);
}

// Reads the head and the number in the bytes after it.
uint64_t Cursor::big_endian(std::size_t bytes) {
  if (bytes_.size() - position_ < 1 + bytes) {
    throw Refused("the message ends at byte " + std::to_string(bytes_.size()) + " within a value");
  }
  uint64_t value = 0;
  for (std::size_t i = 1; i <= bytes; ++i) {
    value = value << 8 | static_cast<uint64_t>(bytes_[position_ + i]);
  }
  position_ += 1 + bytes;
  return value;
}

bool Cursor::take_nil() {
  const bool nil = peek() == kNil;
  position_ += nil ? 1 : 0;
  return nil;
}

bool Cursor::boolean() {
  const uint8_t head = peek();
  if (head != kFalse && head != kTrue) {
    refuse_type("a boolean");
  }
  ++position_;
  return head == kTrue;
}

int64_t Cursor::integer() {
  const uint8_t head = peek();
  if (head < kFixMap || head >= kNegative) {
    ++position_;
    return static_cast<int8_t>(head);
  }
  if (head < kUint8 || head > kInt64) {
    refuse_type("an integer");
  }
  if (head <= kUint64) {
    const std::size_t at = position_;
    const uint64_t value = big_endian(std::size_t{1} << (head - kUint8));
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw Refused("the integer at byte " + std::to_string(at) + " is above 2^63");
    }
    return static_cast<int64_t>(value);
  }
  const std::size_t width = std::size_t{1} << (head - kInt8);
  const uint64_t raw = big_endian(width);
  const int unused = 64 - 8 * static_cast<int>(width);
  return static_cast<int64_t>(raw << unused) >> unused;  // sign extension
}

double Cursor::real() {
  const uint8_t head = peek();
  if (head == kFloat64) {
    return std::bit_cast<double>(big_endian(8));
  }
  if (head == kFloat32) {
    return std::bit_cast<float>(static_cast<uint32_t>(big_endian(4)));
  }
  if (head >= kFixMap && head < kNegative && (head < kUint8 || head > kInt64)) {
    refuse_type("a float");
  }
  return static_cast<double>(integer());
}

std::string_view Cursor::text(std::size_t max_bytes) {
  const uint8_t head = peek();
  std::size_t length = 0;
  if (head >= kFixStr && head < kNil) {
    length = head - kFixStr;
    ++position_;
  } else if (head >= kStr8 && head <= kStr32) {
    length = big_endian(std::size_t{1} << (head - kStr8));
  } else {
    refuse_type("a string");
  }
  if (length > max_bytes || length > bytes_.size() - position_) {
    throw Refused("a string of " + std::to_string(length) + " bytes at byte " +
                  std::to_string(position_) + ", limit " + std::to_string(max_bytes) + ", left " +
                  std::to_string(bytes_.size() - position_));
  }
  const auto* first = reinterpret_cast<const char*>(bytes_.data() + position_);
  if (!is_utf8({first, length})) {
    throw Refused("a string at byte " + std::to_string(position_) + " that is not UTF-8");
  }
  position_ += length;
  return {first, length};
}

std::size_t Cursor::array(std::size_t max_items) {
  const uint8_t head = peek();
  std::size_t items = 0;
  if (head >= kFixArray && head < kFixStr) {
    items = head - kFixArray;
    ++position_;
  } else if (head == kArray16 || head == kArray32) {
    items = big_endian(head == kArray16 ? 2 : 4);
  } else {
    refuse_type("an array");
  }
  const std::size_t left = bytes_.size() - position_;
  if (items > max_items || items > left) {
    throw Refused("an array of " + std::to_string(items) + " values at byte " +
                  std::to_string(position_) + ", limit " + std::to_string(max_items) +
                  ", bytes left " + std::to_string(left));
  }
  return items;
}

}  // namespace ringside::bridge::prime_rl
