// What was sampled, as the reply that a harness gets: its text, cut at the texts that end it, with
// tool calls and reasoning read out of it. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/chat/message_parser.h"
#include "rl/gateway/model_request.h"
#include "rl/gateway/session.h"

namespace ringside::rl {

// The message of a completion's text.
using ReplyParser = std::function<ParsedMessage(const std::string& text)>;

// The parser `name` (of rl/chat/parser_table.h, or "none": all is content) for a request's
// completions. prompt: their prompt's ids, whose end says whether reasoning has begun.
// Throws: as make_message_parser().
ReplyParser reply_parser(const std::string& name, const ModelRequest& asked,
                         std::span<const int64_t> prompt, const engine::Tokenizer& tokenizer);

// Cuts the answer behind the first token with which its text has one of these texts. Returns that
// text, "" if there is none.
std::string cut_at_stop(TokenAnswer& answer, const std::vector<std::string>& stops,
                        const engine::Tokenizer& tokenizer);

// The reply of an answer. A stop id is no part of its text, and neither is `stop_text` with what
// follows. seed: of the request, from which tool calls get ids of nine letters and digits, as some
// chat templates demand.
ModelReply read_reply(const TokenAnswer& answer, const std::string& stop_text,
                      const ModelRequest& asked, const engine::Tokenizer& tokenizer,
                      const ReplyParser& parser, uint64_t seed);

}  // namespace ringside::rl
