// bench_frames attack: sends malformed messages to a live trainer's two sockets.
#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <zmq.hpp>

#include "tools/bench/frames/bench.h"
#include "tools/bench/frames/messages.h"

namespace ringside::bench {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kConnections = 12;
constexpr uint64_t kLifetime = 3000;          // messages until a connection is closed and reopened
constexpr uint64_t kAfterlife = 100;          // the same once its session is over
constexpr std::chrono::seconds kFlush{30};    // time to send the queue of a closed socket
constexpr std::chrono::seconds kRetired{5};   // an old connection is read, then closed: what TCP
                                              // drops with unread answers would not be counted
constexpr std::chrono::seconds kStalled{30};  // a trainer that takes nothing for so long is gone

enum class Manner {
  kSession,   // HELLO, then messages in its session's numbers
  kStranger,  // never sends HELLO
  kDeaf,      // like kSession, but never reads the replies
  kWeights,   // on the weights socket
};
constexpr Manner kManners[] = {Manner::kSession, Manner::kStranger, Manner::kDeaf,
                               Manner::kWeights};

struct Tally {
  uint64_t rollouts = 0;  // messages on the rollouts socket
  uint64_t weights = 0;
  uint64_t frames = 0;  // of all messages
  uint64_t header = 0;  // messages whose header passes the parser
  uint64_t whole = 0;
  uint64_t in_session = 0;
  uint64_t connections = 0;
  uint64_t answers = 0;
  bool stalled = false;
  std::array<uint64_t, kDamages> damage{};
};

class Connection {
 public:
  Connection(zmq::context_t& context, const Target& target, Manner manner, std::string worker_id)
      : manner_(manner),
        worker_id_(std::move(worker_id)),
        socket_(context, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, static_cast<int>(std::chrono::milliseconds(kFlush).count()));
    socket_.set(zmq::sockopt::routing_id, worker_id_ + "/1");
    socket_.connect(manner == Manner::kWeights ? target.weights_address : target.rollout_address);
  }

  bool old() const { return sent_ >= kLifetime || after_session_ >= kAfterlife; }

  // Sends one message unless the trainer applies back-pressure. Returns whether it was sent.
  bool send(MessageMaker& maker, Tally& tally) {
    if (waiting_.empty()) make(maker);
    if (!put()) return false;
    count(tally);
    waiting_.clear();
    if (manner_ != Manner::kDeaf) read(tally);
    return true;
  }

  void read(Tally& tally) {
    zmq::message_t part;
    while (socket_.recv(part, zmq::recv_flags::dontwait)) tally.answers += part.more() ? 0 : 1;
  }

 private:
  void make(MessageMaker& maker) {
    const bool sessions = manner_ == Manner::kSession || manner_ == Manner::kDeaf;
    if (sessions && sent_ == 0) {
      waiting_ = maker.hello(worker_id_, 1);
      damage_ = Damage::kNone;
    } else {
      waiting_ = maker.next(worker_id_, 1, sessions ? next_seq_ : 1 + sent_ % 3, damage_);
    }
    verdict_ = judge(waiting_);
  }

  bool put() {
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      auto flags = zmq::send_flags::dontwait;
      if (i + 1 < waiting_.size()) flags = flags | zmq::send_flags::sndmore;
      if (!socket_.send(zmq::buffer(waiting_[i]), flags))
        return false;  // only the first frame can fail
    }
    return true;
  }

  void count(Tally& tally) {
    ++sent_;
    ++(manner_ == Manner::kWeights ? tally.weights : tally.rollouts);
    tally.frames += waiting_.size();
    tally.header += verdict_.header ? 1 : 0;
    tally.whole += verdict_.whole ? 1 : 0;
    ++tally.damage[static_cast<std::size_t>(damage_)];
    if (manner_ == Manner::kWeights || manner_ == Manner::kStranger) return;
    if (!in_session_) {
      ++after_session_;
      return;
    }
    ++tally.in_session;
    if (!verdict_.whole) return;              // the trainer's count stays
    in_session_ = verdict_.seq == next_seq_;  // any other number ends the session
    next_seq_ = verdict_.seq + 1;
  }

  Manner manner_;
  std::string worker_id_;
  zmq::socket_t socket_;
  Frames waiting_;
  Verdict verdict_;
  Damage damage_ = Damage::kNone;
  uint64_t sent_ = 0;
  uint64_t next_seq_ = 1;
  uint64_t after_session_ = 0;
  bool in_session_ = true;
};

// Connections that no longer send.
class Retired {
 public:
  void add(std::unique_ptr<Connection> connection) {
    if (connection) connections_.emplace_back(Clock::now(), std::move(connection));
  }
  void read(Tally& tally) {
    for (auto& [since, connection] : connections_) connection->read(tally);
    while (!connections_.empty() && Clock::now() - connections_.front().first > kRetired) {
      connections_.pop_front();
    }
  }
  bool empty() const { return connections_.empty(); }

 private:
  using Clock = std::chrono::steady_clock;
  std::deque<std::pair<Clock::time_point, std::unique_ptr<Connection>>> connections_;
};

nlohmann::json report(const Tally& tally, double seconds) {
  const uint64_t messages = tally.rollouts + tally.weights;
  nlohmann::json damage;
  for (int i = 0; i < kDamages; ++i) {
    damage[damage_name(static_cast<Damage>(i))] = tally.damage[static_cast<std::size_t>(i)];
  }
  const auto share = [&](uint64_t part) {
    return static_cast<double>(part) / static_cast<double>(std::max<uint64_t>(messages, 1));
  };
  return {{"messages", messages},
          {"rollouts_socket", tally.rollouts},
          {"weights_socket", tally.weights},
          {"zmq_frames", tally.frames},
          {"header_passes", tally.header},
          {"header_share", share(tally.header)},
          {"whole_share", share(tally.whole)},
          {"in_session", tally.in_session},
          {"connections", tally.connections},
          {"answers_read", tally.answers},
          {"damage", damage},
          {"stalled", tally.stalled},
          {"seconds", seconds}};
}

}  // namespace

nlohmann::json attack(const Target& target, uint64_t messages, uint32_t seed) {
  const auto begin = std::chrono::steady_clock::now();
  zmq::context_t context;  // its destructor waits until all messages are sent
  MessageMaker maker(target, seed);
  Tally tally;
  std::array<std::unique_ptr<Connection>, kConnections> connections;
  Retired retired;
  auto last = begin;
  while (tally.rollouts + tally.weights < messages && !tally.stalled) {
    bool any = false;
    for (std::size_t i = 0; i < kConnections; ++i) {
      if (!connections[i] || connections[i]->old()) {
        retired.add(std::move(connections[i]));
        retired.read(tally);
        connections[i] = std::make_unique<Connection>(
            context, target, kManners[i % std::size(kManners)],
            "hostile" + std::to_string(seed) + "-" + std::to_string(tally.connections++));
      }
      any = connections[i]->send(maker, tally) || any;
    }
    const auto now = std::chrono::steady_clock::now();
    if (any) {
      last = now;
    } else {  // the trainer applies back-pressure on every connection
      tally.stalled = now - last > kStalled;
      std::this_thread::sleep_for(1ms);
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (auto& connection : connections) retired.add(std::move(connection));
  while (!retired.empty()) {
    retired.read(tally);
    std::this_thread::sleep_for(10ms);
  }
  context.close();
  return report(tally, took.count());
}

}  // namespace ringside::bench
