// The gateway's HTTP server: OpenAI's and Anthropic's routes in front of a worker's model.
//
// A harness claims a session, sends its requests there, and ends the session with a reward:
//   POST /sessions                {"wait_s": 10}   200 {"session", "base_url", "record", ...}; 204
//                                                  when none is to be had yet; 410 at the run's end
//   POST /sessions/ID/v1/chat/completions, /v1/completions, /v1/messages; GET .../v1/models
//   POST /sessions/ID/reward      {"reward": 1.0}  200
// The same routes without /sessions/ID take the session's name from the API key (Authorization:
// Bearer ID, or x-api-key: ID).
#pragma once

#include <memory>
#include <string>

#include "rl/gateway/gateway.h"

namespace ringside::rl {

class GatewayServer {
 public:
  // address: "HOST:PORT"; port 0 takes a free one. threads: requests that are served at a time.
  // model: the name in /v1/models. Serves from then on, by threads of its own. `gateway` must
  // outlive this.
  // Throws: std::runtime_error for an address that cannot be bound.
  GatewayServer(const std::string& address, int threads, std::string model, Gateway& gateway);
  // Blocks: until the requests that are being served are answered; close the SessionDesk first.
  ~GatewayServer();

  // "http://HOST:PORT".
  const std::string& url() const;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace ringside::rl
