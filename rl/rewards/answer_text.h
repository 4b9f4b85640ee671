// Extraction of the answer from a completion. All functions are linear in the text and safe for any
// bytes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ringside::rl {

// The text without surrounding ASCII white space.
std::string_view strip(std::string_view text);

// Texts that may end a completion.
using StopTexts = std::span<const std::string>;

// The completion without a stop text at its very end, the longest of several, and without the white
// space around the rest. A sampler appends the stop text.
std::string_view without_stop(std::string_view completion, StopTexts stops);

// The answer inside a completion, stripped: the text between the last `separator` and the first
// stop text after it. An empty separator means the beginning of the completion; without a stop text
// the answer goes to its end. nullopt when the separator does not occur.
std::optional<std::string_view> final_answer(std::string_view completion,
                                             std::string_view separator, StopTexts stops);

enum class BoxState { kNone, kUnclosed, kClosed };
struct Box {
  BoxState state = BoxState::kNone;
  std::string_view content;  // stripped; empty unless closed
};
// The last \boxed{...} (or \fbox{...}), with braces nested to any depth. \{ and \} are counted,
// because they are balanced too. "\boxed 5" without braces holds the next word.
Box last_box(std::string_view text);

// The content of the last ```-fenced block whose info string is one of `languages`, which are
// separated by '|' ("python|py"). If the fence is never closed, the content extends to the end of
// the text. nullopt when there is no such block.
std::optional<std::string_view> last_block(std::string_view text, std::string_view languages);

}  // namespace ringside::rl
