// llama.cpp's llama-server. Written from its tools/server/README.md (commit 00dc805) and server
// source. Run against llama.cpp of October 2026 (PyPI xllamacpp, tools/test_llama.sh): generate and
// health, which is all.
//
//   llama-server --model MODEL.gguf --no-context-shift --flash-attn off --cache-type-k f32
//   --cache-type-v f32 or python -m ringside_bridge.llama_server --model HF_DIRECTORY --port N
//
// With float32 weights, attention and cache (the second line) log-probs are within 2e-6 of
// transformers' on average, 1.1e-5 at most, so rollout.server_options.probe_tolerance can be 1e-4.
// The server's own default, a cache in float16, wants more.
//
// Log-probs are a softmax of the raw logits, so only temperature 1 without truncation or penalties
// is taken. A token whose bytes end within a UTF-8 character has no log-prob of its own: such
// results come back with logprobs_complete false. Stop ids are seen to here: what follows one is
// cut off. There is no pause and no change of weights.
#pragma once

#include "rollout_bridge/servers/http_server.h"

namespace ringside::bridge {

class LlamaCppServer final : public HttpServer {
 public:
  // Throws std::invalid_argument, see HttpServer.
  explicit LlamaCppServer(ServerOptions options);

  Status connect() override;  // health()
  Status check_sampling(const SamplingSettings& settings) const override;
  // kUnsupported, all of them; load_weights_from_disk too.
  Status pause(PausePolicy policy) override;
  Status resume() override;
  Result<std::string> weight_version() override;
  Capabilities capabilities() const override;

 private:
  Result<GenerateResult> try_generate(const GenerateRequest& request, const std::string& request_id,
                                      Deadline deadline) const override;
  Status load(const std::string& path, int64_t version, Deadline deadline) override;
};

}  // namespace ringside::bridge
