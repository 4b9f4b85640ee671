// What was sampled, as the reply that a harness gets: its text, cut at the texts that end it, with
// tool calls and reasoning read out of it. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/chat/message_parser.h"
#include "rl/gateway/model_request.h"
#include "rl/gateway/session.h"

namespace ringside::rl {

// The parser `name` (of rl/chat/parser_table.h, or "none": all is content) for a request's
// completions. prompt: their prompt's ids, whose end says whether reasoning has begun.
// Throws: as make_message_parser().
std::shared_ptr<const MessageParser> reply_parser(const std::string& name,
                                                  const ModelRequest& asked,
                                                  std::span<const int64_t> prompt,
                                                  const engine::Tokenizer& tokenizer);

// Cuts the answer behind the first token with which its text has one of these texts. Returns that
// text, "" if there is none.
std::string cut_at_stop(TokenAnswer& answer, const std::vector<std::string>& stops,
                        const engine::Tokenizer& tokenizer);

// The first of `stops` in the text, by its place; "" if there is none.
std::string first_stop(const std::string& text, const std::vector<std::string>& stops);

// The reply of an answer. A stop id is no part of its text, and neither is `stop_text` with what
// follows. seed: of the request, from which tool calls get ids of nine letters and digits, as some
// chat templates demand.
ModelReply read_reply(const TokenAnswer& answer, const std::string& stop_text,
                      const ModelRequest& asked, const engine::Tokenizer& tokenizer,
                      const MessageParser& parser, uint64_t seed);

// A call of a message with the id that read_reply() gives it: the model's, otherwise one of nine
// letters and digits. index: among the reply's calls.
ReplyToolCall numbered_call(ToolCall call, uint64_t seed, std::size_t index);

}  // namespace ringside::rl
