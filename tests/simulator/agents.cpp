#include "tests/simulator/agents.h"

#include <algorithm>
#include <utility>

namespace ringside::simulator {
namespace {

using nlohmann::ordered_json;

constexpr seconds kPause{1};  // before it claims again
constexpr int kMostTries = 4;

ordered_json message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

}  // namespace

Span ClientLink::delay() {
  Random& random = world_.random;
  if (!is_healed_ && random.chance(0.02)) {
    world_.faults.count("slow request");
    return random.between(Span(milliseconds(500)), Span(seconds(5)));
  }
  return random.between(Span(milliseconds(1)), Span(milliseconds(20)));
}

bool ClientLink::loses(const char* what) {
  if (is_healed_ || !world_.random.chance(plan_.losses)) {
    return false;
  }
  world_.faults.count(what);
  return true;
}

void ClientLink::send(const ClientRequest& request, const Respond& respond) {
  if (loses("lost request")) {
    return;
  }
  world_.events.after(delay(), [this, request, respond] {
    gate_(request, [this, respond](ClientResponse response) {
      if (loses("lost answer")) {
        return;
      }
      world_.events.after(delay(),
                          [respond, response = std::move(response)] { respond(response); });
    });
  });
}

void ClientLink::call(const ClientRequest& request, Span patience, Respond then) {
  auto is_over = std::make_shared<bool>(false);
  const Respond once = [is_over, then = std::move(then)](ClientResponse response) {
    if (!std::exchange(*is_over, true)) {
      then(std::move(response));
    }
  };
  send(request, once);
  if (!is_healed_ && world_.random.chance(plan_.losses / 3)) {
    world_.faults.count("repeated request");
    send(request, once);
  }
  world_.events.after(patience, [once] { once({}); });
}

void SimAgent::fault(const std::string& kind) {
  world_.faults.count(kind);
  world_.trace("FAULT " + kind + " in session " + session_);
}

void SimAgent::after(Span span, std::function<void()> action) {
  world_.events.after(span, [this, life = life_, action = std::move(action)] {
    if (life == life_) {
      action();
    }
  });
}

void SimAgent::kill(Span away) {
  fault("agent killed");
  ++life_;
  session_.clear();
  after(away, [this] { claim(); });
}

void SimAgent::leave() {
  ++life_;
  previous_ = std::exchange(session_, "");
  after(world_.random.between(Span(milliseconds(5)), Span(milliseconds(300))), [this] { claim(); });
}

void SimAgent::claim() {
  ++life_;
  const ClientRequest request{Route::kClaim, "", {{"wait_s", 5}}};
  link_.call(request, seconds(9), [this, life = life_](ClientResponse response) {
    if (life != life_) {
      return;
    }
    if (response.status != 200) {  // 410: a worker that ends may be started again
      return after(response.status == 204 ? Span(milliseconds(10)) : Span(kPause),
                   [this] { claim(); });
    }
    session_ = response.body.at("session").get<std::string>();
    messages_ = ordered_json::array({message("system", session_), message("user", "q")});
    turns_left_ = world_.random.between(world_.random.chance(0.05) ? 0 : 1, plan_.max_turns + 1);
    said_ = 0;
    world_.trace("agent: claims " + session_);
    play();
  });
}

void SimAgent::play() {
  if (turns_left_-- <= 0) {
    return reward();
  }
  const bool is_plain = link_.is_healed() || !world_.random.chance(plan_.mischief);
  const Span thinks = world_.random.between(Span(milliseconds(1)), Span(milliseconds(500)));
  after(thinks, [this, is_plain] { is_plain ? plain_turn() : mischief(); });
}

void SimAgent::ask(const ClientRequest& request, Then then, int tries) {
  const Span patience = world_.random.between(Span(seconds(2)), Span(seconds(15)));
  link_.call(request, patience,
             [this, life = life_, request, then, tries](ClientResponse response) {
               if (life != life_) {
                 return;
               }
               const bool again = response.status == 0 || response.status == 503;
               if (again && tries + 1 < kMostTries) {
                 return after(milliseconds(50), [=, this] { ask(request, then, tries + 1); });
               }
               then(response);
             });
}

ClientRequest SimAgent::chat_request() const {
  ordered_json body{{"messages", messages_}};
  if (world_.random.chance(0.3)) {
    body["max_tokens"] = world_.random.between(1, 4);
  }
  if (world_.random.chance(0.1)) {
    body["stop"] = world_.random.chance(0.5) ? "c" : "ab";
  }
  return {Route::kChat, session_, std::move(body)};
}

// What an answer means for the session.
void SimAgent::take_reply(const ClientResponse& response) {
  switch (response.status) {
    case 200:
      messages_.push_back(response.body.at("choices").back().at("message"));
      messages_.push_back(message("user", "r" + std::to_string(++said_ % 3)));
      return play();
    case 400:
      return play();
    case 429:
      return reward();
    case 0:
    case 503:
      return end({{"failure", "the gateway does not answer"}});
    default:
      return leave();
  }
}

void SimAgent::plain_turn() {
  ask(chat_request(), [this](const ClientResponse& response) { take_reply(response); });
}

void SimAgent::mischief() {
  const int64_t kind = world_.random.between(0, 99);
  if (kind < 30) {
    fork();
  } else if (kind < 60) {
    rewrite();
  } else if (kind < 75) {
    wrong_session();
  } else if (kind < 90) {
    other_beginning();
  } else if (kind < 94) {
    fault("agent ends a session that it has not finished");
    reward();
  } else if (kind < 97) {
    hang();
  } else {
    kill(world_.random.between(Span(milliseconds(10)), Span(seconds(5))));
  }
}

// Two requests at once, or one with several choices.
void SimAgent::fork() {
  fault("conversation forked");
  ClientRequest request = chat_request();
  if (world_.random.chance(0.4)) {
    request.body["n"] = world_.random.between(2, 3);
  } else {
    ClientRequest other = request;
    if (world_.random.chance(0.6)) {
      other.body["messages"].back() = message("user", "sub-task");
    }
    link_.call(other, seconds(20), [](ClientResponse) {});
    if (world_.random.chance(0.2)) {  // and the reward before either is answered
      link_.call(request, seconds(20), [](ClientResponse) {});
      return reward();
    }
  }
  ask(request, [this](const ClientResponse& response) { take_reply(response); });
}

// The history becomes another: compacted, cut, or a message changed.
void SimAgent::rewrite() {
  fault("history rewritten");
  const int64_t kind = world_.random.between(0, 3);
  const auto count = static_cast<int64_t>(messages_.size());
  if (kind == 0) {
    messages_ = ordered_json::array({messages_.front(), message("user", "so far: q")});
  } else if (kind == 1 && count > 2) {
    messages_.erase(messages_.begin() + world_.random.between(1, count - 1), messages_.end());
    messages_.push_back(message("user", "again"));
  } else if (kind == 2) {
    messages_[static_cast<std::size_t>(world_.random.between(1, count - 1))]["content"] = "changed";
  } else {
    messages_[0]["content"] = "other";
  }
  plain_turn();
}

void SimAgent::wrong_session() {
  ClientRequest request = chat_request();
  const int64_t kind = world_.random.between(0, 2);
  request.session = kind == 0 ? "none-such" : kind == 1 ? previous_ : others_();
  if (kind == 0 && world_.random.chance(0.5)) {
    request.session = session_.substr(0, session_.size() - 1);
  }
  fault("request with the id of another session");
  if (world_.random.chance(0.3) && kind != 2) {
    request = {Route::kReward, request.session, {{"reward", 1.0}}};
  }
  ask(request, [this](const ClientResponse&) { play(); });
}

// A text that shares no token with the conversation, or is its beginning.
void SimAgent::other_beginning() {
  fault("request with another beginning");
  const bool shares = world_.random.chance(0.5);
  ask({Route::kText, session_, {{"prompt", shares ? "<|im_start|>syst" : "once"}}},
      [this](const ClientResponse& response) {
        response.status == 200 || response.status == 400 ? play() : take_reply(response);
      });
}

// Longer than the session may last, perhaps.
void SimAgent::hang() {
  fault("agent hangs");
  after(world_.random.between(plan_.timeout / 2, plan_.timeout * 2), [this] { plain_turn(); });
}

void SimAgent::reward() {
  ordered_json body{{"reward", world_.random.chance(0.5) ? 1.0 : 0.0}};
  if (judge_.is_held_out(session_)) {  // what the judge of evaluations wants to see
    const int64_t content = judge_.content_of(session_);
    body = content < 0 ? ordered_json{{"failure", "of several weights"}}
                       : ordered_json{{"reward", static_cast<double>(content)}};
  } else if (world_.random.chance(0.05)) {
    body = {{"failure", "the tool broke"}};
  }
  if (body.contains("reward") && world_.random.chance(0.15)) {  // some count wrongly
    const int64_t turns = judge_.turns_of(session_) + (world_.random.chance(0.2) ? 1 : 0);
    body["turn_rewards"] = std::vector<double>(static_cast<std::size_t>(turns), 0.5);
  }
  end(std::move(body));
}

void SimAgent::end(ordered_json body) {
  const ClientRequest request{Route::kReward, session_, body};
  ask(request, [this, body](const ClientResponse& response) {
    if (response.status == 400 && body.contains("turn_rewards")) {
      ordered_json plain = body;
      plain.erase("turn_rewards");
      return end(plain);
    }
    if (!link_.is_healed() && world_.random.chance(0.1)) {
      fault("request after the reward");
      link_.call(chat_request(), seconds(5), [](ClientResponse) {});
    }
    if (!link_.is_healed() && world_.random.chance(0.1)) {
      fault("second reward");
      link_.call({Route::kReward, session_, {{"reward", 1000.0}}}, seconds(5),
                 [](ClientResponse) {});
    }
    leave();
  });
}

SimHarness::SimHarness(World& world, const SessionJudge& judge, const SessionPlan& plan, Gate gate)
    : world_(world), link_(world, plan, std::move(gate)) {
  for (int64_t i = 0; i < plan.agents; ++i) {
    agents_.push_back(std::make_unique<SimAgent>(world, judge, plan, link_));
    agents_.back()->see([this] {
      const auto which = world_.random.between(0, std::ssize(agents_) - 1);
      return agents_[static_cast<std::size_t>(which)]->session();
    });
  }
}

void SimHarness::start() {
  for (const auto& agent : agents_) {
    agent->start();
  }
}

void SimHarness::kill_one(Span away) {
  if (!agents_.empty()) {
    const auto which = world_.random.between(0, std::ssize(agents_) - 1);
    agents_[static_cast<std::size_t>(which)]->kill(away);
  }
}

}  // namespace ringside::simulator
