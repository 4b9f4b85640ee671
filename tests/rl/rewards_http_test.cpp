// A reward server that is slow, broken or gone must cost a sample, not a run, and never a wrong
// reward.
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "rl/rewards/http_reward.h"
#include "rl/rewards/reward_set.h"

namespace ringside::rl {
namespace {

using nlohmann::json;

class Server {
 public:
  Server() {
    const auto reply = [this](const char* path, const std::string& text, int status = 200) {
      server_.Post(path,
                   [this, text, status](const httplib::Request&, httplib::Response& response) {
                     ++calls;
                     response.status = status;
                     response.set_content(text, "application/json");
                   });
    };
    server_.Post("/good", [this](const httplib::Request& request, httplib::Response& response) {
      ++calls;
      const json body = json::parse(request.body);
      const bool right =
          body.at("completion") == body.at("answer") && body.at("prompt") == "p\xEF\xBF\xBD";
      response.set_content(json{{"reward", right ? 0.5 : -0.5}}.dump(), "application/json");
    });
    server_.Post("/third", [this](const httplib::Request&, httplib::Response& response) {
      response.status = ++calls < 3 ? 503 : 200;
      response.set_content(R"({"reward": 1})", "application/json");
    });
    server_.Post("/slow", [this](const httplib::Request&, httplib::Response& response) {
      ++calls;
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      response.set_content(R"({"reward": 1})", "application/json");
    });
    // Every byte comes in time; all of them together do not.
    server_.Post("/drip", [this](const httplib::Request&, httplib::Response& response) {
      ++calls;
      response.set_chunked_content_provider(
          "application/json", [](std::size_t, httplib::DataSink& sink) {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            return sink.write(" ", 1);
          });
    });
    reply("/list", R"({"rewards": [2.5]})");
    reply("/lists", R"({"rewards": [2.5, 1]})");
    reply("/500", "down", 500);
    reply("/bad", "{\"reward\": ");
    reply("/nan", "{\"reward\": NaN}");
    reply("/huge", "{\"reward\": 1e999}");
    reply("/text", "{\"reward\": \"1\"}");
    reply("/deep", std::string(100000, '['));
    reply("/long", "{\"reward\": 1, \"x\": \"" + std::string(2 << 20, 'x') + "\"}");
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ~Server() {
    server_.stop();
    thread_.join();
  }
  RewardOptions options(const std::string& path, double timeout_s = 5.0) const {
    RewardOptions options;
    options.http_url = "http://127.0.0.1:" + std::to_string(port_) + path;
    options.http_timeout_s = timeout_s;
    return options;
  }

  std::atomic<int> calls{0};

 private:
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

// A reward that does not wait between its attempts.
Reward hasty(const RewardOptions& options) {
  return http_reward(options, [](std::chrono::milliseconds) {});
}

TEST_CASE("http takes the server's reward") {
  Server server;
  CHECK(make_reward("http", server.options("/good"))({"p\xff", "a\"b", "a\"b"}) == 0.5);
  CHECK(make_reward("http", server.options("/good"))({"p\xff", "x", "a"}) == -0.5);
  CHECK(make_reward("http", server.options("/list"))({"", "x", "a"}) == 2.5);
  CHECK(server.calls == 3);
}

TEST_CASE("http tries three times, with growing pauses") {
  Server server;
  std::vector<std::chrono::milliseconds> pauses;
  const auto note = [&](std::chrono::milliseconds pause) { pauses.push_back(pause); };
  CHECK(http_reward(server.options("/third"), note)({"", "x", "a"}) == 1.0);
  CHECK(server.calls == 3);
  using namespace std::chrono_literals;
  CHECK(pauses == std::vector<std::chrono::milliseconds>{250ms, 1000ms});
}

TEST_CASE("http gives no reward rather than a wrong one") {
  Server server;
  for (const char* path :
       {"/500", "/bad", "/nan", "/huge", "/text", "/deep", "/long", "/lists", "/not-there"}) {
    INFO(path);
    const auto reward = hasty(server.options(path));
    CHECK_THROWS_AS(reward({"", "x", "a"}), RewardUnavailable);
  }
  CHECK_THROWS_WITH(hasty(server.options("/500"))({"", "x", "a"}),
                    Catch::Contains("/500") && Catch::Contains("status 500"));
}

TEST_CASE("http waits no longer than its timeout, however the server dawdles") {
  Server server;
  CHECK_THROWS_AS(hasty(server.options("/slow", 0.1))({"", "x", "a"}), RewardUnavailable);
  CHECK_THROWS_AS(hasty(server.options("/drip", 0.3))({"", "x", "a"}), RewardUnavailable);
  CHECK(server.calls >= 3);
}

// Accepts connections and reads 5 MB/s of what they send, and never answers.
class SlowReader {
 public:
  SlowReader() {
    struct sockaddr_in address {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* where = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(listener_, where, length) == 0);
    REQUIRE(::listen(listener_, 8) == 0);
    REQUIRE(::getsockname(listener_, where, &length) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      std::vector<char> block(std::size_t{512} << 10);
      for (int client = accept(); client >= 0; client = accept()) {
        while (::recv(client, block.data(), block.size(), 0) > 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        ::close(client);
      }
    });
  }
  ~SlowReader() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  int port() const { return port_; }

 private:
  int accept() const { return ::accept(listener_, nullptr, nullptr); }

  int listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
  int port_ = 0;
  std::thread thread_;
};

TEST_CASE("http's timeout covers connecting, sending and reading together") {
  const SlowReader server;
  RewardOptions options;
  options.http_url = "http://127.0.0.1:" + std::to_string(server.port());
  options.http_timeout_s = 0.5;
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(hasty(options)({"", std::string(std::size_t{24} << 20, 'x'), "a"}),
                  RewardUnavailable);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(6));
}

TEST_CASE("a set without an answer from its server has no rewards, and says why") {
  Server server;
  const RewardSet set("exact_match, http * 2", server.options("/500"));
  const RewardScores scores = set.score({"", "a", "a"});
  CHECK(scores.raw.empty());
  CHECK(scores.failure.find("status 500") != std::string::npos);
  const RewardScores good =
      RewardSet("exact_match, http * 2", server.options("/list")).score({"", "a", "a"});
  CHECK(good.raw == NamedRewards{{"exact_match", 1.0}, {"http", 2.5}});
  CHECK(good.total == 6.0);
}

TEST_CASE("http refuses an address it cannot use") {
  RewardOptions options;
  for (const char* url : {"", "localhost:80", "ftp://host/x", "https://", "http://",
                          "http://host:99999/", "http://host:0/", "http://a b/"}) {
    INFO(url);
    options.http_url = url;
    CHECK_THROWS_WITH(make_reward("http", options), Catch::Contains("http_url"));
  }
  options.http_url = "http://localhost";
  options.http_timeout_s = 0;
  CHECK_THROWS_AS(make_reward("http", options), std::invalid_argument);
}

}  // namespace
}  // namespace ringside::rl
