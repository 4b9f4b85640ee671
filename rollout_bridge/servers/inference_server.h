// An inference server that knows nothing of Ringside, as a rollout worker sees it: token ids in,
// token ids and the log-probs of the distribution they were sampled from out, weights from disk.
//
// What of each client has been run against its real server stands in its header; the rest is
// written from the servers' documentation and source, and tested against exchanges written from
// there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rollout_bridge/base/result.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// What the next token is drawn from. The defaults are the model's own distribution. Clients send
// every field: a server's defaults come from its command line or the model's generation_config.
struct SamplingSettings {
  double temperature = 1.0;         // > 0
  double top_p = 1.0;               // in (0, 1]; 1 is off
  int64_t top_k = 0;                // >= 0; 0 is off
  double min_p = 0.0;               // 0 is off; no client takes another value: a Rollout cannot
  double repetition_penalty = 1.0;  // state it. The same holds for the penalties (1, 0, 0: off)
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
};

struct GenerateRequest {
  std::vector<int64_t> prompt_ids;  // [P], P >= 1, in [0, vocab_size)
  int64_t max_tokens = 0;           // >= 1
  SamplingSettings sampling;
  std::vector<int64_t> stop_ids;  // besides the model's own end-of-sequence ids
  int64_t seed = 0;               // of this sample; a second try with it is the same sample where
                                  // capabilities().seed
  std::string request_id;         // not empty; unique per sample
  std::string cache_salt;         // not empty: the weight version. A prefix cache never crosses it
};

// Completion tokens [begin, end) under the weights the server calls `label`.
struct LabelSpan {
  std::string label;
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const LabelSpan&) const = default;
};

struct GenerateResult {
  std::vector<int64_t> completion_ids;  // [C], C <= max_tokens; empty only if aborted or error
  // [C], of the distribution sampled from. Empty while logprobs_complete is false: the caller
  // scores the ids anew or drops the sample; a Rollout without log-probs does not pass validate().
  std::vector<float> logprobs;
  bool logprobs_complete = true;
  FinishReason finish_reason = FinishReason::kStop;
  std::vector<LabelSpan> versions;  // cover [0, C) in order, or empty: the server gives no spans
  // The one label that came with the answer. Says nothing of the tokens before a weight change that
  // fell into this request (PausePolicy::kKeep).
  std::optional<std::string> label;
};

// What becomes of requests that are running.
enum class PausePolicy {
  kDrain,  // they end first
  kAbort,  // they are answered with what they have, finish_reason kAborted
  kKeep,   // they go on after resume(), under the weights of then
};

struct Capabilities {
  bool hot_weights = false;    // load_weights_from_disk works
  bool pull = false;           // pull_weights works
  bool score = false;          // score works
  bool version_spans = false;  // GenerateResult::versions tells tokens before and after a change
  bool pause_drain = false;
  bool pause_abort = false;
  bool pause_keep = false;
  bool version_label = false;  // weight_version works
  bool cache_salt = false;     // else load_weights_from_disk flushes the prefix cache
  bool stop_ids = false;
  bool seed = false;
};

// Verified weights that wait at a bridge address of this machine for whoever asks for their chunks
// (PROTOCOL.md, CHUNK_REQUEST). `manifest` is the dense manifest as it goes over the wire.
struct WeightSource {
  std::string address;
  std::vector<uint8_t> manifest;
  std::string run_id;
  int64_t trainer_term = -1;
  int64_t version = -1;
  std::string root_hash;  // the manifest's
};

// The integer a label was made of by load_weights_from_disk; nullopt for any other text.
std::optional<int64_t> version_of_label(const std::string& label);

// Expected trouble comes back as an Error whose detail names the URL, the status and the first 200
// bytes of the body: kTimeout (deadline), kClosed (no connection, or status 5xx), kBusy (429, 503),
// kDenied (401, 403), kUnsupported (404, 405, or the server cannot), kInvalidField (other 4xx, or a
// value out of its range), kMalformed (not JSON, fields missing), kLimit (answer too long).
// All calls block, at most until their deadline (ServerOptions). Not thread-safe: an object belongs
// to one thread; make one per thread.
class InferenceServer {
 public:
  virtual ~InferenceServer() = default;

  // Finds out what the other calls need to know. Before everything else; again after a restart of
  // the server. Sends a few requests of one token.
  virtual Status connect() = 0;
  // Refuses, with the reason, settings under which the log-probs in the answers would not be those
  // of the distribution sampled from. Sends nothing.
  virtual Status check_sampling(const SamplingSettings& settings) const = 0;
  // One completion. Refuses what check_sampling refuses. Tries again after connection trouble, 429
  // and 5xx, with growing pauses, within the one deadline.
  virtual Result<GenerateResult> generate(const GenerateRequest& request) = 0;
  virtual Status pause(PausePolicy policy) = 0;
  // Loads the Hugging Face directory at the absolute `path` (as the server's machine sees it) and
  // labels the weights with `version` >= 0. To be called between pause and resume. Never tried
  // again: after an error, the weights are in doubt and generate refuses until a load succeeds.
  virtual Status load_weights_from_disk(const std::string& path, int64_t version) = 0;
  // Has the server's own process fetch the weights, verify all of them and only then install them.
  // Returns the root hash it computed from what it received. Between pause and resume; never tried
  // again, as load_weights_from_disk.
  virtual Result<std::string> pull_weights(const WeightSource& source);
  // Log-probs [N - 1] of ids[1], ids[2], ... under the loaded model itself (temperature 1, nothing
  // cut), N >= 2. What tells loaded weights from others.
  virtual Result<std::vector<float>> score(const std::vector<int64_t>& ids);
  virtual Status resume() = 0;
  virtual Status health() = 0;
  // The label of the weights that are loaded now.
  virtual Result<std::string> weight_version() = 0;
  // Of this server as far as known; complete after connect().
  virtual Capabilities capabilities() const = 0;
};

}  // namespace ringside::bridge
