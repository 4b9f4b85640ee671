#include "rl/worker/session_loop.h"

#include <algorithm>
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
                         SessionMaker& maker, std::size_t most_unclaimed, WorkerSettings settings,
                         Now now)
    : link_(link),
      desk_(desk),
      model_(model),
      maker_(maker),
      most_unclaimed_(most_unclaimed),
      events_(std::move(settings)),
      now_(std::move(now)) {}

SessionLoop::~SessionLoop() {
  desk_.close();
  model_.drop_requests();
}

milliseconds SessionLoop::turn() {
  for (const auto& session : desk_.take_ended()) {
    finish(*session);
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
  put_back_unclaimed();
  queue_.on_connected(connected.trainer_term);
}

void SessionLoop::handle(const bridge::Granted& granted) {
  if (!granted.withdrawn.empty()) {
    put_back_unclaimed();
  }
  queue_.on_granted(granted);
}

// A session without samples is of the start of the trainer whose weights it would have used.
void SessionLoop::finish(const Session& session) {
  bridge::Rollout rollout = maker_.rollout_of(session, version_);
  if (rollout.trainer_term < 0) {
    rollout.trainer_term = trainer_term_;
  }
  queue_.finish(std::move(rollout));
}

// What nobody has claimed is as good as queued. open_sessions() opens it again if it is granted
// still.
void SessionLoop::put_back_unclaimed() {
  const auto unclaimed = desk_.take_unclaimed();
  for (auto session = unclaimed.rbegin(); session != unclaimed.rend(); ++session) {
    queue_.put_back((*session)->sample());
  }
}

void SessionLoop::install() {
  const auto snapshot = std::exchange(wanted_, nullptr);
  const bridge::Manifest& manifest = snapshot->manifest;
  const std::string root = model_.install(snapshot);
  is_verified_ = root == manifest.root_hash;
  version_ = manifest.version;
  trainer_term_ = manifest.trainer_term;
  const auto status = link_.commit_weights(version_, root);
  if (!status) {
    log::warn("weights of version " + std::to_string(version_) + ": " + status.error().detail);
  }
}

void SessionLoop::open_sessions() {
  const std::size_t unclaimed = desk_.unclaimed_sessions();
  const std::size_t room = most_unclaimed_ - std::min(most_unclaimed_, unclaimed);
  for (const bridge::GrantedSample& sample : queue_.start(room)) {
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
