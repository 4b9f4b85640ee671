#include "rl/gateway/reply_reader.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "rl/chat/parser_table.h"
#include "rl/data/data_order.h"

namespace ringside::rl {
namespace {

std::string tool_call_id(uint64_t seed, std::size_t index) {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::string id;
  for (uint64_t left = mix_seed({seed, index}); id.size() < 9; left /= kDigits.size()) {
    id += kDigits[left % kDigits.size()];
  }
  return id;
}

// The answer's text without a stop id, and without `stop_text` and what follows.
std::string reply_text(const TokenAnswer& answer, const std::string& stop_text,
                       const engine::Tokenizer& tokenizer) {
  std::span<const int64_t> said = answer.sampled.ids;
  if (answer.stopped) {
    said = said.first(said.size() - 1);
  }
  const std::string text = tokenizer.decode(said, /*skip_special=*/false);
  const std::size_t stop = stop_text.empty() ? std::string::npos : text.find(stop_text);
  return text.substr(0, stop);  // a stop text that is the stop id's is cut off already
}

}  // namespace

std::string first_stop(const std::string& text, const std::vector<std::string>& stops) {
  std::string first;
  std::size_t place = std::string::npos;
  for (const std::string& stop : stops) {
    if (const std::size_t found = text.find(stop); found < place) {
      place = found;
      first = stop;
    }
  }
  return first;
}

std::shared_ptr<const MessageParser> reply_parser(const std::string& name,
                                                  const ModelRequest& asked,
                                                  std::span<const int64_t> prompt,
                                                  const engine::Tokenizer& tokenizer) {
  constexpr std::size_t kEnd = 64;  // ids, which hold any opening tag
  if (name == "none" || asked.asked.empty()) {
    return plain_parser({.reasoning = ReasoningStart::kNone});  // all is content
  }
  const std::string end =
      tokenizer.decode(prompt.last(std::min(kEnd, prompt.size())), /*skip_special=*/false);
  const ParserOptions options{.reasoning = reasoning_start(name, end),
                              .read_calls = !asked.asked.tools.is_null(),
                              .tools = asked.asked.tools};
  return make_message_parser(name, options);
}

std::string cut_at_stop(TokenAnswer& answer, const std::vector<std::string>& stops,
                        const engine::Tokenizer& tokenizer) {
  const std::span<const int64_t> ids = answer.sampled.ids;
  const auto stop_within = [&](std::size_t count) {
    return first_stop(tokenizer.decode(ids.first(count), /*skip_special=*/false), stops);
  };
  if (stops.empty() || stop_within(ids.size()).empty()) {
    return "";
  }
  std::size_t without = 0, with = ids.size();  // more tokens never lose a text
  while (with - without > 1) {
    const std::size_t middle = (without + with) / 2;
    (stop_within(middle).empty() ? without : with) = middle;
  }
  const std::string stop = stop_within(with);
  if (with < ids.size()) {
    answer.stopped = false;  // the stop id is cut off
  }
  answer.sampled.ids.resize(with);
  answer.sampled.logprobs.resize(with);
  return stop;
}

ReplyToolCall numbered_call(ToolCall call, uint64_t seed, std::size_t index) {
  return {call.id.empty() ? tool_call_id(seed, index) : std::move(call.id), std::move(call.name),
          std::move(call.arguments)};
}

ModelReply read_reply(const TokenAnswer& answer, const std::string& stop_text,
                      const ModelRequest& asked, const engine::Tokenizer& tokenizer,
                      const MessageParser& parser, uint64_t seed) {
  ModelReply reply;
  reply.ids = answer.sampled.ids;
  reply.logprobs = answer.sampled.logprobs;
  reply.stop_text = stop_text;
  reply.finish = answer.stopped || !stop_text.empty() ? ReplyFinish::kStop : ReplyFinish::kLength;
  reply.text = reply_text(answer, stop_text, tokenizer);
  ParsedMessage message = parser.parse(reply.text);
  reply.reasoning = std::move(message.reasoning);
  reply.content = std::move(message.content);
  for (ToolCall& call : message.tool_calls) {
    reply.tool_calls.push_back(numbered_call(std::move(call), seed, reply.tool_calls.size()));
    reply.finish = ReplyFinish::kToolCalls;
  }
  for (std::size_t i = 0; asked.logprobs && i < reply.ids.size(); ++i) {
    reply.tokens.push_back(tokenizer.decode(std::span(reply.ids).subspan(i, 1), false));
  }
  return reply;
}

}  // namespace ringside::rl
