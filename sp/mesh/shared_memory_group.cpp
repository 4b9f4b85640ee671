#include "sp/mesh/shared_memory_group.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace ringside::sp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kAllRingBytes = int64_t{64} << 20;
constexpr int64_t kMostRingBytes = int64_t{4} << 20;
constexpr int64_t kLeastRingBytes = 64 * 1024;
constexpr int64_t kMostRanks = 1024;
// A rank that has gone is noticed after this time.
constexpr std::chrono::milliseconds kLookAtMembers{50};
// While other groups of the rank have operations in progress, whose bells are not heard here.
constexpr std::chrono::microseconds kLookAtOtherGroups{500};

int64_t ring_bytes(int64_t ranks) {
  const auto share =
      static_cast<uint64_t>(kAllRingBytes / std::max<int64_t>(1, ranks * (ranks - 1)));
  return std::clamp(static_cast<int64_t>(std::bit_floor(share)), kLeastRingBytes, kMostRingBytes);
}

int64_t rounded_up(int64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

// Zero is the state of a rank that has just come.
struct SharedMemoryGroup::Member {
  alignas(64) Doorbell bell;
  alignas(64) std::atomic<uint32_t> left;  // 1 when the rank has ended the group in order
};

void RankGroups::add(const std::weak_ptr<SharedMemoryGroup>& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
}

bool RankGroups::progress(const SharedMemoryGroup* except) {
  std::vector<std::shared_ptr<SharedMemoryGroup>> others;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& group) { return group.expired(); });
    for (const auto& group : groups_) {
      auto other = group.lock();
      if (other && other.get() != except) {
        others.push_back(std::move(other));
      }
    }
  }
  bool busy = false;
  for (const auto& group : others) {
    busy = group->try_progress() || busy;
  }
  return busy;
}

int64_t SharedMemoryGroup::segment_bytes(int64_t ranks) {
  const int64_t heads = rounded_up(ranks * static_cast<int64_t>(sizeof(Member)) +
                                   ranks * ranks * static_cast<int64_t>(sizeof(RingCounters)));
  return heads + ranks * ranks * ring_bytes(ranks);
}

SharedMemoryGroup::Member& SharedMemoryGroup::member(int64_t index) const {
  return *(reinterpret_cast<Member*>(segment_->data()) + index);
}

ByteRing SharedMemoryGroup::ring(int64_t from, int64_t to) const {
  const int64_t ranks = members_.size(), number = from * ranks + to;
  auto* const counters = reinterpret_cast<RingCounters*>(
      segment_->data() + ranks * static_cast<int64_t>(sizeof(Member)));
  const int64_t bytes = ring_bytes(ranks);
  const int64_t heads = segment_bytes(ranks) - ranks * ranks * bytes;
  return {counters[number], segment_->data() + heads + number * bytes, bytes};
}

SharedMemoryGroup::SharedMemoryGroup(std::unique_ptr<SharedSegment> segment, GroupMembers members,
                                     std::chrono::milliseconds timeout,
                                     std::shared_ptr<RankGroups> mine)
    : segment_(std::move(segment)),
      members_(std::move(members)),
      timeout_(timeout),
      mine_(std::move(mine)) {
  if (members_.size() > kMostRanks || segment_->size() != segment_bytes(members_.size())) {
    throw std::invalid_argument("shared memory: a segment of " + std::to_string(segment_->size()) +
                                " bytes for a group of " + std::to_string(members_.size()) +
                                " ranks; expected at most " + std::to_string(kMostRanks) +
                                " ranks and segment_bytes()");
  }
  segment_->occupy(members_.me);
  for (int64_t p = 0; p < members_.size(); ++p) {
    links_.push_back({ring(members_.me, p), ring(p, members_.me), {}, {}});
  }
}

SharedMemoryGroup::~SharedMemoryGroup() {
  member(members_.me).left.store(1, std::memory_order_release);
  for (int64_t p = 0; p < members_.size(); ++p) {
    member(p).bell.ring();
  }
}

void SharedMemoryGroup::start(const std::shared_ptr<SharedOperation>& operation,
                              const std::vector<int64_t>& send_to,
                              const std::vector<int64_t>& receive_from) {
  {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
    operation->open_ends = static_cast<int64_t>(send_to.size() + receive_from.size());
    for (const int64_t peer : send_to) {
      links_[peer].sends.push_back(operation);
    }
    for (const int64_t peer : receive_from) {
      links_[peer].receives.push_back(operation);
    }
    progress();
  }
  mine_->progress(this);
}

