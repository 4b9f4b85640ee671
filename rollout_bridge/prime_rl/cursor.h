// Reads a MessagePack message from front to back without building a tree of it: a message of
// columns with one number a token would take several times its size as objects. Nothing is
// allocated for a length before that many bytes are known to be there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ringside::bridge::prime_rl {

// What is wrong with a message, in words for a log. Does not leave this folder.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Every method but the constructor and done() throws Refused when the next value is cut off, or of
// another type than asked for; the position is then undefined. Not thread-safe.
class Cursor {
 public:
  // The bytes must outlive the cursor.
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // Takes a nil if that is what comes next.
  bool take_nil();
  bool boolean();
  int64_t integer();  // any integer that fits
  // A float of either width, or an integer: Python writes 0 where a list of floats holds an int.
  double real();
  std::string_view text(std::size_t max_bytes);  // UTF-8, in the message's bytes
  // The head of an array: how many values follow. At most as many as there are bytes left, and at
  // most max_items.
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
