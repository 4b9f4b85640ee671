// Keys that nothing reads under the values of other keys.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rl/config/checks.h"
#include "rl/config/config.h"

namespace ringside::rl {

struct UnreadRule {
  std::string_view key;            // or the beginning of several, with '.' or '_' at its end
  std::string_view switch_key;     // the key that decides whether it is read
  bool (*is_read)(const Config&);  // whether something reads the key
  std::string_view reason;         // why it is not read, and after "; or " what would make it read
};

// The table; the keys of losses, which their files declare, are not in it. The first rule that
// applies to a key and does not hold counts.
std::span<const UnreadRule> unread_rules();

// Where each key was written: 0 for the first recipe, then the others, then the command line. Keys
// that only defaults and the preset set have no entry.
using WrittenAt = std::map<std::string, int, std::less<>>;

// Mistakes for keys of `config` that are not read and have another value than both their default
// and `base`, which has the defaults and the preset. A key that was written before the key that
// switches it off is no mistake: `ringside run recipe.yaml eval.every=0` needs no other change.
std::vector<Mistake> unread_keys(const Config& config, const Config& base,
                                 const WrittenAt& written_at);

// Sets every key that is not read to its default.
void reset_unread_keys(Config& config);

}  // namespace ringside::rl
