// Base class of the HTTP inference servers' clients: deadlines, retries, checks. It refuses to
// sample after a failed weight load.
#pragma once

#include <chrono>

#include "rollout_bridge/servers/http_json.h"
#include "rollout_bridge/servers/inference_server.h"

namespace ringside::bridge {

struct ServerOptions {
  std::string url;                                       // see HttpJson
  std::string api_key;                                   // may be empty
  int64_t vocab_size = int64_t{1} << 31;                 // larger ids are refused; > 0
  std::size_t max_response_bytes = 16u << 20;            // of one answer
  std::chrono::milliseconds generate_deadline{600'000};  // one generate with all retries
  std::chrono::milliseconds control_deadline{30'000};    // one call of any other method
  std::chrono::milliseconds pause_deadline{600'000};     // one pause, which may drain
  std::chrono::milliseconds load_deadline{600'000};      // one load of weights or adapter, or pull
  int generate_tries = 3;                                // >= 1
  // True: generate retries after a lost connection. The process that then answers may be another
  // one with other weights. Where that matters use false; the caller then checks the weights first.
  bool again_after_close = true;
  // True: connect() also probes for what requests with images need, and fails without it.
  bool images = false;
  std::chrono::milliseconds first_pause{
      250};  // pause before the second attempt; each further pause is four times as long
  std::chrono::milliseconds longest_pause{5'000};  // upper bound of the pauses
};

class HttpServer : public InferenceServer {
 public:
  Result<GenerateResult> generate(const GenerateRequest& request) final;
  Status load_weights_from_disk(const std::string& path, int64_t version) final;
  Status load_adapter(const std::string& path, int64_t version, const std::string& name) final;
  Result<std::string> pull_weights(const WeightSource& source) final;
  Status health() override;

 protected:
  // Throws: std::invalid_argument on a value outside the ranges at ServerOptions.
  explicit HttpServer(ServerOptions options);

  // One attempt. The first uses the request's own `request_id`. Each further one uses a new id,
  // because the server may still hold the one before.
  virtual Result<GenerateResult> try_generate(const GenerateRequest& request,
                                              const std::string& request_id,
                                              Deadline deadline) const = 0;
  virtual Status load(const std::string& path, int64_t version, Deadline deadline) = 0;
  virtual Status change_adapter(const std::string& path, int64_t version, const std::string& name,
                                Deadline deadline);
  virtual Result<std::string> pull(const WeightSource& source, Deadline deadline);
  // Checks limits of the specific server. Called after all other checks have passed.
  virtual Status check_server_limits(const GenerateRequest& request) const;

  // Posts and discards the answer's text.
  Status command(const std::string& path, const std::string& body, Deadline deadline) const;
  const HttpJson& http() const { return http_; }
  const ServerOptions& options() const { return options_; }
  // Now and that span.
  static Deadline in(std::chrono::milliseconds span);

 private:
  Status check_source(const std::string& path, int64_t version) const;

  ServerOptions options_;
  HttpJson http_;
  std::optional<int64_t> doubt_;  // the version whose load failed
};

}  // namespace ringside::bridge
