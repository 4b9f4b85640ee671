// Inference server interface of a rollout worker: token ids in; token ids and the log-probs of the
// sampling distribution out; weights from disk. The server itself knows nothing of Ringside.
//
// Each client's header says what was run against the real server. The rest is written from the
// servers' documentation and source, and tested against exchanges made from these.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rollout_bridge/base/result.h"
#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/servers/routed_table.h"

namespace ringside::bridge {

// Sampling distribution of the next token. The defaults are the model's own distribution. Clients
// send every field, because a server's defaults come from its command line or the model's
// generation_config.
struct SamplingSettings {
  double temperature = 1.0;  // > 0
  double top_p = 1.0;        // in (0, 1]; 1 is off
  int64_t top_k = 0;         // >= 0; 0 is off
  // Clients accept only the off values of the next four, because a Rollout cannot state others.
  double min_p = 0.0;               // 0 is off
  double repetition_penalty = 1.0;  // 1 is off
  double presence_penalty = 0.0;    // 0 is off
  double frequency_penalty = 0.0;   // 0 is off
};

// An image of a prompt as the model's vision tower takes it, so that the server neither resizes nor
// counts tokens itself.
struct RequestImage {
  std::string id;      // not empty; equal for images of equal patches and grid only
  int64_t begin = 0;   // of its tokens in prompt_ids, which hold the placeholder once a token
  int64_t tokens = 0;  // >= 1
  int64_t grid_height = 0, grid_width = 0;  // in patches, >= 1
  // [grid_height * grid_width, row size], the rows of an image processor.
  std::shared_ptr<const std::vector<float>> patches;
};

struct GenerateRequest {
  std::vector<int64_t> prompt_ids;   // [P], P >= 1, in [0, vocab_size)
  std::vector<RequestImage> images;  // of the prompt, in its order; needs capabilities().images
  int64_t max_tokens = 0;            // >= 1
  SamplingSettings sampling;
  std::vector<int64_t> stop_ids;  // besides the model's own end-of-sequence ids
  // Of this sample; a second try with it is the same sample where capabilities().seed.
  int64_t seed = 0;
  std::string request_id;  // not empty; unique per sample
  std::string cache_salt;  // not empty: the weight version. A prefix cache never crosses it
  // Above 0: the answer must bring the routed experts, so many a token and layer.
  int64_t experts_per_token = 0;
  // The adapter that samples, by its name in load_adapter(); "" = the one without a name, or the
  // model's own weights where none is loaded.
  std::string adapter = {};
  // False: the answer's log-probs are not read, so they may be of another distribution than
  // `sampling`.
  bool reads_logprobs = true;
};

// Completion tokens [begin, end) sampled under the weights that the server labels `label`.
struct LabelSpan {
  std::string label;
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const LabelSpan&) const = default;
};

struct GenerateResult {
  std::vector<int64_t> completion_ids;  // [C], C <= max_tokens; empty only if aborted or error
  // [C], under the sampling distribution. Empty while logprobs_complete is false. The caller then
  // scores the ids again or drops the sample, because a Rollout without log-probs does not pass
  // validate().
  std::vector<float> logprobs;
  bool logprobs_complete = true;
  FinishReason finish_reason = FinishReason::kStop;
  std::vector<LabelSpan> versions;  // cover [0, C) in order; empty: the server reports no spans
  // The label in the answer. It does not describe the tokens before a weight change within this
  // request (PausePolicy::kKeep).
  std::optional<std::string> label;
  RoutedTable routed;  // with experts_per_token; empty without, or if aborted
};

// Treatment of running requests during a pause.
enum class PausePolicy {
  kDrain,  // they finish first
  kAbort,  // they return what they have, finish_reason kAborted
  kKeep,   // they continue after resume() under the new weights
};

