// Simulated agents: the clients of a worker's gateway, over a connection that loses, repeats and
// delays requests and answers. They claim sessions, play them, and do all that agents do by
// mistake.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulator/session_side.h"

namespace ringside::simulator {

// Where a request arrives: the gateway of the worker's present process.
using Gate = std::function<void(ClientRequest, Respond)>;

// The connection of the agents of one worker.
class ClientLink {
 public:
  ClientLink(World& world, const SessionPlan& plan, Gate gate)
      : world_(world), plan_(plan), gate_(std::move(gate)) {}
  // Calls `then` once: with the answer, or with status 0 when there is none within `patience`.
  void call(const ClientRequest& request, Span patience, Respond then);
  // No more faults.
  void heal() { is_healed_ = true; }
  bool is_healed() const { return is_healed_; }

 private:
  Span delay();
  bool loses(const char* what);
  void send(const ClientRequest& request, const Respond& respond);

  World& world_;
  const SessionPlan& plan_;
  Gate gate_;
  bool is_healed_ = false;
};

class SimAgent {
 public:
  SimAgent(World& world, const SessionJudge& judge, const SessionPlan& plan, ClientLink& link)
      : world_(world), judge_(judge), plan_(plan), link_(link) {}
  void start() { claim(); }
  // It is killed, wherever it is, and started again.
  void kill(Span away);
  const std::string& session() const { return session_; }
  // Sessions of other agents, for one that mistakes them.
  void see(std::function<std::string()> others) { others_ = std::move(others); }

 private:
  using Then = std::function<void(const ClientResponse&)>;

  void claim();
  void play();
  void after(Span span, std::function<void()> action);
  // Sends it, and the same again up to three times while there is no answer, or it was not sampled.
  void ask(const ClientRequest& request, Then then, int tries = 0);
  ClientRequest chat_request() const;
  void take_reply(const ClientResponse& response);
  void plain_turn();
  void mischief();
  void fork();
  void rewrite();
  void wrong_session();
  void other_beginning();
  void hang();
  void reward();
  void end(nlohmann::ordered_json body);
  void leave();
  void fault(const std::string& kind);

  World& world_;
  const SessionJudge& judge_;
  const SessionPlan& plan_;
  ClientLink& link_;
  std::function<std::string()> others_;
  uint64_t life_ = 0;  // of its present start or session; events of others are void
  std::string session_, previous_;
  nlohmann::ordered_json messages_;
  int64_t turns_left_ = 0;
  int64_t said_ = 0;  // messages of its own
};

// The agents of one worker.
class SimHarness {
 public:
  SimHarness(World& world, const SessionJudge& judge, const SessionPlan& plan, Gate gate);
  void start();
  void kill_one(Span away);
  void heal() { link_.heal(); }

 private:
  World& world_;
  ClientLink link_;
  std::vector<std::unique_ptr<SimAgent>> agents_;
};

}  // namespace ringside::simulator
