#include "rl/gateway/waiting_request.h"

#include <utility>

namespace ringside::rl {

RequestRefused run_is_over() { return {410, "the run is over"}; }

TokenFeed::TokenFeed(std::size_t requests, std::size_t most_unread)
    : most_unread_(most_unread), unanswered_(requests) {}

void TokenFeed::push(DrawnToken token) {
  const std::lock_guard lock(mutex_);
  is_full_ = is_full_ || unread_.size() >= most_unread_;
  if (!is_full_) {  // once full, tokens behind a gap are of no use
    unread_.push_back(token);
    changed_.notify_one();
  }
}

void TokenFeed::end_one() {
  const std::lock_guard lock(mutex_);
  --unanswered_;
  changed_.notify_one();
}

TokenFeed::News TokenFeed::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !unread_.empty() || unanswered_ == 0; });
  return {std::exchange(unread_, {}), unanswered_ == 0};
}

WaitingRequest::WaitingRequest(TokenRequest request, std::shared_ptr<TokenFeed> feed,
                               std::size_t index)
    : request_(std::move(request)), feed_(std::move(feed)), index_(index) {}

WaitingRequest::~WaitingRequest() {
  if (!is_answered_) {
    fail(std::make_exception_ptr(run_is_over()));
  }
}

void WaitingRequest::drawn(int64_t id, float logprob) {
  if (feed_ != nullptr) {
    feed_->push({index_, id, logprob});
  }
}

void WaitingRequest::answer(TokenAnswer answer) {
  answer_.set_value(std::move(answer));
  end();
}

void WaitingRequest::fail(const std::exception_ptr& why) {
  answer_.set_exception(why);
  end();
}

void WaitingRequest::end() {
  is_answered_ = true;
  if (feed_ != nullptr) {
    feed_->end_one();
  }
}

}  // namespace ringside::rl
