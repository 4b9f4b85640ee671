// Client of llama.cpp's llama-server.
//
//    llama-server --model MODEL.gguf --no-context-shift --flash-attn off
//        --cache-type-k f32 --cache-type-v f32
//    python -m ringside_bridge.llama_server --model HF_DIRECTORY --port N
//
// Accuracy: with float32 weights, attention and cache (the second command) log-probs are within
// 2e-6 of transformers' on average and 1.1e-5 at most, so rollout.server_options.probe_tolerance
// can be 1e-4. The server's default, a float16 cache, needs more.
//
// Log-probs are a softmax of the raw logits, so only temperature 1 without truncation or penalties
// is accepted. A token whose bytes end within a UTF-8 character has no log-prob of its own; such
// results have logprobs_complete false. This client applies stop ids by cutting the tokens after
// one. Pause and weight updates are not supported.
//
// Source: tools/server/README.md (commit 00dc805) and the server source. Run against llama.cpp of
// October 2026 (PyPI xllamacpp, tools/test_llama.sh): generate and health only.
#pragma once

#include "rollout_bridge/servers/http_server.h"

namespace ringside::bridge {

class LlamaCppServer final : public HttpServer {
 public:
  // Throws: std::invalid_argument, see HttpServer.
  explicit LlamaCppServer(ServerOptions options);

  Status connect() override;  // health()
  Status check_sampling(const SamplingSettings& settings) const override;
  // All kUnsupported, load_weights_from_disk too.
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
