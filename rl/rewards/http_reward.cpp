#include "rl/rewards/http_reward.h"

#include <re2/re2.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "rl/rewards/json_schema.h"
#include "rollout_bridge/servers/http_json.h"

namespace ringside::rl {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostBytes = 1 << 20;
constexpr int kTries = 3;
constexpr std::chrono::milliseconds kFirstPause{250};

struct Target {
  std::string url;
  std::string server;  // http[s]://host:port
  std::string path = "/";
  std::chrono::milliseconds timeout{0};
};

Target parse_target(const RewardOptions& options) {
  Target target;
  target.url = options.http_url;
  std::string digits;
  std::string path;
  static const RE2 form(
      R"((https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::(\d{1,5}))?)(/[^\s#]*)?)");
  const bool read = RE2::FullMatch(target.url, form, &target.server, &digits, &path);
  const int port = digits.empty() ? 80 : std::stoi(digits);
  if (!read || port < 1 || port > 65535) {
    throw std::invalid_argument("http: rollout.reward_options.http_url '" + target.url +
                                "' is not of the form http[s]://host[:port][/path]");
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
  const bridge::HttpJson server(target.server, /*api_key=*/"", kMostBytes);
  const auto answer = server.post(target.path, body, Clock::now() + target.timeout);
  if (!answer) {
    trouble = answer.error().detail;
    return std::nullopt;
  }
  return read_reward(answer.value().text, trouble);
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

std::string http_reward_problem(const RewardOptions& options, const RewardInput& input) {
  std::string trouble;
  return ask(parse_target(options), request_body(input), trouble) ? "" : trouble;
}

}  // namespace ringside::rl
