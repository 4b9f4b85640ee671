// Names of keys in earlier versions, and values that earlier versions and other systems write.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ringside::rl {

struct RenamedKey {
  std::string_view before;
  std::string_view now;
};
// Keys of earlier versions of Ringside.
std::span<const RenamedKey> renamed_keys();

struct RenamedValue {
  std::string_view key;
  std::string_view theirs;
  std::string_view ours;  // a value of the key, which more words may follow
};
// Values of Ringside's earlier versions and of other systems, in lower case with '_' for '-'.
std::span<const RenamedValue> renamed_values();

// "; did you mean bfloat16?" for a value that is none of `names`; "" when none is near.
std::string value_suggestion(std::string_view key, std::string_view text,
                             std::span<const std::string_view> names);

}  // namespace ringside::rl
