#include "rl/gateway/pending_answer.h"

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace ringside::rl {
namespace {

constexpr int64_t kNoLimit = int64_t{1} << 31;

// One name for all answers of a request: from the seed of its first sample.
std::string answer_id(uint64_t seed) {
  char text[32];
  std::snprintf(text, sizeof text, "chatcmpl-%016llx", static_cast<unsigned long long>(seed));
  return text;
}

int64_t seconds_since_1970() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch())
      .count();
}

ChatTurns::Context context_of(const Session& session, const ModelRequest& asked, ChatText& text) {
  if (!asked.asked.empty()) {
    return session.context(text, asked.asked);
  }
  if (!asked.prompt_ids.empty()) {
    return {.ids = asked.prompt_ids};
  }
  try {
    return {.ids = text.encode(asked.prompt)};
  } catch (const std::exception& error) {
    throw RequestRefused(400, error.what());
  }
}

}  // namespace

PendingAnswer::PendingAnswer(std::shared_ptr<Session> session, ModelRequest asked, ChatText& text,
                             const std::string& parser)
    : session_(std::move(session)),
      asked_(std::move(asked)),
      text_(text),
      context_(context_of(*session_, asked_, text)),
      requests_(session_->begin(context_, asked_.max_tokens > 0 ? asked_.max_tokens : kNoLimit,
                                asked_.count)),
      parser_(reply_parser(parser, asked_, requests_.front().prompt, text.tokenizer())) {}

ModelReplies PendingAnswer::head() const {
  return {answer_id(requests_.front().seed), seconds_since_1970(), requests_.front().prompt, {}};
}

ModelReplies PendingAnswer::record(std::vector<TokenAnswer> answers) {
  ModelReplies replies = head();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    TokenAnswer& answer = answers[i];
    const std::string stop = cut_at_stop(answer, asked_.stops, tokenizer());
    ModelReply reply = read_reply(answer, stop, asked_, tokenizer(), *parser_, requests_[i].seed);
    const int64_t end = session_->record(context_, answer);
    if (!asked_.asked.empty()) {
      const auto stop_id = answer.stopped ? std::optional(answer.sampled.ids.back()) : std::nullopt;
      session_->add_reply(context_, reply_message(reply), end, stop_id);
    }
    replies.replies.push_back(std::move(reply));
  }
  return replies;
}

}  // namespace ringside::rl
