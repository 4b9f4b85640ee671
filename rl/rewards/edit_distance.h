// How far two words are from each other: for errors that name what was probably meant. Torch-free.
#pragma once

#include <cstddef>
#include <string_view>

namespace ringside::rl {

// Levenshtein distance in bytes. O(|a| |b|) time, O(|b|) memory.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace ringside::rl
