// What the clients of all HTTP inference servers have in common: deadlines, tries, checks, and that
// nothing is sampled from weights in doubt.
#pragma once

#include <chrono>

#include "rollout_bridge/servers/http_json.h"
#include "rollout_bridge/servers/inference_server.h"

namespace ringside::bridge {

struct ServerOptions {
  std::string url;                                       // see HttpJson
  std::string api_key;                                   // may be empty
  int64_t vocab_size = int64_t{1} << 31;                 // ids at or above it are refused; > 0
  std::size_t max_response_bytes = 16u << 20;            // one answer
  std::chrono::milliseconds generate_deadline{600'000};  // one generate with all its tries
  std::chrono::milliseconds control_deadline{30'000};    // one health, resume, version, connect
  std::chrono::milliseconds pause_deadline{600'000};     // one pause: draining lasts
  std::chrono::milliseconds load_deadline{600'000};      // one load_weights_from_disk
  int generate_tries = 3;                                // >= 1
  // Whether generate tries again after a lost connection. Whoever answers then may be another
  // process with other weights; where that matters, false: the caller looks at the weights first.
  bool again_after_close = true;
  std::chrono::milliseconds first_pause{250};      // before the second try, then four times as long
  std::chrono::milliseconds longest_pause{5'000};  // each time, to this at most
};

class HttpServer : public InferenceServer {
 public:
  Result<GenerateResult> generate(const GenerateRequest& request) final;
  Status load_weights_from_disk(const std::string& path, int64_t version) final;
  Result<std::string> pull_weights(const WeightSource& source) final;
  Status health() override;

 protected:
  // Throws std::invalid_argument on a value outside of what is stated at ServerOptions.
  explicit HttpServer(ServerOptions options);

  // One try. `request_id` is the request's own at the first, and another one at each further: a
  // server may still hold the one before.
  virtual Result<GenerateResult> try_generate(const GenerateRequest& request,
                                              const std::string& request_id,
                                              Deadline deadline) const = 0;
  virtual Status load(const std::string& path, int64_t version, Deadline deadline) = 0;
  virtual Result<std::string> pull(const WeightSource& source, Deadline deadline);
  // Other limits of the server at hand; called with a request that passed all other checks.
  virtual Status check_server_limits(const GenerateRequest& request) const;

  // Posts and forgets the answer's text.
  Status command(const std::string& path, const std::string& body, Deadline deadline) const;
  const HttpJson& http() const { return http_; }
  const ServerOptions& options() const { return options_; }
  static Deadline in(std::chrono::milliseconds span);

 private:
  ServerOptions options_;
  HttpJson http_;
  std::optional<int64_t> doubt_;  // the version whose load failed
};

}  // namespace ringside::bridge
