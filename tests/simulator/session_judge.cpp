#include "tests/simulator/session_judge.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "tests/rl/gateway/character_tokenizer.h"

namespace ringside::simulator {
namespace {

using Ids = std::vector<int64_t>;
using bridge::Rollout;

std::vector<std::string> messages_of(const rl::Conversation& conversation) {
  std::vector<std::string> all;
  for (const auto& message : conversation.messages) {
    all.push_back(message.at("role").get<std::string>() + "\n" +
                  message.at("content").get<std::string>());
  }
  return all;
}

std::string rendered(std::span<const std::string> messages) {
  std::string text;
  for (const std::string& message : messages) {
    text += "<|im_start|>" + message + "<|im_end|>\n";
  }
  return text + "<|im_start|>assistant\n";
}

// Up to and with the first token that completes one of these texts.
void cut(GivenAnswer& answer, const std::vector<std::string>& stops) {
  for (std::size_t count = 1; count <= answer.ids.size(); ++count) {
    const std::string text = characters(std::span(answer.ids).first(count));
    const bool holds = std::ranges::any_of(
        stops, [&](const auto& stop) { return text.find(stop) != std::string::npos; });
    if (holds) {
      answer.stopped = answer.stopped && count == answer.ids.size();
      answer.ids.resize(count);
      answer.logprobs.resize(count);
      return;
    }
  }
}

// The branch that holds a token of the completion: where it begins, ends, and what it continues.
struct BranchOf {
  int64_t begin, end, context_end;
};
BranchOf branch_of(const Rollout& r, int64_t token) {
  BranchOf found{0, std::ssize(r.completion_ids), 0};
  for (const bridge::Branch& branch : r.branches) {
    if (branch.begin > token) {
      found.end = branch.begin;
      break;
    }
    found.begin = branch.begin;
    found.context_end = branch.context_end;
  }
  return found;
}

// The end of the sequence that a token continues.
int64_t end_before(const Rollout& r, int64_t token) {
  const BranchOf branch = branch_of(r, token);
  return branch.begin == token ? branch.context_end : token;
}

// The prompt and the tokens up to `end`, by the branches of PROTOCOL.md.
Ids path_to(const Rollout& r, int64_t end) {
  Ids reversed;
  while (end > 0) {
    const BranchOf branch = branch_of(r, end - 1);
    for (int64_t token = end; token-- > branch.begin;) {
      reversed.push_back(r.completion_ids[static_cast<std::size_t>(token)]);
    }
    end = branch.context_end;
  }
  Ids path = r.prompt_ids;
  path.insert(path.end(), reversed.rbegin(), reversed.rend());
  return path;
}

bool has(const rl::SessionDesk& desk, const std::string& session) {
  try {
    return desk.find(session) != nullptr;
  } catch (const rl::RequestRefused&) {
    return false;
  }
}

bool begins_with(const Ids& ids, const Ids& beginning) {
  return ids.size() >= beginning.size() &&
         std::equal(beginning.begin(), beginning.end(), ids.begin());
}

}  // namespace

std::string characters(std::span<const int64_t> ids) {
  std::string text;
  for (const int64_t id : ids) {
    if (id < 128) {
      text += static_cast<char>(id);
    } else {
      text += id == test::kTokenAb ? "ab" : id == test::kTokenStart ? "<|im_start|>" : "<|im_end|>";
    }
  }
  return text;
}

void SessionJudge::check(bool holds, const std::string& what) const {
  ++checks_;
  if (!holds) {
    throw Breach(what);
  }
}

SessionJudge::Account& SessionJudge::account(const std::string& session) {
  const auto found = accounts_.find(session);
  check(found != accounts_.end(), "session " + session + " was never opened");
  return found->second;
}

void SessionJudge::opened(const std::string& process, const rl::Session& session, int64_t max_turns,
                          Span timeout, const rl::StatedSampling& sampling) {
  Account account;
  account.process = process;
  account.max_turns = max_turns;
  account.timeout = timeout;
  account.sampling = sampling;
  account.sample = {session.sample().group_id, session.sample().sample_index};
  account.held_out = session.sample().held_out >= 0;
  check(asked_for_[process].contains(account.sample),
        "session " + session.id() + " is opened for a sample that nobody asks for");
  check(accounts_.emplace(session.id(), account).second, session.id() + " is opened twice");
  not_closed_[process].insert(session.id());
}

void SessionJudge::granted(const std::string& process, const bridge::Granted& granted) {
  std::set<std::pair<int64_t, int32_t>>& asked_for = asked_for_[process];
  for (const bridge::Withdrawal& group : granted.withdrawn) {
    for (const int32_t index : group.sample_indices) {
      asked_for.erase({group.group_id, index});
    }
  }
  for (const bridge::Grant& group : granted.groups) {
    for (const int32_t index : group.sample_indices) {
      asked_for.insert({group.group_id, index});
    }
  }
}

void SessionJudge::sampled(uint64_t seed, GivenAnswer answer) {
  check(asked_.contains(seed), "the model was given a request that no agent has sent");
  check(given_.emplace(seed, std::move(answer)).second, "a request is sampled twice");
}

void SessionJudge::claimed(const std::string& process, const std::string& session) {
  Account& of = account(session);
  check(of.process == process && of.state == State::kOpen,
        "session " + session + " is claimed after it has ended");
  check(!std::exchange(of.claimed, events_.now()), "session " + session + " is claimed twice");
}

int SessionJudge::refusal(const std::string& process, const std::string& session) const {
  const auto found = accounts_.find(session);
  if (found == accounts_.end() || found->second.process != process ||
      found->second.state == State::kClosed) {
    return 404;
  }
  return found->second.state == State::kEnded ? 409 : 0;
}

// A chat continues the longest recorded beginning of it, and of equal ones the newest.
void SessionJudge::check_prompt(const Account& of, const rl::PendingAnswer& pending) const {
  const std::vector<std::string> asked = messages_of(pending.asked().asked);
  const Turn* continued = nullptr;
  for (const Turn& turn : of.turns) {
    const bool is_beginning = !turn.messages.empty() && turn.messages.size() < asked.size() &&
                              std::equal(turn.messages.begin(), turn.messages.end(), asked.begin());
    if (is_beginning &&
        (continued == nullptr || turn.messages.size() >= continued->messages.size())) {
      continued = &turn;
    }
  }
  std::string expected = asked.empty() ? pending.asked().prompt : rendered(asked);
  Ids recorded;
  if (continued != nullptr) {
    recorded = continued->prompt;
    recorded.insert(recorded.end(), continued->given.ids.begin(), continued->given.ids.end());
    const auto rest = std::span(asked).subspan(continued->messages.size());
    expected =
        characters(recorded) + (continued->given.stopped ? "\n" : "<|im_end|>\n") + rendered(rest);
  }
  for (const rl::TokenRequest& request : pending.requests()) {
    check(begins_with(request.prompt, recorded),
          "a request does not continue the tokens of the reply that its history ends with");
    check(characters(request.prompt) == expected, "a request samples from '" +
                                                      characters(request.prompt) +
                                                      "', the conversation is '" + expected + "'");
  }
}

void SessionJudge::began(const std::string& process, const std::string& session,
                         const rl::PendingAnswer& pending) {
  const int refused = refusal(process, session);
  check(refused == 0, "a request for session '" + session + "' is taken, expected status " +
                          std::to_string(refused));
  Account& of = account(session);
  of.begun += std::ssize(pending.requests());
  check(of.begun <= of.max_turns, "session " + session + " samples beyond max_turns");
  check(std::ssize(pending.requests()) == pending.asked().count, "a request has too few samples");
  check_prompt(of, pending);
  for (const rl::TokenRequest& request : pending.requests()) {
    check(request.sampling == of.sampling,
          "a request of session " + session + " is sampled otherwise than its sample");
    Asked asked{session, request.prompt, messages_of(pending.asked().asked), pending.asked().stops};
    check(asked_.emplace(request.seed, std::move(asked)).second, "two requests have one seed");
  }
}

void SessionJudge::refused(const std::string& process, const std::string& session, int64_t count,
                           int status) {
  int expected = refusal(process, session);
  if (expected == 0) {
    const Account& of = account(session);
    expected = of.begun + count > of.max_turns ? 429 : 0;
  }
  check(status == expected, "a request for session '" + session + "' is refused with " +
                                std::to_string(status) + ", expected " + std::to_string(expected));
}

// All of a rollout's requests begin with one token.
bool SessionJudge::may_be_recorded(const Account& of,
                                   const std::vector<rl::TokenRequest>& requests) const {
  return of.turns.empty() ||
         of.turns.front().prompt.front() == asked_.at(requests.front().seed).prompt.front();
}

void SessionJudge::answered(const std::string& session,
                            const std::vector<rl::TokenRequest>& requests,
                            const rl::ModelReplies& replies) {
  Account& of = account(session);
  check(of.state == State::kOpen && may_be_recorded(of, requests),
        "a request of session " + session + " is answered after its end");
  check(replies.replies.size() == requests.size(), "a request has not as many replies as asked");
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto given = given_.find(requests[i].seed);
    check(given != given_.end(), "a request is answered that the model did not answer");
    const Asked& asked = asked_.at(requests[i].seed);
    check(asked.session == session, "an answer of session " + asked.session + " goes to another");
    Turn turn{asked.prompt, given->second, asked.messages};
    cut(turn.given, asked.stops);
    check(replies.replies[i].ids == turn.given.ids,
          "an agent of session " + session + " gets other tokens than the model gave");
    if (!turn.messages.empty()) {
      turn.messages.push_back("assistant\n" + replies.replies[i].content);
    }
    of.turns.push_back(std::move(turn));
    ++answers_;
  }
}

