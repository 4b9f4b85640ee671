// A request that waits for its tokens, between the thread that serves it and the one that samples.
// Torch-free.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "rl/gateway/session.h"

namespace ringside::rl {

struct DrawnToken {
  std::size_t request = 0;  // of those that the feed is for
  int64_t id = 0;
  float logprob = 0;
};

// Tokens of requests as they are drawn, for the one thread that streams them.
// Thread safety: any threads.
class TokenFeed {
 public:
  // requests: whose answers end the feed. most_unread: tokens that may wait for the reader. Beyond
  // them the feed takes no others, because the answers have them, too: a slow reader neither stops
  // the model nor fills the memory.
  TokenFeed(std::size_t requests, std::size_t most_unread);

  // Never blocks.
  void push(DrawnToken token);
  // One of the requests has its answer, or never gets one.
  void end_one();

  struct News {
    std::vector<DrawnToken> tokens;  // since the last call, oldest first
    bool ended = false;              // all answers are there
  };
  // Blocks: until there is any.
  News wait();

 private:
  const std::size_t most_unread_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<DrawnToken> unread_;
  std::size_t unanswered_;
  bool is_full_ = false;
};

// Thread safety: one thread but for the answer's future. A request that is destroyed without an
// answer is refused (410).
class WaitingRequest {
 public:
  // feed: gets its tokens as number `index`; or null.
  WaitingRequest(TokenRequest request, std::shared_ptr<TokenFeed> feed, std::size_t index);
  ~WaitingRequest();
  WaitingRequest(const WaitingRequest&) = delete;
  WaitingRequest& operator=(const WaitingRequest&) = delete;

  const TokenRequest& request() const { return request_; }
  // Once. Throws as answer() and fail() say.
  std::future<TokenAnswer> future() { return answer_.get_future(); }

  // A token that has been drawn, and is not the last one. May be left out, then the answer brings
  // it. Never blocks.
  void drawn(int64_t id, float logprob);
  // All its tokens. Call one of the two, once.
  void answer(TokenAnswer answer);
  void fail(const std::exception_ptr& why);
  bool is_answered() const { return is_answered_; }

 private:
  void end();

  const TokenRequest request_;
  const std::shared_ptr<TokenFeed> feed_;
  const std::size_t index_;
  std::promise<TokenAnswer> answer_;
  bool is_answered_ = false;
};

// The run ended before this request was answered.
RequestRefused run_is_over();

}  // namespace ringside::rl
