// Sequential MessagePack reader without an object tree, which would take several times the size of
// a message with one number a token. Allocates nothing for a length before that many bytes are
// known to be there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ringside::bridge::prime_rl {

// Error in a message, with the text for a log. Used inside this folder only.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws: Refused, from every method except the constructor and done(), when the next value is
// truncated or has another type. The position is then undefined.
// Thread safety: none.
class Cursor {
 public:
  // The bytes must outlive the cursor.
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // Reads a nil if it is next; returns whether it did.
  bool take_nil();
  bool boolean();
  int64_t integer();  // any integer that fits into int64_t
  // A float of either width, or an integer, because Python writes 0 for an int in a list of floats.
  double real();
  std::string_view text(std::size_t max_bytes);  // UTF-8, in the message's bytes
  // Reads an array header and returns the number of values. It is at most max_items and at most the
  // number of remaining bytes.
  std::size_t array(std::size_t max_items);

  std::size_t position() const { return position_; }
  bool done() const { return position_ == bytes_.size(); }

 private:
  uint8_t peek() const;
  uint64_t big_endian(std::size_t bytes);
  [[noreturn]] void refuse_type(const char* expected) const;

  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
};

}  // namespace ringside::bridge::prime_rl
