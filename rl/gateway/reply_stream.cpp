#include "rl/gateway/reply_stream.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <utility>

namespace ringside::rl {

GrowingReply::GrowingReply(const PendingAnswer& pending, std::size_t index)
    : pending_(pending),
      seed_(pending.requests().at(index).seed),
      text_stream_(pending.tokenizer()),
      message_(pending.parser()->stream()) {}

void GrowingReply::add(int64_t id, float logprob) {
  if (is_stopped_) {
    return;
  }
  add_token(id, logprob);
  text_ += text_stream_.add(id);
  const std::string unfed = text_.substr(fed_);
  const std::string stop = first_stop(unfed, pending_.asked().stops);
  is_stopped_ = !stop.empty();
  feed(std::string_view(unfed).substr(
      0, is_stopped_ ? unfed.find(stop) : unfed.size() - may_end_bytes()));
}

// Bytes at the end of the text that may be the beginning of a text that ends the reply.
std::size_t GrowingReply::may_end_bytes() const {
  const std::string_view unfed = std::string_view(text_).substr(fed_);
  std::size_t most = 0;
  for (const std::string& stop : pending_.asked().stops) {
    for (std::size_t bytes = std::min(stop.size() - 1, unfed.size()); bytes > most; --bytes) {
      if (stop.starts_with(unfed.substr(unfed.size() - bytes))) {
        most = bytes;
      }
    }
  }
  return most;
}

void GrowingReply::add_token(int64_t id, float logprob) {
  ids_.push_back(id);
  untaken_.ids.push_back(id);
  untaken_.logprobs.push_back(logprob);
  if (pending_.asked().logprobs) {
    untaken_.tokens.push_back(
        pending_.tokenizer().decode(std::span(ids_).last(1), /*skip_special=*/false));
  }
}

void GrowingReply::feed(std::string_view text) {
  fed_ += text.size();
  append(message_->feed(text));
}

void GrowingReply::append(ParsedMessage part) {
  untaken_.reasoning += part.reasoning;
  untaken_.content += part.content;
  for (ToolCall& call : part.tool_calls) {
    untaken_.tool_calls.push_back(numbered_call(std::move(call), seed_, calls_++));
  }
}

ReplyPart GrowingReply::take() {
  const bool is_visible =
      !untaken_.reasoning.empty() || !untaken_.content.empty() || !untaken_.tool_calls.empty();
  return is_visible ? std::exchange(untaken_, {}) : ReplyPart{};
}

ReplyPart GrowingReply::finish(const ModelReply& whole) {
  if (!whole.text.starts_with(std::string_view(text_).substr(0, fed_)) ||
      ids_.size() > whole.ids.size() || !std::equal(ids_.begin(), ids_.end(), whole.ids.begin())) {
    throw std::logic_error("the stream's beginning is not that of the recorded reply");
  }
  for (std::size_t i = ids_.size(); i < whole.ids.size(); ++i) {
    add_token(whole.ids[i], whole.logprobs[i]);
  }
  feed(std::string_view(whole.text).substr(fed_));
  append(message_->finish());
  return std::exchange(untaken_, {});
}

ReplyStream::ReplyStream(PendingAnswer pending, SessionDesk& desk,
                         std::unique_ptr<EventWriter> writer)
    : pending_(std::move(pending)), writer_(std::move(writer)) {
  for (std::size_t i = 0; i < pending_.requests().size(); ++i) {
    replies_.emplace_back(pending_, i);
  }
  feed_ = std::make_shared<TokenFeed>(replies_.size(), kMostUnread);
  answers_ = desk.submit(pending_.requests(), feed_);
}

ReplyStream::~ReplyStream() {
  if (!is_recorded_) {
    try {
      record();
    } catch (const std::exception&) {  // nobody reads why
    }
  }
}

ModelReplies ReplyStream::record() {
  is_recorded_ = true;
  return pending_.record(SessionDesk::wait(std::move(answers_)));
}

std::string ReplyStream::next() {
  const auto fail = [&](int status, const char* why) {
    is_over_ = true;
    return writer_->error(status, why);
  };
  try {
    std::string events;
    while (events.empty() && !is_over_) {
      events = std::exchange(is_begun_, true) ? news() : writer_->begin(pending_.head());
    }
    return events;
  } catch (const RequestRefused& refused) {
    return fail(refused.status(), refused.what());
  } catch (const std::exception& error) {
    return fail(500, error.what());
  }
}

std::string ReplyStream::news() {
  const TokenFeed::News news = feed_->wait();
  for (const DrawnToken& token : news.tokens) {
    replies_.at(token.request).add(token.id, token.logprob);
  }
  std::string events;
  for (std::size_t i = 0; i < replies_.size(); ++i) {
    events += writer_->part(i, replies_[i].take());
  }
  // Whatever became of the rest, what was drawn is sent first.
  return news.ended && news.tokens.empty() ? finish() : events;
}

std::string ReplyStream::finish() {
  is_over_ = true;
  const ModelReplies answer = record();
  std::string events;
  for (std::size_t i = 0; i < replies_.size(); ++i) {
    events += writer_->part(i, replies_[i].finish(answer.replies[i]));
  }
  return events + writer_->end(answer);
}

}  // namespace ringside::rl
