// Client of SGLang's own HTTP API.
//
//    python -m sglang.launch_server --model-path MODEL
//
// Log-probs follow the temperature unless SGLANG_RETURN_ORIGINAL_LOGPROB is set. They are the
// log-probs before top_p and top_k. Routed experts need --enable-return-routed-experts. The API has
// no cache salt and no seed of a request: every load flushes the prefix cache, and a retry is
// another sample.
//
// Source: SGLang's docs/advanced_features/sglang_for_rl.md, managers/io_struct.py (commit 001067f)
// and entrypoints/http_server.py. Never run against a server.
#pragma once

#include "rollout_bridge/servers/http_server.h"

namespace ringside::bridge {

class SglangServer final : public HttpServer {
 public:
  // Throws: std::invalid_argument, see HttpServer.
  explicit SglangServer(ServerOptions options);

  // Requests the top token of one prompt at temperatures 1 and 2. Equal log-probs mean that
  // log-probs do not follow the temperature.
  Status connect() override;
  // Refuses top_p and top_k, and a temperature other than 1 when log-probs do not follow it.
  Status check_sampling(const SamplingSettings& settings) const override;
  // kKeep is mode "retract": running requests wait, and their caches are computed again under the
  // new weights, because a cache can only be flushed while nothing runs. kDrain is kUnsupported:
  // wait for the running requests, then pause with kAbort.
  Status pause(PausePolicy policy) override;
  Status resume() override;
  // input_token_logprobs of a /generate of one token at temperature 1, from the first id on.
  Result<std::vector<float>> score(const std::vector<int64_t>& ids) override;
  // weight_version of /server_info.
  Result<std::string> weight_version() override;
  Capabilities capabilities() const override;

 private:
  Result<GenerateResult> try_generate(const GenerateRequest& request, const std::string& request_id,
                                      Deadline deadline) const override;
  Status load(const std::string& path, int64_t version, Deadline deadline) override;
  Result<float> top_logprob(double temperature, Deadline deadline) const;

  std::optional<bool> follows_temperature_;
};

}  // namespace ringside::bridge
