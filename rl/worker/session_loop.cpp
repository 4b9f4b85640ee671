#include "rl/worker/session_loop.h"

#include <utility>
#include <variant>

#include "rl/report/log.h"

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNoSession{100};
constexpr milliseconds kBetweenRequests{2};  // a harness thinks, or calls a tool
constexpr milliseconds kBetweenChecks{500};
constexpr milliseconds kBetweenNotices{30'000};

}  // namespace

SessionLoop::SessionLoop(bridge::TrainerLink& link, SessionDesk& desk, SessionModel& model,
                         SessionMaker& maker, WorkerSettings settings, Now now)
    : link_(link),
      desk_(desk),
      model_(model),
      maker_(maker),
      events_(std::move(settings)),
      now_(std::move(now)) {}

SessionLoop::~SessionLoop() { desk_.close(); }

milliseconds SessionLoop::turn() {
  for (const auto& session : desk_.take_ended()) {
    queue_.finish(maker_.rollout_of(*session, version_));
  }
  for (const std::string& refused : queue_.deliver(link_)) {
    log::warn(refused);
  }
  while (auto event = link_.next_event()) {  // handle newer weights before the next batch
    std::visit([this](auto& e) { handle(e); }, *event);
  }
  check_harness();
  note_unclaimed();
  const bool answered = model_.work();
  if (wanted_ != nullptr && model_.running() == 0) {
    install();
  }
  if (!is_verified_) {
    return kNoSession;
  }
  if (!queue_.has_made()) {  // open nothing new before these are accepted
    open_sessions();
  }
  if (wanted_ == nullptr) {
    model_.submit(desk_.take_requests());
  }
  if (answered || model_.running() > 0) {
    return answered ? milliseconds::zero() : kBetweenRequests;
  }
  return desk_.open_sessions() > 0 ? kBetweenRequests : kNoSession;
}

void SessionLoop::handle(const bridge::Connected& connected) {
  events_.handle(connected);
  queue_.on_connected(connected.trainer_term);
}

void SessionLoop::install() {
  const auto snapshot = std::exchange(wanted_, nullptr);
  const bridge::Manifest& manifest = snapshot->manifest;
  const std::string root = model_.install(snapshot);
  is_verified_ = root == manifest.root_hash;
  version_ = manifest.version;
  const auto status = link_.commit_weights(version_, root);
  if (!status) {
    log::warn("weights of version " + std::to_string(version_) + ": " + status.error().detail);
  }
}

void SessionLoop::open_sessions() {
  for (const bridge::GrantedSample& sample : queue_.start(queue_.queued())) {
    desk_.open(maker_.session_of(sample));
  }
}

void SessionLoop::check_harness() {
  if (now_() < next_check_) {
    return;
  }
  next_check_ = now_() + kBetweenChecks;
  maker_.check_harness();
}

// Says when a whole notice period has passed in which no harness claimed anything.
void SessionLoop::note_unclaimed() {
  if (desk_.unclaimed_sessions() == 0 || desk_.unclaimed_sessions() < desk_.open_sessions()) {
    next_notice_ = now_() + kBetweenNotices;
  } else if (now_() >= next_notice_) {
    next_notice_ = now_() + kBetweenNotices;
    log::warn(std::to_string(desk_.unclaimed_sessions()) +
              " sessions wait for a harness to claim them (POST /sessions)");
  }
}

}  // namespace ringside::rl