void SessionJudge::failed(const std::string& session, const std::vector<rl::TokenRequest>& requests,
                          int status) {
  const Account& of = account(session);
  const bool sampled = std::ranges::all_of(
      requests, [&](const auto& request) { return given_.contains(request.seed); });
  int expected = 503;
  if (sampled) {
    expected = of.state != State::kOpen ? 409 : may_be_recorded(of, requests) ? 200 : 400;
  }
  check(status == expected, "an answer for session " + session + " is refused with " +
                                std::to_string(status) + ", expected " + std::to_string(expected));
}

void SessionJudge::ended(const std::string& process, const std::string& session,
                         const nlohmann::ordered_json& body, int status) {
  int expected = refusal(process, session);
  std::vector<double> turn_rewards;
  if (expected == 0) {
    turn_rewards = body.value("turn_rewards", std::vector<double>{});
    const std::size_t turns = account(session).turns.size();
    expected = turn_rewards.empty() || turn_rewards.size() == turns ? 200 : 400;
  }
  check(status == expected, "the result of session '" + session + "' gets " +
                                std::to_string(status) + ", expected " + std::to_string(expected));
  if (status != 200) {
    return;
  }
  Account& of = account(session);
  of.state = State::kEnded;
  of.turn_rewards = std::move(turn_rewards);
  if (body.contains("failure")) {
    of.failure = body.at("failure").get<std::string>();
  }
  if (body.contains("reward")) {
    of.rewards = {{"reward", body.at("reward").get<double>()}};
  }
}

