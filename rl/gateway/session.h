// A session of the gateway: one rollout, whose requests a harness sends over HTTP. Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rl/data/held_out_prompts.h"
#include "rl/gateway/chat_turns.h"
#include "rl/gateway/token_tree.h"
#include "rollout_bridge/worker/worker_queue.h"

namespace ringside::rl {

// A request that a session cannot answer. `status`: of HTTP.
class RequestRefused : public std::runtime_error {
 public:
  // why: a sentence for the harness.
  RequestRefused(int status, const std::string& why) : std::runtime_error(why), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

// What a request samples from.
struct TokenRequest {
  std::vector<int64_t> prompt;
  int64_t max_tokens = 0;
  uint64_t seed = 0;
  StatedSampling sampling = {};
};

struct TokenAnswer {
  SampledTokens sampled;
  bool stopped = false;  // by a stop id, which is the last one; otherwise at max_tokens
};

struct SessionLimits {
  int64_t max_turns = 0;       // requests that sample
  int64_t max_new_tokens = 0;  // of a request
  int64_t max_tokens = 0;      // of a sequence; 0: not known
  int64_t vocab_size = 0;      // ids of a prompt are below it; 0: not known
};

// What becomes of a session's rollout.
struct SessionResult {
  std::vector<std::pair<std::string, double>> rewards;  // by name
  std::vector<double> turn_rewards = {};                // none, or one per turn
  std::string failure = {};                             // not empty: the sample has failed
};

// Thread safety: any threads.
class Session {
 public:
  using Clock = std::chrono::steady_clock;

  // data_record: what the harness gets of its prompt. seed: of the sample. sampling: of all
  // requests.
  Session(std::string id, bridge::GrantedSample sample, nlohmann::ordered_json data_record,
          SessionLimits limits, uint64_t seed, const StatedSampling& sampling);

  const std::string& id() const { return id_; }
  const bridge::GrantedSample& sample() const { return sample_; }
  const nlohmann::ordered_json& data_record() const { return data_record_; }

  // The requests of `count` samples that continue recorded tokens; max_tokens is at most the
  // limits'. Every request has a seed of its own.
  // Throws: RequestRefused (409, 400, 429) when the session has ended, for a prompt without room in
  // the model's positions or with ids outside of its vocabulary, and beyond max_turns.
  std::vector<TokenRequest> begin(const ChatTurns::Context& context, int64_t max_tokens,
                                  int64_t count);
  // The tokens that a chat request continues. Throws: RequestRefused as ChatTurns::context()
  // throws.
  ChatTurns::Context context(ChatText& text, const Conversation& asked) const;

  // Records what was sampled behind a context. Returns the end of the sequence.
  // Throws: RequestRefused (409, 400) when the session has ended, and as TokenTree::add().
  int64_t record(const ChatTurns::Context& context, const TokenAnswer& answer);
  // Records the reply that an answer became.
  void add_reply(ChatTurns::Context asked, nlohmann::ordered_json reply, int64_t end,
                 std::optional<int64_t> stop);

  // Ends the session. A second result changes nothing. Returns whether this one counts.
  // Throws: RequestRefused (400) for turn_rewards that are not one per turn.
  bool end(SessionResult result);
  bool has_ended() const;

  // The rollout of an ended session: its tokens, rewards and finish_reason. Without sampled tokens
  // it has failed.
  void write(bridge::Rollout& rollout) const;

 private:
  const std::string id_;
  const bridge::GrantedSample sample_;
  const nlohmann::ordered_json data_record_;
  const SessionLimits limits_;
  const uint64_t seed_;
  const StatedSampling sampling_;

  mutable std::mutex mutex_;  // guards what follows
  TokenTree tokens_;
  ChatTurns turns_;
  int64_t begun_ = 0;          // samples
  bool last_stopped_ = false;  // the newest recorded sample ended by itself
  std::optional<SessionResult> result_;
};

}  // namespace ringside::rl
