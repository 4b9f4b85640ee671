#include "rl/gateway/session_desk.h"

#include <exception>
#include <utility>

namespace ringside::rl {

SessionDesk::SessionDesk(std::chrono::milliseconds timeout, Now now)
    : timeout_(timeout), now_(std::move(now)) {}

void SessionDesk::open(std::shared_ptr<Session> session) {
  const std::lock_guard lock(mutex_);
  unclaimed_.push_back(session->id());
  const std::string id = session->id();
  open_[id] = {std::move(session), std::nullopt};
  changed_.notify_one();
}

std::vector<std::shared_ptr<WaitingRequest>> SessionDesk::take_requests() {
  const std::lock_guard lock(mutex_);
  return std::exchange(waiting_, {});
}

std::vector<std::shared_ptr<Session>> SessionDesk::take_ended() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Session>> ended;
  for (auto entry = open_.begin(); entry != open_.end();) {
    const Open& open = entry->second;
    if (open.deadline && now_() >= *open.deadline) {
      open.session->end({.rewards = {},
                         .failure = "the harness has not ended the session in time "
                                    "(rollout.harness_options.session_timeout_s)"});
    }
    if (!open.session->has_ended()) {
      ++entry;
      continue;
    }
    std::erase(unclaimed_, entry->first);
    ended.push_back(open.session);
    entry = open_.erase(entry);
  }
  return ended;
}

std::vector<std::shared_ptr<Session>> SessionDesk::take_unclaimed() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Session>> taken;
  for (const std::string& id : std::exchange(unclaimed_, {})) {
    taken.push_back(std::move(open_.extract(id).mapped().session));
  }
  return taken;
}

std::size_t SessionDesk::open_sessions() const {
  const std::lock_guard lock(mutex_);
  return open_.size();
}

std::size_t SessionDesk::unclaimed_sessions() const {
  const std::lock_guard lock(mutex_);
  return unclaimed_.size();
}

void SessionDesk::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  for (const auto& request : std::exchange(waiting_, {})) {
    request->fail(std::make_exception_ptr(run_is_over()));
  }
  changed_.notify_all();
}

std::shared_ptr<Session> SessionDesk::claim(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait, [&] { return is_closed_ || !unclaimed_.empty(); });
  if (is_closed_) {
    throw run_is_over();
  }
  if (unclaimed_.empty()) {
    return nullptr;
  }
  Open& open = open_.at(unclaimed_.front());
  unclaimed_.pop_front();
  open.deadline = now_() + timeout_;
  return open.session;
}

std::shared_ptr<Session> SessionDesk::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(id);
  if (found == open_.end()) {
    throw RequestRefused(
        404, "no session '" + id + "' is open here: it has ended, or it is of another worker");
  }
  return found->second.session;
}

SessionDesk::Answers SessionDesk::submit(std::vector<TokenRequest> requests,
                                         const std::shared_ptr<TokenFeed>& feed) {
  Answers answers;
  const std::lock_guard lock(mutex_);
  if (is_closed_) {
    throw run_is_over();
  }
  for (TokenRequest& request : requests) {
    waiting_.push_back(std::make_shared<WaitingRequest>(std::move(request), feed, answers.size()));
    answers.push_back(waiting_.back()->future());
  }
  return answers;
}

std::vector<TokenAnswer> SessionDesk::wait(Answers answers) {
  std::vector<TokenAnswer> all;
  for (auto& answer : answers) {
    try {
      all.push_back(answer.get());
    } catch (const RequestRefused&) {
      throw;
    } catch (const std::exception& error) {
      throw RequestRefused(503, std::string("sampling failed: ") + error.what());
    }
  }
  return all;
}

std::vector<TokenAnswer> SessionDesk::sample(std::vector<TokenRequest> requests) {
  return wait(submit(std::move(requests), nullptr));
}

}  // namespace ringside::rl
