// Client of Ringside's own server of transformers models (rollout_bridge/python,
// ringside_bridge.hf_server, which documents the API). Run against it by
// tests/oracle/python_server.py.
//
//    python -m ringside_bridge.hf_server --model DIR --port 8000
//
// The server loads weights only between requests, so pausing is not needed.
#pragma once

#include "rollout_bridge/servers/http_server.h"

namespace ringside::bridge {

class PythonServer final : public HttpServer {
 public:
  // Throws: std::invalid_argument, see HttpServer.
  explicit PythonServer(ServerOptions options);

  Status connect() override;  // health()
  Status check_sampling(const SamplingSettings& settings) const override;
  Status pause(PausePolicy policy)
      override;  // kDrain: at once, requests exclude loading; others: kUnsupported
  Status resume() override;
  Result<std::vector<float>> score(const std::vector<int64_t>& ids) override;
  Result<std::string> weight_version() override;
  Capabilities capabilities() const override;

 private:
  Result<GenerateResult> try_generate(const GenerateRequest& request, const std::string& request_id,
                                      Deadline deadline) const override;
  Status load(const std::string& path, int64_t version, Deadline deadline) override;
  Status change_adapter(const std::string& path, int64_t version, const std::string& name,
                        Deadline deadline) override;
  Result<std::string> pull(const WeightSource& source, Deadline deadline) override;
};

}  // namespace ringside::bridge
