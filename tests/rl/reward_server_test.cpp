// Guards the reward model's server: a completion that gets another one's reward, batches above
// their bound, requests that take the server down, a number that is none.
#include "rl/sampling/reward_server.h"

#include <httplib.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

namespace ringside::rl {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kBatchTokens = 12;

// Judges a completion of n characters, of which each is a token, with n.
class Judge {
 public:
  Judge()
      : server("127.0.0.1:0", "a model", kBatchTokens,
               {[](const ordered_json& prompt, const std::string& completion) {
                  if (prompt == "bad") {
                    throw std::invalid_argument("a bad prompt");
                  }
                  sp::Document document;
                  document.ids.assign(completion.size(), 3);
                  return document;
                },
                [this](const std::vector<sp::Document>& batch) { return judge(batch); }}) {}

  // Status and body.
  std::pair<int, ordered_json> ask(const std::string& body) {
    httplib::Client client(server.url());
    const auto response = client.Post("/", body, "application/json");
    REQUIRE(response);
    return {response->status, ordered_json::parse(response->body)};
  }
  std::pair<int, ordered_json> ask(const std::string& prompt, const std::string& completion) {
    return ask(ordered_json{{"prompt", prompt}, {"completion", completion}}.dump());
  }

  std::atomic<int64_t> largest_batch{0};  // tokens
  std::atomic<int64_t> batches{0};
  RewardServer server;

 private:
  std::vector<double> judge(const std::vector<sp::Document>& batch) {
    ++batches;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // others come to wait
    int64_t tokens = 0;
    std::vector<double> rewards;
    for (const sp::Document& document : batch) {
      const auto size = static_cast<double>(document.ids.size());
      tokens += static_cast<int64_t>(document.ids.size());
      if (size == 7) {
        throw std::runtime_error("seven");
      }
      rewards.push_back(size == 8 ? std::numeric_limits<double>::quiet_NaN() : size);
    }
    if (batch.size() > 1) {
      largest_batch = std::max<int64_t>(largest_batch, tokens);
    }
    return rewards;
  }
};

TEST_CASE("each of many completions gets its own reward, several at a time") {
  Judge judge;
  std::atomic<int> right{0};
  {
    std::vector<std::jthread> clients;
    for (int i = 0; i < 60; ++i) {
      clients.emplace_back([&, i] {
        const auto [status, body] = judge.ask("p", std::string(1 + i % 6, 'x'));
        right += status == 200 && body["reward"] == 1 + i % 6 ? 1 : 0;
      });
    }
  }
  CHECK(right == 60);
  CHECK(judge.batches < 60);
  CHECK(judge.largest_batch <= kBatchTokens);
  CHECK(judge.largest_batch > 6);
}

TEST_CASE("what cannot be judged is answered with what is wrong, and the next one is judged") {
  Judge judge;
  for (const auto* body : {"", "[]", R"({"prompt": "a"})", R"({"prompt": "a", "completion": 3})"}) {
    const auto [status, answer] = judge.ask(body);
    CHECK(status == 400);
    CHECK_THAT(answer["error"], Catch::Contains("a text \"completion\""));
  }
  CHECK(judge.ask("bad", "x") == std::pair<int, ordered_json>{400, {{"error", "a bad prompt"}}});
  CHECK(judge.ask("p", "1234567") == std::pair<int, ordered_json>{500, {{"error", "seven"}}});
  const auto [status, answer] = judge.ask("p", "12345678");
  CHECK(status == 500);
  CHECK_THAT(answer["error"], Catch::Contains("the reward model gives nan"));
  CHECK(judge.ask("p", "123") == std::pair<int, ordered_json>{200, {{"reward", 3.0}}});
  CHECK(judge.ask("p", std::string(40, 'x')).second["reward"] == 40);  // longer than a batch
}

TEST_CASE("the reward server says which model it has, and refuses an address that is taken") {
  Judge judge;
  httplib::Client client(judge.server.url());
  const auto response = client.Get("/");
  REQUIRE(response);
  CHECK(response->body == R"({"model":"a model"})");
  const std::string address = judge.server.url().substr(7);
  CHECK_THROWS_WITH(RewardServer(address, "", 1, {}), Catch::Contains("cannot be bound"));
  CHECK_THROWS_WITH(RewardServer("nonsense", "", 1, {}), Catch::Contains("expected HOST:PORT"));
}

}  // namespace
}  // namespace ringside::rl
