// Separation of reasoning from content by tags in the text, as it grows.
#pragma once

#include <string>
#include <string_view>

#include "rl/chat/message_parser.h"

namespace ringside::rl {

// Where a completion's reasoning begins.
enum class ReasoningStart {
  kNone,      // nowhere: tags are content
  kByModel,   // at an opening tag that the model writes
  kInPrompt,  // at the first byte: the prompt ends with the opening tag
};

// The tags of a family, and how it uses them.
struct ReasoningTags {
  std::string_view open;
  std::string_view close;
  std::string_view call;       // marker of a call, which ends reasoning too; "" if it does not
  bool close_again = true;     // closing tags after the end of reasoning are content
  bool anywhere = false;       // reasoning may begin after content, not at the front alone
  bool keep_space = false;     // white space before the opening tag is reasoning
  bool strip_end = false;      // white space at the end of reasoning is dropped
  std::string_view head = {};  // dropped at the front of reasoning
};

// Qwen: a call ends reasoning, and closing tags after its end are dropped.
// Source: vLLM 0.24, vllm/parser/qwen3.py.
inline constexpr ReasoningTags kQwenReasoning{"<think>", "</think>", "<tool_call>",
                                              false,     false,      true};
// DeepSeek R1 and its distillations. Source: vLLM 0.24, deepseek_r1_reasoning_parser.py.
inline constexpr ReasoningTags kDeepSeekReasoning{"<think>", "</think>", "", true, false, false};
// Mistral. Source: vLLM 0.24, mistral_reasoning_parser.py.
inline constexpr ReasoningTags kMistralReasoning{"[THINK]", "[/THINK]", "", true, true, false};

// GLM 4.5. Source: vLLM 0.24, vllm/parser/glm47_moe.py.
inline constexpr ReasoningTags kGlmReasoning{"<think>", "</think>", "<tool_call>", false,
                                             false,     true,       true};
// MiniMax M2. Source: vLLM 0.24, vllm/parser/minimax_m2.py.
inline constexpr ReasoningTags kMinimaxReasoning{
    "<think>", "</think>", "<minimax:tool_call>", false, false, true, true};
// Kimi K2. Source: vLLM 0.24, kimi_k2_reasoning_parser.py.
inline constexpr ReasoningTags kKimiReasoning{"<think>", "</think>", "<|tool_calls_section_begin|>",
                                              true,      false,      false};
// Gemma 4. Source: vLLM 0.24, vllm/parser/gemma4.py.
inline constexpr ReasoningTags kGemmaReasoning{
    "<|channel>", "<channel|>", "<|tool_call>", false, true, false, true, "thought\n"};

// How the reasoning of a completion begins, by the end of its prompt: after an opening tag in the
// prompt, not at all after a closing tag, otherwise as the model writes it.
ReasoningStart reasoning_start(std::string_view prompt, const ReasoningTags& tags);

// Reasoning and content of one completion, as its text grows.
// Thread safety: none.
class ReasoningSplitter {
 public:
  // At the first byte of a completion.
  ReasoningSplitter(const ReasoningTags& tags, ReasoningStart start);

  // The reasoning and content of the next piece that are certain.
  ParsedMessage read(std::string_view piece);
  // The rest of them, at the end of the text.
  ParsedMessage end();

 private:
  enum class State { kFront, kBefore, kReasoning, kAfter, kContent };

  // One step; false when the next needs more text.
  bool step(ParsedMessage& out);
  bool step_front(ParsedMessage& out);
  bool step_before(ParsedMessage& out);
  bool step_reasoning(ParsedMessage& out);
  bool step_after(ParsedMessage& out);
  // Reasoning without its head and the white space at its end, which is held back.
  void tidy(std::string& reasoning, bool at_end);
  // Moves the text before a marker to `out`, drops the marker, or keeps what may be one's
  // beginning.
  std::string_view take_to_marker(std::string& out,
                                  std::initializer_list<std::string_view> markers);

  ReasoningTags tags_;
  bool in_prompt_;
  bool closed_before_ = false;  // a closing tag without an opening one was dropped
  State state_;
  std::string text_;             // what is not yet certain
  std::size_t front_space_ = 0;  // bytes of white space at its front, as far as it was looked at
  std::string held_;             // reasoning that may be its head, or white space at its end
  bool has_head_;                // the head may still come
};

}  // namespace ringside::rl
