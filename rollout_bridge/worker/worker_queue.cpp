#include "rollout_bridge/worker/worker_queue.h"

#include <algorithm>
#include <stdexcept>

namespace ringside::bridge {
namespace {

// The failed sample that replaces a rollout that may not be sent.
Rollout failed_sample(const Rollout& rollout) {
  Rollout failed;
  failed.rollout_id = rollout.rollout_id;
  failed.attempt = rollout.attempt;
  failed.group_id = rollout.group_id;
  failed.group_size = rollout.group_size;
  failed.sample_index = rollout.sample_index;
  failed.prompt_id = rollout.prompt_id;
  failed.prompt_ids = rollout.prompt_ids;
  failed.temperature = rollout.temperature;
  failed.top_p = rollout.top_p;
  failed.top_k = rollout.top_k;
  failed.trainer_term = rollout.trainer_term;
  failed.finish_reason = FinishReason::kError;
  return failed;
}

bool is_kept(const Status& status) {
  return status.ok() || status.error().reason == Reason::kTimeout ||
         status.error().reason == Reason::kClosed;
}

}  // namespace

void WorkerQueue::on_connected(int64_t trainer_term) {
  trainer_term_ = trainer_term;
  order_.clear();
  std::erase_if(samples_, [](const auto& item) { return item.second.stage == Stage::kQueued; });
  for (auto& [key, held] : samples_) {
    held.is_current = false;
  }
}

void WorkerQueue::on_granted(const Granted& granted) {
  for (const Withdrawal& group : granted.withdrawn) {
    for (const int32_t index : group.sample_indices) {
      const auto it = samples_.find({group.group_id, index});
      if (it == samples_.end()) {
        continue;
      }
      it->second.is_current = false;
      if (it->second.stage != Stage::kQueued) {
        continue;
      }
      std::erase(order_, it->first);
      samples_.erase(it);
    }
  }
  for (const Grant& group : granted.groups) {
    for (const int32_t index : group.sample_indices) {
      const Key key{group.group_id, index};
      const auto [it, is_new] = samples_.try_emplace(key);
      it->second.grant = {group.group_id, group.group_size, group.min_version, group.attempt,
                          index,          group.held_out};
      it->second.is_current = true;
      it->second.trainer_term = trainer_term_;
      if (is_new) {
        order_.push_back(key);
      }
    }
  }
}

std::vector<GrantedSample> WorkerQueue::start(std::size_t at_most) {
  std::vector<GrantedSample> started;
  while (started.size() < at_most && !order_.empty()) {
    Held& held = samples_.at(order_.front());
    order_.pop_front();
    held.stage = Stage::kStarted;
    started.push_back(held.grant);
  }
  return started;
}

void WorkerQueue::put_back(const GrantedSample& sample) {
  const Key key{sample.group_id, sample.sample_index};
  const auto it = samples_.find(key);
  if (it == samples_.end() || it->second.stage != Stage::kStarted) {
    return;
  }
  if (!it->second.is_current) {
    samples_.erase(it);
    return;
  }
  it->second.stage = Stage::kQueued;
  order_.push_front(key);
}

void WorkerQueue::finish(Rollout rollout) {
  const auto it = samples_.find({rollout.group_id, rollout.sample_index});
  if (it == samples_.end() || it->second.stage != Stage::kStarted) {
    throw std::invalid_argument("rollout '" + rollout.rollout_id + "': sample " +
                                std::to_string(rollout.sample_index) + " of group " +
                                std::to_string(rollout.group_id) + " was not started");
  }
  const int64_t granted_by = it->second.trainer_term;
  if (granted_by >= 0 && rollout.trainer_term > granted_by) {
    samples_.erase(it);
    return;
  }
  it->second.stage = Stage::kMade;
  made_.push_back(std::move(rollout));
}

std::vector<std::string> WorkerQueue::deliver(TrainerLink& link) {
  std::vector<std::string> refused;
  for (; !made_.empty() && link.has_room(); made_.pop_front()) {
    const Rollout& rollout = made_.front();
    Status sent = link.send(rollout);
    if (!is_kept(sent)) {
      refused.push_back("rollout " + rollout.rollout_id +
                        " goes out as a failed sample: " + sent.error().detail);
      sent = link.send(failed_sample(rollout));
      if (!is_kept(sent)) {
        throw std::runtime_error(sent.error().detail);
      }
    }
    if (!sent) {
      break;  // stays queued for the next call
    }
    samples_.erase({rollout.group_id, rollout.sample_index});
  }
  link.set_queue_depth(static_cast<int64_t>(held()));
  return refused;
}

}  // namespace ringside::bridge
