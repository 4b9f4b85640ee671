// HTTP server of a reward model, for rollout.reward http. Torch-free.
//   POST /  {"prompt": text or messages, "completion": text}   200 {"reward": 0.5}
//   GET /                                                      200 {"model": "..."}
// A request that cannot be judged is answered with 400 and {"error": "..."}; one whose scoring
// fails with 500. Further members of a request are ignored.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sp/batch/document.h"

namespace ringside::rl {

class RewardServer {
 public:
  struct Calls {
    // The document of a request's prompt and completion. Called by one thread at a time. Throws:
    // std::exception, whose text is the error of a request that cannot be judged.
    std::function<sp::Document(const nlohmann::ordered_json& prompt, const std::string& completion)>
        document;
    // A number for each document. Called by one thread.
    std::function<std::vector<double>(const std::vector<sp::Document>&)> rewards;
  };

  // Serves from then on, by threads of its own. address: "HOST:PORT"; port 0 takes a free one.
  // model: what GET / names. batch_tokens: completions that wait are judged together, up to about
  // so many tokens.
  // Throws: std::runtime_error for an address that cannot be bound.
  RewardServer(const std::string& address, std::string model, int64_t batch_tokens, Calls calls);
  // Blocks: until the requests that are being served are answered.
  ~RewardServer();

  // "http://HOST:PORT".
  const std::string& url() const;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace ringside::rl
