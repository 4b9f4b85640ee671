#include "tests/simulator/network.h"

#include <algorithm>
#include <optional>

namespace ringside::simulator {
namespace {

constexpr milliseconds kReconnect{100};
constexpr seconds kHeartbeatTimeout{6};  // ZeroMQ's, see zmq_io.cpp

}  // namespace

bridge::Result<bridge::Message> Packet::parse() const {
  std::vector<bridge::Frame> frames = {std::as_bytes(std::span(header))};
  for (const bridge::Buffer& buffer : buffers) {
    frames.push_back(buffer.bytes);
  }
  return bridge::parse_message(frames, {});
}

void Network::set_trainer(TrainerPort* trainer) {
  trainer_ = trainer;
  if (trainer != nullptr) {
    return;
  }
  for (auto& [identity, connection] : connections_) {
    lose(connection);
  }
}

void Network::open(const std::string& identity, const std::string& worker, WorkerPort& port) {
  connections_[identity] = {worker, &port, 0, {}, {}};
  events_.after(milliseconds(1), [this, identity] { try_connect(identity); });
}

void Network::close(const std::string& identity) { connections_.erase(identity); }

void Network::try_connect(const std::string& identity) {
  const auto it = connections_.find(identity);
  if (it == connections_.end() || it->second.life != 0) {
    return;
  }
  Connection& connection = it->second;
  if (trainer_ == nullptr || links_[connection.worker].blocked_until > events_.now()) {
    events_.after(kReconnect, [this, identity] { try_connect(identity); });
    return;
  }
  connection.life = ++lives_;
  connection.up = connection.down = events_.now();
  connection.port->on_connected();
}

void Network::lose(Connection& connection) {
  if (connection.life == 0) {
    return;
  }
  connection.life = 0;
  const auto found = std::find_if(connections_.begin(), connections_.end(),
                                  [&](const auto& item) { return &item.second == &connection; });
  events_.after(kReconnect, [this, identity = found->first] { try_connect(identity); });
  connection.port->on_closed();
}

Span Network::delay(const Link& link) {
  const Span base = random_.between(Span(50'000), Span(2'000'000));
  return link.slow_until > events_.now() ? base + random_.between(Span(0), link.slow_by) : base;
}

Time Network::arrival(const Connection& connection, Time& latest) {
  const Link& link = links_[connection.worker];
  latest = std::max({latest + Span(1), events_.now() + delay(link), link.blocked_until});
  return latest;
}

bool Network::send(const std::string& identity, bool up, Packet packet) {
  const auto it = connections_.find(identity);
  if (it == connections_.end() || it->second.life == 0) {
    return false;
  }
  Connection& connection = it->second;
  Time at = arrival(connection, up ? connection.up : connection.down);
  if (unreliable_ > 0 && random_.chance(unreliable_)) {
    const int64_t kind = random_.between(0, 2);
    faults_.count(kind == 0 ? "drop" : kind == 1 ? "duplicate" : "reorder");
    if (kind == 0) {
      return true;
    }
    if (kind == 1) {
      deliver(identity, up, at + milliseconds(1), connection.life, packet);
    }
    if (kind == 2) {
      at += random_.between(Span(0), Span(20'000'000));
    }
  }
  deliver(identity, up, at, connection.life, std::move(packet));
  return true;
}

void Network::deliver(const std::string& identity, bool up, Time at, uint64_t life, Packet packet) {
  events_.at(at, [this, identity, up, life, packet = std::move(packet)]() mutable {
    const auto it = connections_.find(identity);
    if (it == connections_.end() || it->second.life != life) {
      return;  // lost with its connection
    }
    if (!up) {
      it->second.port->on_packet(std::move(packet));
    } else if (trainer_ != nullptr) {
      trainer_->on_packet(identity, std::move(packet));
    }
  });
}

bool Network::to_trainer(const std::string& identity, Packet packet) {
  return send(identity, true, std::move(packet));
}

bool Network::to_worker(const std::string& identity, Packet packet) {
  return send(identity, false, std::move(packet));
}

void Network::cut(const std::string& worker) {
  for (auto& [identity, connection] : connections_) {
    if (connection.worker == worker) {
      lose(connection);
    }
  }
}

void Network::block(const std::string& worker, Span span) {
  Link& link = links_[worker];
  link.blocked_until = std::max(link.blocked_until, events_.now() + span);
  if (span <= kHeartbeatTimeout) {
    return;
  }
  events_.after(kHeartbeatTimeout, [this, worker] {
    if (links_[worker].blocked_until > events_.now()) {
      cut(worker);
    }
  });
}

void Network::slow_down(const std::string& worker, Span delay, Span span) {
  links_[worker].slow_by = delay;
  links_[worker].slow_until = events_.now() + span;
}

void Network::heal() {
  unreliable_ = 0;
  for (auto& [worker, link] : links_) {
    link = {};
  }
}

std::optional<Span> Network::bulk_delay(const std::string& worker) {
  const Link& link = links_[worker];
  if (link.blocked_until > events_.now() || trainer_ == nullptr) {
    return std::nullopt;
  }
  return delay(link);
}

}  // namespace ringside::simulator
