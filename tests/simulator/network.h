// The network between workers and a trainer, as ZeroMQ over TCP shows it.
//
// One connection for each worker. What is sent on it arrives in order and once, after a delay, or
// is lost with the connection. A partition holds everything back; one that outlasts ZeroMQ's
// heartbeats (6 s) ends the connection. A closed connection is opened again under the same
// identity. Unreliable mode, which TCP never shows, drops, repeats and reorders single messages:
// sequence numbers must find out.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/wire.h"
#include "tests/simulator/clock.h"

namespace ringside::simulator {

// A message on its way.
struct Packet {
  std::string header;
  std::vector<bridge::Buffer> buffers;
  // Valid while this lives.
  bridge::Result<bridge::Message> parse() const;
};

// What the network tells a side.
class WorkerPort {
 public:
  virtual ~WorkerPort() = default;
  virtual void on_connected() = 0;
  virtual void on_closed() = 0;
  virtual void on_packet(Packet packet) = 0;
};
class TrainerPort {
 public:
  virtual ~TrainerPort() = default;
  virtual void on_packet(const std::string& identity, Packet packet) = 0;
};

class Network {
 public:
  Network(EventQueue& events, Random& random, FaultCounts& faults)
      : events_(events), random_(random), faults_(faults) {}

  // The trainer listens, or is gone with all its connections (null).
  void set_trainer(TrainerPort* trainer);
  // Connects, again and again, until close().
  void open(const std::string& identity, const std::string& worker, WorkerPort& port);
  void close(const std::string& identity);
  // False where there is no connection.
  bool to_trainer(const std::string& identity, Packet packet);
  bool to_worker(const std::string& identity, Packet packet);

  // Faults. A worker's link is named by its worker id, over all its connections.
  void cut(const std::string& worker);
  void block(const std::string& worker, Span span);
  void slow_down(const std::string& worker, Span delay, Span span);
  // Probability for each message to be dropped, repeated or overtaken.
  void set_unreliable(double probability) { unreliable_ = probability; }
  void heal();

  // A delay of the worker's link, for what goes outside of its control connection; nullopt while it
  // is blocked.
  std::optional<Span> bulk_delay(const std::string& worker);

 private:
  struct Connection {
    std::string worker;
    WorkerPort* port = nullptr;
    uint64_t life = 0;  // of the connection that stands; 0: none does
    Time up{}, down{};  // arrival of the latest message
  };
  struct Link {
    Time blocked_until{};
    Time slow_until{};
    Span slow_by{};
  };

  void try_connect(const std::string& identity);
  void lose(Connection& connection);
  Span delay(const Link& link);
  // When a message sent now arrives; in order.
  Time arrival(const Connection& connection, Time& latest);
  bool send(const std::string& identity, bool up, Packet packet);
  void deliver(const std::string& identity, bool up, Time at, uint64_t life, Packet packet);

  EventQueue& events_;
  Random& random_;
  FaultCounts& faults_;
  TrainerPort* trainer_ = nullptr;
  std::map<std::string, Connection> connections_;  // by identity
  std::map<std::string, Link> links_;              // by worker
  uint64_t lives_ = 0;
  double unreliable_ = 0;
};

}  // namespace ringside::simulator
