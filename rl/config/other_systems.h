// Keys of other systems (TRL, axolotl, torchtune, torchtitan, verl, prime-rl, OpenRLHF) and what
// they are here.
#pragma once

#include <span>
#include <string_view>

namespace ringside::rl {

struct Translation {
  std::string_view theirs;  // the end of a key, from a dot on; the longest that matches counts
  std::string_view ours;    // a key, which more words may follow
};

// A feature that is not here, or is no key.
struct Absent {
  std::string_view word;      // whole words of a key, where '.' and '_' separate words
  std::string_view sentence;  // what there is instead
};

// Keys of other systems with ours.
std::span<const Translation> translations();

// The first whose word a key holds counts.
std::span<const Absent> absent_features();

}  // namespace ringside::rl