bool SharedMemoryGroup::progress(int64_t peer) {
  Link& link = links_[peer];
  const int64_t before = link.out.moved() + link.in.moved();
  while (!link.sends.empty() && link.sends.front()->send(peer, link.out)) {
    --link.sends.front()->open_ends;
    link.sends.pop_front();
  }
  try {
    while (!link.receives.empty() && link.receives.front()->receive(peer, link.in)) {
      --link.receives.front()->open_ends;
      link.receives.pop_front();
    }
  } catch (const std::exception& error) {
    fail("rank " + std::to_string(members_.ranks[peer]) + " " + error.what());
  }
  const bool moved = link.out.moved() + link.in.moved() > before;
  if (moved) {
    member(peer).bell.ring();
  }
  return moved;
}

bool SharedMemoryGroup::progress() {
  bool any = false;
  for (bool again = true; again;) {
    again = false;
    for (int64_t step = 1; step < members_.size(); ++step) {
      again = progress((members_.me + step) % members_.size()) || again;
    }
    any = any || again;
  }
  return any;
}

bool SharedMemoryGroup::try_progress() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !failure_.empty() || idle()) {
    return false;
  }
  try {
    progress();
  } catch (const std::exception&) {
    return false;  // failure_ has it
  }
  return !idle();
}

bool SharedMemoryGroup::idle() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const Link& link) { return link.sends.empty() && link.receives.empty(); });
}

void SharedMemoryGroup::wait(const SharedOperation& operation) {
  const auto deadline = Clock::now() + timeout_;
  auto look_at_members = Clock::now() + kLookAtMembers;
  Doorbell& bell = member(members_.me).bell;
  for (;;) {
    const uint32_t seen = bell.rings();
    {
      const std::lock_guard lock(mutex_);
      throw_if_failed();
      progress();
      if (operation.open_ends == 0) {
        return;
      }
      if (Clock::now() >= look_at_members) {
        check_members(operation);
        look_at_members = Clock::now() + kLookAtMembers;
      }
      if (Clock::now() >= deadline) {
        std::vector<int64_t> missing;
        for (int64_t p = 0; p < members_.size(); ++p) {
          if (needs(operation, p)) {
            missing.push_back(p);
          }
        }
        fail("waited " + std::to_string(timeout_.count()) + " ms for rank(s) " + names_of(missing) +
             " (" + operation.name() + ")");
      }
    }
    const bool others_busy = mine_->progress(this);
    bell.await(seen, others_busy ? kLookAtOtherGroups : kLookAtMembers);
  }
}

bool SharedMemoryGroup::needs(const SharedOperation& operation, int64_t peer) const {
  const auto is_it = [&](const auto& of) { return of.get() == &operation; };
  const Link& link = links_[peer];
  return std::any_of(link.sends.begin(), link.sends.end(), is_it) ||
         std::any_of(link.receives.begin(), link.receives.end(), is_it);
}

void SharedMemoryGroup::check_members(const SharedOperation& operation) {
  std::vector<int64_t> gone;
  for (int64_t p = 0; p < members_.size(); ++p) {
    const bool left = member(p).left.load(std::memory_order_acquire) == 1;
    if (p != members_.me && (left ? needs(operation, p) : !segment_->occupied_by_other(p))) {
      gone.push_back(p);
    }
  }
  if (gone.empty()) {
    return;
  }
  progress();  // what they sent before they went
  // One that has left in order is done with the operation; what is open may be another rank's.
  std::erase_if(gone, [&](int64_t p) {
    return member(p).left.load(std::memory_order_acquire) == 1 && !needs(operation, p);
  });
  if (operation.open_ends > 0 && !gone.empty()) {
    fail("rank(s) " + names_of(gone) + " ended during a collective (" + operation.name() + ")");
  }
}

std::string SharedMemoryGroup::names_of(const std::vector<int64_t>& peers) const {
  std::string text;
  for (const int64_t p : peers) {
    text += (text.empty() ? "" : ", ") + std::to_string(members_.ranks[p]);
  }
  return text;
}

void SharedMemoryGroup::fail(const std::string& reason) {
  failure_ = "group " + members_.name + ": rank " + std::to_string(members_.ranks[members_.me]) +
             ": " + reason;
  member(members_.me).left.store(1, std::memory_order_release);
  for (int64_t p = 0; p < members_.size(); ++p) {
    member(p).bell.ring();
  }
  throw std::runtime_error(failure_);
}

void SharedMemoryGroup::throw_if_failed() const {
  if (!failure_.empty()) {
    throw std::runtime_error(failure_);
  }
}

}  // namespace ringside::sp
