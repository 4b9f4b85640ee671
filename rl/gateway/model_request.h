// A request of a harness and its replies, in no dialect: OpenAI's and Anthropic's are read into it
// and written from it (openai_api.h, anthropic_api.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rl/data/chat_format.h"

namespace ringside::rl {

// Fields that set how tokens are drawn (temperature, top_p, seed, penalties) are no part of it: the
// recipe says how, because the trainer computes with the distribution that was sampled from.
struct ModelRequest {
  std::string model;
  Conversation asked = {};  // of a chat request; canonical messages
  std::string prompt = {};  // of a text completion, unless it has prompt_ids
  std::vector<int64_t> prompt_ids = {};
  int64_t max_tokens = 0;               // 0: not set
  int64_t count = 1;                    // completions
  std::vector<std::string> stops = {};  // texts that end a completion, and are no part of it
  bool logprobs = false;
  bool stream = false;
  bool stream_usage = false;      // OpenAI: a last event with the usage
  bool return_token_ids = false;  // vLLM's extension
};

struct ReplyToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON
};

enum class ReplyFinish { kStop, kLength, kToolCalls };

// What a reply says, or a piece of it.
struct ReplyPart {
  std::string reasoning;
  std::string content;
  std::vector<ReplyToolCall> tool_calls;
  std::vector<int64_t> ids;
  std::vector<float> logprobs;
  std::vector<std::string> tokens;  // the text of each id, with logprobs
};

struct ModelReply : ReplyPart {
  ReplyFinish finish = ReplyFinish::kStop;
  std::string stop_text;  // the text of `stops` that ended it, or ""
  std::string text;       // that all of this was read from
};

struct ModelReplies {
  std::string id;       // of the answer
  int64_t created = 0;  // seconds since 1970
  std::vector<int64_t> prompt_ids;
  std::vector<ModelReply> replies;
};

// The reply as the canonical assistant message that a harness sends back.
nlohmann::ordered_json reply_message(const ModelReply& reply);

}  // namespace ringside::rl