void SessionJudge::made(const rl::Session& session, const Rollout& rollout) {
  Account& of = account(session.id());
  check(of.state != State::kClosed, "session " + session.id() + " becomes two rollouts");
  if (of.state == State::kOpen) {
    check(of.claimed && events_.now() >= *of.claimed + of.timeout,
          "session " + session.id() + " was ended by nobody");
    of.failure = "its time is over";
  }
  of.state = State::kClosed;
  not_closed_[of.process].erase(session.id());
  if (of.failure.empty() && of.turns.empty()) {
    of.failure = "it has no samples";
  }
  check_result(of, rollout);
  if (!of.turns.empty()) {
    check_turns(of, rollout);
    check_prefixes(of, rollout);
  }
  branches_ += std::ssize(rollout.branches);
  of_several_versions_ += of.failure.empty() && rollout.versions.size() > 1 ? 1 : 0;
  made_.emplace(rollout.rollout_id, Made{rollout, session.id(), false});
}

void SessionJudge::check_result(const Account& of, const Rollout& r) const {
  const auto is_trained = [](uint8_t mask) { return mask != 0; };
  if (!of.failure.empty()) {
    check(r.finish_reason == bridge::FinishReason::kError && r.rewards.empty() &&
              r.turn_rewards.empty() && std::ranges::none_of(r.loss_mask, is_trained) &&
              r.loss_mask.size() == r.completion_ids.size(),
          "a session that has failed (" + of.failure + ") becomes a rollout to train on");
    check(!of.turns.empty() || r.completion_ids.empty(), "a session without samples has tokens");
    return;
  }
  check(r.rewards == of.rewards && r.turn_rewards == of.turn_rewards,
        "rollout " + r.rollout_id + " has other rewards than its session was given");
  check(r.finish_reason == (of.turns.back().given.stopped ? bridge::FinishReason::kStop
                                                          : bridge::FinishReason::kLength),
        "rollout " + r.rollout_id + " does not end as its last answer did");
}

