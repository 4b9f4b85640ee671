// Events of the trainer's side for the log.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace ringside::bridge {

enum class EventKind {
  kRoutine,  // occurs in every healthy step
  kNews,
  kTrouble,  // the run waits until somebody helps
};

struct BridgeEvent {
  std::string worker_id;
  std::string text;  // text for the log
  EventKind kind = EventKind::kNews;
};

// The latest events. Above 1024 the oldest are dropped and counted.
class TrainerEvents {
 public:
  // `text` may hold what a peer sent: see clip_text(). worker_id: "" for an event of no worker.
  void add(const std::string& worker_id, const std::string& text,
           EventKind kind = EventKind::kNews);
  // Events since the last call, oldest first.
  std::vector<BridgeEvent> drain();
  uint64_t dropped() const { return dropped_; }

 private:
  std::deque<BridgeEvent> events_;
  uint64_t dropped_ = 0;
};

}  // namespace ringside::bridge
