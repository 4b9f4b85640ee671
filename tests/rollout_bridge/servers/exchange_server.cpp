#include "tests/rollout_bridge/servers/exchange_server.h"

#include <fstream>

namespace ringside::bridge::test {

using nlohmann::json;

std::vector<Exchange> exchanges(const std::string& file, const std::string& name) {
  std::ifstream stream(std::string(RINGSIDE_SOURCE_DIR) +
                       "/tests/rollout_bridge/servers/exchanges/" + file + ".json");
  const json all = json::parse(stream);
  std::vector<Exchange> list;
  for (const json& item : all.at(name)) {
    const json& answer = item.at("answer");
    list.push_back({item.at("method"), item.at("target"), item.value("body", json()),
                    item.value("status", 200),
                    answer.is_string() ? answer.get<std::string>() : answer.dump()});
  }
  return list;
}

ExchangeServer::ExchangeServer(std::vector<Exchange> script, std::chrono::milliseconds delay)
    : script_(std::move(script)), delay_(delay) {
  const auto handler = [this](const httplib::Request& request, httplib::Response& response) {
    reply(request, response);
  };
  server_.Post(".*", handler);
  server_.Get(".*", handler);
  port_ = server_.bind_to_any_port("127.0.0.1");
  thread_ = std::thread([this] { server_.listen_after_bind(); });
  while (!server_.is_running()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

ExchangeServer::~ExchangeServer() {
  server_.stop();
  thread_.join();
}

void ExchangeServer::reply(const httplib::Request& request, httplib::Response& response) {
  std::this_thread::sleep_for(delay_);
  const std::lock_guard lock(mutex_);
  if (calls_ >= script_.size()) {
    differences_ += "one call too many: " + request.method + " " + request.target + "\n";
    ++calls_;
    response.status = 418;
    return;
  }
  const Exchange& expected = script_[calls_++];
  const std::string line = request.method + " " + request.target;
  if (line != expected.method + " " + expected.target) {
    differences_ += line + " instead of " + expected.method + " " + expected.target + "\n";
  }
  const json body = request.body.empty() ? json() : json::parse(request.body, nullptr, false);
  for (const json& change : json::diff(expected.body, body)) {
    differences_ += line + ": " + change.dump() + "\n";
  }
  response.status = expected.status;
  response.set_content(expected.answer, "application/json");
}

ServerOptions ExchangeServer::options() const {
  ServerOptions options;
  options.url = "http://127.0.0.1:" + std::to_string(port_);
  options.vocab_size = 1000;
  options.first_pause = std::chrono::milliseconds(1);
  return options;
}

std::string ExchangeServer::differences() const {
  const std::lock_guard lock(mutex_);
  std::string text = differences_;
  for (std::size_t i = calls_; i < script_.size(); ++i) {
    text += "did not come: " + script_[i].method + " " + script_[i].target + "\n";
  }
  return text;
}

std::size_t ExchangeServer::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

}  // namespace ringside::bridge::test
