// Where in a completion its answer is. All linear in the text and safe for any bytes.
#pragma once

#include <optional>
#include <string_view>

namespace ringside::rl {

// Without the ASCII white space around it.
std::string_view strip(std::string_view text);

// Without a stop text at its very end (and the white space around what is left): what a sampler
// appends to a completion.
std::string_view without_stop(std::string_view completion, std::string_view stop);

// The answer inside a completion: what follows the last `separator` and stands before the first
// `stop` after it, stripped. An empty separator starts at the beginning, an empty stop ends at the
// end. Nothing when the separator never comes.
std::optional<std::string_view> final_answer(std::string_view completion,
                                             std::string_view separator, std::string_view stop);

enum class BoxState { kNone, kUnclosed, kClosed };
struct Box {
  BoxState state = BoxState::kNone;
  std::string_view content;  // stripped; empty unless closed
};
// The last \boxed{...} (or \fbox{...}), braces nested to any depth, \{ and \} counted as they are
// balanced too;
// "\boxed 5" without braces holds the next word.
Box last_box(std::string_view text);

// What stands inside the last ```-fenced block whose info string is one of `languages` separated by
// '|' ("python|py"), the longest such part of the text when the fence is never closed; nothing when
// there is none.
std::optional<std::string_view> last_block(std::string_view text, std::string_view languages);

}  // namespace ringside::rl
