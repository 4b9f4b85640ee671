// The formats of completions, one file each. A parser that is made here reads one request's
// completions.
// Source: the parsers of vLLM 0.24 named below; tests/oracle/message_parsers.py lists the
// differences with their reasons.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "rl/chat/message_parser.h"
#include "rl/chat/reasoning.h"

namespace ringside::rl {

// What a request tells the parser of its completions.
struct ParserOptions {
  ReasoningStart reasoning = ReasoningStart::kByModel;
  // Whether calls are read. If not, they are content: the request has no tools, or its tool_choice
  // is none. GPT-OSS's calls are always read, because its content has messages of its own.
  bool read_calls = true;
  // The request's tools as OpenAI's protocol has them, or null. Formats whose values have no types
  // take them from the schemas. A call of a tool that is not among them is a call like any other.
  nlohmann::json tools = nullptr;
};

// Text without tool calls, with <think> tags.
std::unique_ptr<MessageParser> plain_parser(const ParserOptions& options);

// Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, after the content. If
// one call cannot be read, all of them are content. Source: hermes and qwen3.
std::unique_ptr<MessageParser> hermes_parser(const ParserOptions& options);

// Qwen3-Coder: <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>,
// after the content. A call whose end is missing is a call with the parameters that are complete.
// Source: qwen3_coder and qwen3.
std::unique_ptr<MessageParser> qwen3_coder_parser(const ParserOptions& options);

// Llama 3: {"name": ..., "parameters": {...}}, with or without <|python_tag|> before it, several
// with anything between them. If an object in the text is no call, all is content.
// Source: llama3_json and deepseek_r1.
std::unique_ptr<MessageParser> llama3_json_parser(const ParserOptions& options);

// Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}] or, from tokenizer version 11 on,
// [TOOL_CALLS]NAME[ARGS]{...} for each call, with arguments that are not checked; [THINK] tags.
// Source: mistral, for both.
std::unique_ptr<MessageParser> mistral_parser(const ParserOptions& options);

// DeepSeek V3 and R1, calls between <｜tool▁calls▁begin｜> and its end, their arguments in a block
// of Markdown and not checked. A call whose end is missing is dropped. Source: deepseek_v3 and
// deepseek_r1.
std::unique_ptr<MessageParser> deepseek_v3_parser(const ParserOptions& options);

// The same for DeepSeek V3.1, without type and block. Source: deepseek_v31 and deepseek_r1.
std::unique_ptr<MessageParser> deepseek_v31_parser(const ParserOptions& options);

// GLM 4.5 to 4.7: <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>,
// anywhere in the content. Of a call whose end is missing the arguments count that are complete.
// Source: glm45, for both.
std::unique_ptr<MessageParser> glm_parser(const ParserOptions& options);

// Kimi K2: <|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>{...}
// <|tool_call_end|> after <|tool_calls_section_begin|>, with arguments that are not checked.
// functions.NAME:NUMBER is the call's id. A call whose end is missing is dropped.
// Source: kimi_k2, for both.
std::unique_ptr<MessageParser> kimi_parser(const ParserOptions& options);

// MiniMax M2: <invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>, several in
// <minimax:tool_call> and its end, anywhere in the content. Of a call whose end is missing the
// parameters count that are complete. Source: minimax_m2, for both.
std::unique_ptr<MessageParser> minimax_parser(const ParserOptions& options);

// Gemma 4: <|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>,KEY:VALUE}<tool_call|>, anywhere in the
// content; reasoning between <|channel>thought and <channel|>. A call whose end is missing has what
// came of its arguments. Source: gemma4, for both.
std::unique_ptr<MessageParser> gemma4_parser(const ParserOptions& options);

// GPT-OSS: harmony's messages. The channel analysis is reasoning, final and commentary without a
// recipient are content, a recipient functions.NAME is called; other messages are dropped.
// options.reasoning has no effect. Source: vllm/parser/harmony.py and openai_harmony 0.0.8.
std::unique_ptr<MessageParser> harmony_parser(const ParserOptions& options);

}  // namespace ringside::rl
