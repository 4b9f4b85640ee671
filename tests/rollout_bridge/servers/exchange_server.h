// An HTTP server in the process that expects given requests in a given order and replays the
// answers.
#pragma once

#include <httplib.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "rollout_bridge/servers/http_server.h"

namespace ringside::bridge::test {

// One request as it has to come and the answer to it. `body` null: no body.
struct Exchange {
  std::string method = "POST";
  std::string target;  // path and query
  nlohmann::json body;
  int status = 200;
  std::string answer;
};

// The list of that name in exchanges/NAME.json. The files are written from the servers'
// documentation, not recorded from a server; a recording has the same form and takes its place.
std::vector<Exchange> exchanges(const std::string& file, const std::string& name);

class ExchangeServer {
 public:
  explicit ExchangeServer(std::vector<Exchange> script, std::chrono::milliseconds delay = {});
  ~ExchangeServer();

  ServerOptions options() const;
  // What was not as in the script, field by field; and what of the script did not come. Empty:
  // nothing.
  std::string differences() const;
  std::size_t calls() const;

 private:
  void reply(const httplib::Request& request, httplib::Response& response);

  std::vector<Exchange> script_;
  std::chrono::milliseconds delay_;
  mutable std::mutex mutex_;
  std::size_t calls_ = 0;
  std::string differences_;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace ringside::bridge::test
