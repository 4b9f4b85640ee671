// Search for markers in text that arrives in pieces, and Python's white space.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace ringside::rl {

// A marker in a text.
struct MarkerPlace {
  std::size_t at = std::string_view::npos;  // npos: there is none
  std::string_view marker;
};

// The first of the markers in the text. No marker may be the beginning of another.
MarkerPlace first_marker(std::string_view text, std::initializer_list<std::string_view> markers);

// Bytes at the end of the text that may turn out to be the beginning of a marker.
std::size_t begun_marker_bytes(std::string_view text,
                               std::initializer_list<std::string_view> markers);

// Bytes of white space at the front and at the end of a text, as Python's str.strip() removes.
std::size_t space_bytes_at_front(std::string_view text);
std::size_t space_bytes_at_end(std::string_view text);

// The text without white space around it, as Python's str.strip() returns it.
std::string_view python_strip(std::string_view text);

}  // namespace ringside::rl
