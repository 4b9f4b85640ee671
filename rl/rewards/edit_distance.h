// Edit distance of two words, for suggestions in error messages. Torch-free.
#pragma once

#include <cstddef>
#include <string_view>

namespace ringside::rl {

// Levenshtein distance in bytes. O(|a| |b|) time, O(|b|) memory.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace ringside::rl
