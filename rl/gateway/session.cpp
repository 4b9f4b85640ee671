#include "rl/gateway/session.h"

#include <algorithm>

#include "rl/data/data_order.h"

namespace ringside::rl {

Session::Session(std::string id, bridge::GrantedSample sample, nlohmann::ordered_json data_record,
                 SessionLimits limits, uint64_t seed, const StatedSampling& sampling)
    : id_(std::move(id)),
      sample_(sample),
      data_record_(std::move(data_record)),
      limits_(std::move(limits)),
      seed_(seed),
      sampling_(sampling) {}

std::vector<TokenRequest> Session::begin(const ChatTurns::Context& context, int64_t max_tokens,
                                         int64_t count) {
  const std::lock_guard lock(mutex_);
  if (result_) {
    throw RequestRefused(409, "session " + id_ + " has ended");
  }
  if (begun_ + count > limits_.max_turns) {
    throw RequestRefused(429, "session " + id_ + " has used its " +
                                  std::to_string(limits_.max_turns) +
                                  " samples (rollout.harness_options.max_turns)");
  }
  TokenRequest request{tokens_.sequence(context.end), std::min(max_tokens, limits_.max_new_tokens),
                       0, sampling_};
  request.prompt.insert(request.prompt.end(), context.ids.begin(), context.ids.end());
  if (request.prompt.empty()) {
    throw RequestRefused(400, "the prompt has no tokens");
  }
  const bool known = std::ranges::all_of(request.prompt, [&](int64_t id) {
    return id >= 0 && (limits_.vocab_size == 0 || id < limits_.vocab_size);
  });
  if (!known) {
    throw RequestRefused(400, "the prompt has a token id outside of the model's vocabulary of " +
                                  std::to_string(limits_.vocab_size));
  }
  if (limits_.max_tokens > 0) {
    const int64_t room = limits_.max_tokens - std::ssize(request.prompt);
    if (room < 1) {
      throw RequestRefused(400, "the prompt has " + std::to_string(request.prompt.size()) +
                                    " tokens, and the model " + std::to_string(limits_.max_tokens) +
                                    " positions: no room for a completion");
    }
    request.max_tokens = std::min(request.max_tokens, room);
  }
  std::vector<TokenRequest> requests;
  for (int64_t i = 0; i < count; ++i) {
    request.seed = mix_seed({seed_, static_cast<uint64_t>(begun_++)});
    requests.push_back(request);
  }
  return requests;
}

ChatTurns::Context Session::context(ChatText& text, const Conversation& asked) const {
  const std::lock_guard lock(mutex_);
  try {
    return turns_.context(text, asked);
  } catch (const std::exception& error) {
    throw RequestRefused(400, error.what());
  }
}

int64_t Session::record(const ChatTurns::Context& context, const TokenAnswer& answer) {
  const std::lock_guard lock(mutex_);
  if (result_) {
    throw RequestRefused(409, "session " + id_ + " ended while it was sampled from");
  }
  try {
    const int64_t end = tokens_.add(context.end, context.ids, answer.sampled);
    last_stopped_ = answer.stopped;
    return end;
  } catch (const std::invalid_argument& error) {
    throw RequestRefused(400, error.what());
  }
}

void Session::add_reply(ChatTurns::Context asked, nlohmann::ordered_json reply, int64_t end,
                        std::optional<int64_t> stop) {
  const std::lock_guard lock(mutex_);
  turns_.add(std::move(asked), std::move(reply), end, stop);
}

bool Session::end(SessionResult result) {
  const std::lock_guard lock(mutex_);
  if (result_) {
    return false;
  }
  if (!result.turn_rewards.empty() && std::ssize(result.turn_rewards) != tokens_.turns()) {
    throw RequestRefused(400, std::to_string(result.turn_rewards.size()) + " turn_rewards for " +
                                  std::to_string(tokens_.turns()) +
                                  " samples; expected one for each, or none");
  }
  result_ = std::move(result);
  return true;
}

bool Session::has_ended() const {
  const std::lock_guard lock(mutex_);
  return result_.has_value();
}

void Session::write(bridge::Rollout& rollout) const {
  const std::lock_guard lock(mutex_);
  rollout.failure = result_ ? result_->failure : "the session has not ended";
  if (rollout.failure.empty() && tokens_.turns() == 0) {
    rollout.failure = "the harness ended the session without a request that sampled";
  }
  if (tokens_.turns() > 0) {
    tokens_.write(rollout);
  } else {
    rollout.prompt_ids = {0};  // a rollout has a prompt, and this one none that is known
  }
  if (!rollout.failure.empty()) {
    rollout.finish_reason = bridge::FinishReason::kError;
    rollout.loss_mask.assign(rollout.completion_ids.size(), 0);
    return;
  }
  rollout.finish_reason =
      last_stopped_ ? bridge::FinishReason::kStop : bridge::FinishReason::kLength;
  rollout.rewards = result_->rewards;
  rollout.turn_rewards = result_->turn_rewards;
}

}  // namespace ringside::rl
