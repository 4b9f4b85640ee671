// The sessions of a gateway, between the threads that serve HTTP and the worker's loop. Torch-free.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "rl/gateway/session.h"
#include "rl/gateway/waiting_request.h"

namespace ringside::rl {

// Thread safety: any threads.
class SessionDesk {
 public:
  using Clock = Session::Clock;
  using Now = std::function<Clock::time_point()>;

  // timeout: of a session, from when it is claimed; then it has failed.
  SessionDesk(std::chrono::milliseconds timeout, Now now);

  // --- of the worker's loop
  // Opens a session, which a harness may claim.
  void open(std::shared_ptr<Session> session);
  // Takes the requests that wait. The caller answers each.
  std::vector<std::shared_ptr<WaitingRequest>> take_requests();
  // Takes the sessions that have ended, after it has ended those whose time is over.
  std::vector<std::shared_ptr<Session>> take_ended();
  // Closes and takes the sessions that nobody has claimed, oldest first.
  std::vector<std::shared_ptr<Session>> take_unclaimed();
  // Sessions that are open, and those of them that nobody has claimed.
  std::size_t open_sessions() const;
  std::size_t unclaimed_sessions() const;
  // The run is over: nothing is claimed or sampled any more, and whoever waits is refused.
  void close();

  // --- of the threads that serve HTTP
  // The oldest session that nobody has claimed; null if there is none within `wait`.
  // Blocks: at most `wait`. Throws: RequestRefused (410) after close().
  std::shared_ptr<Session> claim(std::chrono::milliseconds wait);
  // An open session. Throws: RequestRefused (404).
  std::shared_ptr<Session> find(const std::string& id) const;
  using Answers = std::vector<std::future<TokenAnswer>>;
  // Hands requests to the model. feed: of all of them, gets their tokens as they are drawn; or
  // null. Throws: RequestRefused (410) after close().
  Answers submit(std::vector<TokenRequest> requests, const std::shared_ptr<TokenFeed>& feed);
  // Blocks: until they are sampled.
  // Throws: RequestRefused (410) when the run has ended; (503) when sampling failed.
  static std::vector<TokenAnswer> wait(Answers answers);
  // Both, without a feed.
  std::vector<TokenAnswer> sample(std::vector<TokenRequest> requests);

 private:
  struct Open {
    std::shared_ptr<Session> session;
    std::optional<Clock::time_point> deadline;  // none: not claimed
  };

  const std::chrono::milliseconds timeout_;
  const Now now_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<std::string, Open> open_;
  std::deque<std::string> unclaimed_;
  std::vector<std::shared_ptr<WaitingRequest>> waiting_;
  bool is_closed_ = false;
};

}  // namespace ringside::rl