struct Capabilities {
  bool hot_weights = false;  // load_weights_from_disk works
  bool pull = false;         // pull_weights works
  bool adapters = false;     // load_adapter works
  bool score = false;        // score works
  // GenerateResult::versions separates tokens before and after a weight change.
  bool version_spans = false;
  bool pause_drain = false;
  bool pause_abort = false;
  bool pause_keep = false;
  bool version_label = false;  // weight_version works
  bool cache_salt = false;     // else load_weights_from_disk flushes the prefix cache
  bool stop_ids = false;
  bool seed = false;
  bool routed_experts = false;  // generate takes experts_per_token, if the server was started so
  bool images = false;          // generate takes images; known after connect()
};

// Verified weights served at a bridge address of this machine, by CHUNK_REQUEST (PROTOCOL.md).
// `manifest` is the encoded dense manifest.
struct WeightSource {
  std::string address;
  std::vector<uint8_t> manifest;
  std::string run_id;
  int64_t trainer_term = -1;
  int64_t version = -1;
  std::string root_hash;  // the manifest's
};

// The version that load_weights_from_disk made the label of; nullopt for any other text.
std::optional<int64_t> version_of_label(const std::string& label);

// Errors: the detail names the URL, the status and the first 200 bytes of the body. kTimeout
// (deadline), kClosed (no connection, or another status 5xx), kBusy (429, 503), kDenied (401, 403),
// kUnsupported (404, 405, 501, or not offered by the server), kInvalidField (another status, or a
// value out of its range), kMalformed (not JSON, fields missing), kLimit (answer too long).
// Blocks: every call, at most until its deadline (ServerOptions).
// Thread safety: none; use one object a thread.
class InferenceServer {
 public:
  virtual ~InferenceServer() = default;

  // Probes the server for what the other calls need, with a few requests of one token. Call it
  // first, and again after a restart of the server.
  virtual Status connect() = 0;
  // Refuses settings whose log-probs in the answers would not be those of the sampling
  // distribution. The error has the reason. Sends nothing.
  virtual Status check_sampling(const SamplingSettings& settings) const = 0;
  // One completion. Refuses what check_sampling refuses. Retries after kBusy, with growing pauses
  // within one deadline; after kClosed too where ServerOptions::again_after_close says so.
  virtual Result<GenerateResult> generate(const GenerateRequest& request) = 0;
  // Stops the server from sampling.
  // Blocks: with kDrain until the running requests are finished.
  // Errors: kUnsupported for a policy that capabilities() lacks.
  virtual Status pause(PausePolicy policy) = 0;
  // Loads the Hugging Face directory at the absolute `path`, as the server's machine sees it, and
  // labels the weights with `version` >= 0. Call it between pause and resume. Never retried: after
  // an error the weights are unknown, and generate refuses until a load succeeds.
  virtual Status load_weights_from_disk(const std::string& path, int64_t version) = 0;
  // Makes the server sample with its own weights and the low-rank adapters of the PEFT directory at
  // the absolute `path`; those of an earlier call with this name are dropped. Otherwise as
  // load_weights_from_disk. name: that requests give; "" = of requests that give none.
  // Errors: kUnsupported for a name where the server takes one adapter alone.
  virtual Status load_adapter(const std::string& path, int64_t version, const std::string& name);
  // Makes the server's process fetch the weights, verify all of them and then install them. Returns
  // the root hash that it computed from the received bytes. Call it between pause and resume. Never
  // retried, as load_weights_from_disk.
  virtual Result<std::string> pull_weights(const WeightSource& source);
  // Log-probs [N - 1] of ids[1], ids[2], ... under the loaded model (temperature 1, no truncation),
  // N >= 2. Identifies the loaded weights.
  virtual Result<std::vector<float>> score(const std::vector<int64_t>& ids);
  // The same under an adapter with a name, see load_adapter().
  virtual Result<std::vector<float>> score_under(const std::string& adapter,
                                                 const std::vector<int64_t>& ids);
  // Ends a pause.
  virtual Status resume() = 0;
  // Success when the server answers that it is well.
  virtual Status health() = 0;
  // The label of the loaded weights.
  virtual Result<std::string> weight_version() = 0;
  // Known capabilities of this server; complete after connect().
  virtual Capabilities capabilities() const = 0;
};

}  // namespace ringside::bridge
