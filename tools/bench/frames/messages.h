// Malformed messages made from valid ones of every type.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/wire.h"

namespace ringside::bench {

// The sender's knowledge of the run that it attacks: what any process of the machine can read.
struct Target {
  std::string rollout_address;
  std::string weights_address;
  std::string run_id;
  int64_t trainer_term = -1;
};

// Frame 0 and the buffers behind it, as they go over the socket.
using Frames = std::vector<std::string>;

enum class Damage {
  kNone,     // valid, but from a session that does not exist, or without effect
  kNode,     // one value of frame 0's map replaced by another of any type
  kBytes,    // bytes of frame 0 changed
  kCut,      // frame 0 is truncated or extended
  kBuffers,  // buffers changed, cut, lost, repeated
  kNoise,    // frame 0 is noise, or a map that claims sizes it does not have
};
inline constexpr int kDamages = 6;
// "none", "node", "bytes", "cut", "buffers", "noise".
const char* damage_name(Damage damage);

// Result of the trainer's own parser for a message.
struct Verdict {
  bool header = false;  // frame 0 unpacks as a header with the fields' types
  bool whole = false;   // every check of the outer form passes
  uint64_t seq = 0;     // of a whole message
};
// Parses the message as the trainer does, with the default limits.
Verdict judge(const Frames& frames);

class MessageMaker {
 public:
  // The messages follow from the seed.
  MessageMaker(Target target, uint32_t seed);

  // The HELLO of a session, valid.
  Frames hello(const std::string& worker_id, uint64_t incarnation) const;
  // A message of a type drawn from all, damaged one way or not at all. Its header is a session's.
  Frames next(const std::string& worker_id, uint64_t incarnation, uint64_t seq, Damage& damage);

 private:
  bridge::Payload payload_of(bridge::MessageType type);
  void damage_node(std::string& head);
  void damage_bytes(std::string& bytes);
  void cut(std::string& bytes);
  void damage_buffers(Frames& frames);
  std::string noise();
  uint32_t draw(uint32_t below) { return rng_() % below; }
  int64_t odd_number();

  Target target_;
  std::mt19937 rng_;
};

}  // namespace ringside::bench