// Every answer that counts is there, once, in order, behind the tokens that the model was given;
// and nothing else is.
void SessionJudge::check_turns(const Account& of, const Rollout& r) const {
  const std::string name = "rollout " + r.rollout_id + ": ";
  check(r.turn_offsets.size() == of.turns.size(), name + std::to_string(r.turn_offsets.size()) +
                                                      " turns of " +
                                                      std::to_string(of.turns.size()) + " answers");
  std::vector<int64_t> versions;
  for (const bridge::VersionSpan& span : r.versions) {
    versions.resize(static_cast<std::size_t>(span.end), span.version);
  }
  check(versions.size() == r.completion_ids.size(), name + "its versions do not cover it");
  int64_t place = 0;  // behind the turn before
  for (std::size_t i = 0; i < of.turns.size(); ++i) {
    const GivenAnswer& given = of.turns[i].given;
    const int64_t begin = r.turn_offsets[i];
    const int64_t end = begin + std::ssize(given.ids);
    check(begin >= place && end <= std::ssize(r.completion_ids), name + "a turn has other tokens");
    check(path_to(r, end_before(r, begin)) == of.turns[i].prompt,
          name + "an answer stands behind other tokens than it was sampled from");
    check(place == begin || branch_of(r, begin).begin <= place, name + "it has context of no turn");
    for (int64_t at = place; at < end; ++at) {
      const auto token = static_cast<std::size_t>(at);
      const bool sampled = at >= begin;
      const auto of_turn = static_cast<std::size_t>(at - begin);
      check(versions[token] == given.version, name + "a token has the version of other weights");
      check(r.logprobs[token] == (sampled ? given.logprobs[of_turn] : 0.0F),
            name + "a token has another log-prob than the model gave");
      check(!sampled || r.completion_ids[token] == given.ids[of_turn],
            name + "an answer has other tokens than the model gave");
      check(!of.failure.empty() || r.loss_mask[token] == (sampled ? 1 : 0),
            name + "what is trained on is not what was sampled");
    }
    place = end;
  }
  check(place == std::ssize(r.completion_ids), name + "it has tokens behind its last answer");
  check(r.trainer_term == of.turns.front().given.trainer_term, name + "it is of another term");
}

// Branches part where their tokens do: the prompt is all that the requests share, and context
// that is there already is not written again.
void SessionJudge::check_prefixes(const Account& of, const Rollout& r) const {
  const std::string name = "rollout " + r.rollout_id + ": ";
  Ids shared = of.turns.front().prompt;
  for (const Turn& turn : of.turns) {
    const auto parts = std::ranges::mismatch(shared, turn.prompt);
    shared.resize(static_cast<std::size_t>(parts.in1 - shared.begin()));
  }
  check(r.prompt_ids == shared, name + "its prompt has " + std::to_string(r.prompt_ids.size()) +
                                    " tokens, its requests share " + std::to_string(shared.size()));
  for (const bridge::Branch& branch : r.branches) {
    const auto is_turn = [&](int32_t offset) { return offset == branch.begin; };
    if (std::ranges::any_of(r.turn_offsets, is_turn)) {
      continue;  // each sample counts, whatever others are like it
    }
    const int64_t first = r.completion_ids[static_cast<std::size_t>(branch.begin)];
    const auto goes_on_with = [&](int64_t token, int64_t after) {
      return end_before(r, token) == after &&
             r.completion_ids[static_cast<std::size_t>(token)] == first;
    };
    for (int64_t token = 0; token < branch.begin; ++token) {
      check(!goes_on_with(token, branch.context_end),
            name + "a branch begins before its tokens part from those of another");
    }
  }
}

