// TeacherServer: a teacher that answers over HTTP, by OpenAI's /v1/completions with vLLM's
// prompt_logprobs. It gets token ids and says how likely each token was, at temperature 1.
// Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rollout_bridge/servers/http_json.h"

namespace ringside::rl {

// A document to be scored.
struct ServedDocument {
  std::vector<int64_t> ids;     // at least 2
  std::vector<int64_t> places;  // of the ids whose log-probs are wanted; above 0, at least one
};

// What a server says of the places of a document.
// Shapes: P = places, K = most likely tokens, 0 unless they are asked for.
struct ServedScores {
  std::vector<float> logprobs;      // [P] of the document's own tokens
  std::vector<int64_t> top_ids;     // [P, K], the most likely first
  std::vector<float> top_logprobs;  // [P, K]
};

// Thread safety: score() may be called by several threads.
class TeacherServer {
 public:
  using Wait = std::function<void(std::chrono::milliseconds)>;

  // words: of the policy; no token may have an id beyond. wait: between tries, for tests.
  // Throws: std::invalid_argument naming the key for a bad address, and for a key file that cannot
  // be read or is empty.
  TeacherServer(const DistillationConfig& config, const std::string& url, int64_t words,
                Wait wait = {});

  // The scores of every document, in order; server_concurrency requests at a time. A lost
  // connection, a busy server and a status 5xx are tried again, with growing pauses, until
  // server_timeout_s of the document have passed.
  // Blocks: until all are scored or one has failed.
  // Throws: std::runtime_error naming the server, the document and what is wrong: no answer in
  // time, a refusal, an answer for another number of tokens or without a token, ids that the policy
  // does not have.
  std::vector<ServedScores> score(const std::vector<ServedDocument>& documents) const;

  // What is wrong with the server; "" when it answers that it is well. Asks once.
  std::string problem(std::chrono::milliseconds patience) const;

 private:
  ServedScores score_one(const ServedDocument& document) const;
  ServedScores read(const ServedDocument& document, const bridge::JsonAnswer& answer) const;

  std::string url_, model_;
  int64_t words_, top_k_, concurrency_;
  std::chrono::milliseconds timeout_;
  std::string api_key_;
  Wait wait_;
};

}  // namespace ringside::rl
