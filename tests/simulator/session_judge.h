// What must hold of sessions, judged against an account of its own: what was asked in each session,
// what the model gave, and what was answered. A breach throws Breach.
//
// The account knows nothing of trees: for each session it is a list of the answers that count, each
// with the tokens that the model was given. A rollout is read by the rules of PROTOCOL.md alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rl/gateway/gateway.h"
#include "rollout_bridge/worker/trainer_link.h"
#include "tests/simulator/clock.h"
#include "tests/simulator/judge.h"

namespace ringside::simulator {

// What the model gave for one request, and what it really ran.
struct GivenAnswer {
  std::vector<int64_t> ids;
  std::vector<float> logprobs;
  int64_t version = -1;
  int64_t trainer_term = -1;
  int64_t content = -1;
  bool stopped = false;
};

// The text of ids of tests/rl/gateway/character_tokenizer.h.
std::string characters(std::span<const int64_t> ids);

class SessionJudge {
 public:
  explicit SessionJudge(const EventQueue& events) : events_(events) {}

  // --- the worker's loop. process: a worker's process, by a name of its own
  // sampling: of all of its requests.
  void opened(const std::string& process, const rl::Session& session, int64_t max_turns,
              Span timeout, const rl::StatedSampling& sampling);
  // The model answered the request of this seed.
  void sampled(uint64_t seed, GivenAnswer answer);
  // What the trainer asks the process for, and takes back.
  void connected(const std::string& process) { asked_for_[process].clear(); }
  void granted(const std::string& process, const bridge::Granted& granted);
  // The rollout of a session that is closed with it.
  void made(const rl::Session& session, const bridge::Rollout& rollout);
  // After a turn of the loop: no session is open whose time is over, and the desk has forgotten
  // none that somebody has claimed.
  void turned(const std::string& process, const rl::SessionDesk& desk, int64_t capacity);
  // The process has ended, and its sessions with it.
  void died(const std::string& process);
  // A rollout goes out. Every session becomes one at most.
  void sent(const std::string& process, const bridge::Rollout& rollout);

  // --- requests of agents
  void claimed(const std::string& process, const std::string& session);
  // A request was begun; or refused with this status.
  void began(const std::string& process, const std::string& session,
             const rl::PendingAnswer& pending);
  void refused(const std::string& process, const std::string& session, int64_t count, int status);
  // It was answered; or refused with this status.
  void answered(const std::string& session, const std::vector<rl::TokenRequest>& requests,
                const rl::ModelReplies& replies);
  void failed(const std::string& session, const std::vector<rl::TokenRequest>& requests,
              int status);
  // A harness gave a result, and got this status.
  void ended(const std::string& process, const std::string& session,
             const nlohmann::ordered_json& body, int status);

  // --- the trainer
  // The rollout is one that a session became, unchanged. Returns what its answers were sampled
  // from.
  std::vector<SampledPart> sampled_for(const bridge::Rollout& rollout) const;

  // The content that all answers of a session are of; -1: of several, or none.
  int64_t content_of(const std::string& session) const;
  // Answers that a session has.
  int64_t turns_of(const std::string& session) const;
  bool is_held_out(const std::string& session) const;

  int64_t checks() const { return checks_; }
  int64_t branches() const { return branches_; }
  int64_t answers() const { return answers_; }
  // Sessions that ended with a reward under several versions.
  int64_t of_several_versions() const { return of_several_versions_; }

 private:
  // An answer that counts.
  struct Turn {
    std::vector<int64_t> prompt;
    GivenAnswer given;
    std::vector<std::string> messages;  // of a chat: those asked, then the reply
  };
  // A request on its way.
  struct Asked {
    std::string session;
    std::vector<int64_t> prompt;
    std::vector<std::string> messages;
    std::vector<std::string> stops;
  };
  enum class State { kOpen, kEnded, kClosed };
  struct Account {
    std::string process;
    State state = State::kOpen;
    std::pair<int64_t, int32_t> sample;
    bool held_out = false;
    int64_t max_turns = 0;
    Span timeout{};
    rl::StatedSampling sampling{};
    std::optional<Time> claimed;
    int64_t begun = 0;
    std::vector<Turn> turns;
    std::string failure;  // of the result
    std::vector<std::pair<std::string, double>> rewards;
    std::vector<double> turn_rewards;
  };
  struct Made {
    bridge::Rollout rollout;
    std::string session;
    bool is_sent = false;
  };
  using MadeById = std::multimap<std::string, Made>;

  void check(bool holds, const std::string& what) const;
  // The status with which a request for a session is refused; 0: it is not.
  int refusal(const std::string& process, const std::string& session) const;
  Account& account(const std::string& session);
  // Those that sessions became and that equal this one on the wire.
  std::vector<MadeById::const_iterator> made_as(const bridge::Rollout& rollout) const;
  bool may_be_recorded(const Account& of, const std::vector<rl::TokenRequest>& requests) const;
  void check_prompt(const Account& of, const rl::PendingAnswer& pending) const;
  void check_result(const Account& of, const bridge::Rollout& rollout) const;
  void check_turns(const Account& of, const bridge::Rollout& rollout) const;
  void check_prefixes(const Account& of, const bridge::Rollout& rollout) const;

  const EventQueue& events_;
  std::map<std::string, Account> accounts_;
  std::map<std::string, std::set<std::string>> not_closed_;                 // sessions by process
  std::map<uint64_t, Asked> asked_;                                         // by seed
  std::map<uint64_t, GivenAnswer> given_;                                   // by seed
  std::map<std::string, std::set<std::pair<int64_t, int32_t>>> asked_for_;  // samples by process
  MadeById made_;                                                           // by rollout id
  mutable int64_t checks_ = 0;
  int64_t branches_ = 0, answers_ = 0, of_several_versions_ = 0;
};

}  // namespace ringside::simulator
