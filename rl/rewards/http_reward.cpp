#include "rl/rewards/http_reward.h"

#include <httplib.h>
#include <re2/re2.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "rl/rewards/json_schema.h"

namespace ringside::rl {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostBytes = 1 << 20;
constexpr int kTries = 3;
constexpr std::chrono::milliseconds kFirstPause{250};

struct Target {
  std::string url;
  std::string host;
  int port = 80;
  std::string path = "/";
  std::chrono::milliseconds timeout{0};
};

Target parse_target(const RewardOptions& options) {
  Target target;
  target.url = options.http_url;
  std::string port;
  std::string path;
  static const RE2 form(R"(http://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::(\d{1,5}))?(/[^\s#]*)?)");
  const bool read = RE2::FullMatch(target.url, form, &target.host, &port, &path);
  target.port = port.empty() ? 80 : std::stoi(port);
  if (!read || target.port < 1 || target.port > 65535) {
    throw std::invalid_argument("http: rollout.reward_options.http_url '" + target.url +
                                "' is not of the form http://host[:port][/path]");
  }
  if (target.host.front() == '[') {
    target.host = target.host.substr(1, target.host.size() - 2);
  }
  target.path = path.empty() ? "/" : path;
  if (!(options.http_timeout_s > 0) || !(options.http_timeout_s < 1e6)) {
    throw std::invalid_argument("http: rollout.reward_options.http_timeout_s is " +
                                std::to_string(options.http_timeout_s) +
                                "; expected more than 0 and less than 1e6");
  }
  target.timeout = std::chrono::milliseconds(
      std::max<int64_t>(1, static_cast<int64_t>(options.http_timeout_s * 1000)));
  return target;
}

std::string request_body(const RewardInput& input) {
  const json body{
      {"prompt", input.prompt}, {"completion", input.completion}, {"answer", input.answer}};
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

// The reward; else nullopt, with the problem of the response.
std::optional<double> read_reward(const std::string& text, std::string& trouble) {
  if (json_depth(text) > kMaxJsonDepth) {
    trouble = "the answer is nested too deeply";
    return std::nullopt;
  }
  const json answer = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const json* value = nullptr;
  if (answer.is_object() && answer.contains("reward")) {
    value = &answer["reward"];
  } else if (answer.is_object() && answer.contains("rewards") && answer["rewards"].is_array() &&
             answer["rewards"].size() == 1) {
    value = &answer["rewards"][0];
  }
  if (value == nullptr || !value->is_number() || !std::isfinite(value->get<double>())) {
    trouble = "the answer holds no finite \"reward\": " +
              json(text.substr(0, 200)).dump(-1, ' ', true, json::error_handler_t::replace);
    return std::nullopt;
  }
  return value->get<double>();
}

std::optional<double> ask(const Target& target, const std::string& body, std::string& trouble) {
  httplib::Client client(target.host, target.port);
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(target.timeout).count();
  client.set_connection_timeout(us / 1000000, us % 1000000);
  client.set_read_timeout(us / 1000000, us % 1000000);
  client.set_write_timeout(us / 1000000, us % 1000000);
  // The library's timeout applies to one read. This deadline also ends a server that sends a byte
  // now and then.
  const auto deadline = Clock::now() + target.timeout;
  std::string text;
  httplib::Request request;
  request.method = "POST";
  request.path = target.path;
  request.headers = {{"Content-Type", "application/json"}};
  request.body = body;
  request.content_receiver = [&](const char* data, std::size_t length, uint64_t, uint64_t) {
    text.append(data, std::min(length, kMostBytes + 1 - std::min(text.size(), kMostBytes + 1)));
    return text.size() <= kMostBytes && Clock::now() < deadline;
  };
  const httplib::Result result = client.send(request);
  if (!result) {
    trouble = text.size() > kMostBytes
                  ? "the answer is longer than " + std::to_string(kMostBytes) + " bytes"
                  : httplib::to_string(result.error());
    return std::nullopt;
  }
  if (result->status != 200) {
    trouble = "status " + std::to_string(result->status);
    return std::nullopt;
  }
  return read_reward(text, trouble);
}

}  // namespace

Reward http_reward(const RewardOptions& options) {
  return http_reward(options,
                     [](std::chrono::milliseconds pause) { std::this_thread::sleep_for(pause); });
}

Reward http_reward(const RewardOptions& options,
                   std::function<void(std::chrono::milliseconds)> wait) {
  return [target = parse_target(options), wait = std::move(wait)](const RewardInput& input) {
    const std::string body = request_body(input);
    std::string trouble;
    auto pause = kFirstPause;
    for (int i = 0; i < kTries; ++i) {
      if (i > 0) {
        wait(pause);
        pause *= 4;
      }
      if (const auto reward = ask(target, body, trouble)) {
        return *reward;
      }
    }
    throw RewardUnavailable("no reward from " + target.url + " in " + std::to_string(kTries) +
                            " tries: " + trouble);
  };
}

}  // namespace ringside::rl