void SessionJudge::turned(const std::string& process, const rl::SessionDesk& desk,
                          int64_t capacity) {
  std::set<std::string>& known = not_closed_[process];
  std::size_t unclaimed = 0;
  for (auto session = known.begin(); session != known.end();) {
    Account& of = account(*session);
    const bool is_taken_back = !of.claimed && !has(desk, *session);
    if (is_taken_back) {
      of.state = State::kClosed;
      session = known.erase(session);
      continue;
    }
    unclaimed += of.claimed ? 0 : 1;
    check(of.claimed || asked_for_[process].contains(of.sample),
          "session " + *session + " waits for a harness, and its sample was taken back");
    check(!of.claimed || events_.now() < *of.claimed + of.timeout || of.state == State::kEnded,
          "session " + *session + " is open beyond its time");
    ++session;
  }
  check(desk.open_sessions() == known.size(),
        "the desk has " + std::to_string(desk.open_sessions()) + " sessions, expected " +
            std::to_string(known.size()));
  check(desk.unclaimed_sessions() == unclaimed, "the desk has sessions that nobody can claim");
  check(static_cast<int64_t>(unclaimed) <= capacity,
        std::to_string(unclaimed) + " sessions wait for a harness, the worker asked for " +
            std::to_string(capacity) + " samples");
}

void SessionJudge::died(const std::string& process) {
  for (const std::string& session : not_closed_[process]) {
    account(session).state = State::kClosed;
  }
  not_closed_.erase(process);
  asked_for_.erase(process);
}

std::vector<SessionJudge::MadeById::const_iterator> SessionJudge::made_as(
    const Rollout& rollout) const {
  std::vector<MadeById::const_iterator> found;
  const auto [first, last] = made_.equal_range(rollout.rollout_id);
  for (auto made = first; made != last; ++made) {
    Rollout as_sent = made->second.rollout;
    if (as_sent.trainer_term < 0) {  // of nothing sampled: the loop or the link says the installed
      as_sent.trainer_term = rollout.trainer_term;
    }
    if (as_sent == rollout) {
      found.push_back(made);
    }
  }
  check(!found.empty(), "rollout " + rollout.rollout_id + " is none that a session became");
  return found;
}

void SessionJudge::sent(const std::string& process, const Rollout& rollout) {
  for (const auto& made : made_as(rollout)) {
    if (made->second.is_sent || account(made->second.session).process != process) {
      continue;
    }
    made_.erase(made, made)->second.is_sent = true;  // of an empty range: the same, not const
    return;
  }
  check(false, "rollout " + rollout.rollout_id + " is sent twice");
}

std::vector<SampledPart> SessionJudge::sampled_for(const Rollout& rollout) const {
  const auto made = made_as(rollout).front();
  std::vector<SampledPart> parts;
  for (const Turn& turn : accounts_.at(made->second.session).turns) {
    parts.push_back({turn.given.trainer_term, turn.given.version, turn.given.content});
  }
  return parts;
}

int64_t SessionJudge::content_of(const std::string& session) const {
  const auto found = accounts_.find(session);
  if (found == accounts_.end() || found->second.turns.empty()) {
    return -1;
  }
  const std::vector<Turn>& turns = found->second.turns;
  const int64_t content = turns.front().given.content;
  const bool same =
      std::ranges::all_of(turns, [&](const Turn& turn) { return turn.given.content == content; });
  return same ? content : -1;
}

int64_t SessionJudge::turns_of(const std::string& session) const {
  const auto found = accounts_.find(session);
  return found == accounts_.end() ? 0 : std::ssize(found->second.turns);
}

bool SessionJudge::is_held_out(const std::string& session) const {
  const auto found = accounts_.find(session);
  return found != accounts_.end() && found->second.held_out;
}

}  // namespace ringside::simulator
