// Deadlines, limits and tries, against servers that are slow, endless, gone or failing.
#include "rollout_bridge/servers/http_json.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "rollout_bridge/servers/llama_cpp.h"
#include "rollout_bridge/servers/vllm.h"
#include "tests/rollout_bridge/servers/contract.h"

namespace ringside::bridge::test {
namespace {

using std::chrono::milliseconds;

// Accepts one connection and sends a header line every 10 ms, for ever: every read succeeds in
// time.
class DrippingServer {
 public:
  DrippingServer() : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(listen(listener_, 1) == 0);
    REQUIRE(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { drip(); });
  }
  ~DrippingServer() {
    stopped_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  void drip() const {
    const int peer = accept(listener_, nullptr, nullptr);
    if (peer < 0) {
      return;
    }
    const std::string start = "HTTP/1.1 200 OK\r\n";
    const std::string line = "X-More: yes\r\n";
    bool alive = send(peer, start.data(), start.size(), MSG_NOSIGNAL) > 0;
    while (alive && !stopped_) {
      alive = send(peer, line.data(), line.size(), MSG_NOSIGNAL) > 0;
      std::this_thread::sleep_for(milliseconds(10));
    }
    close(peer);
  }

  int listener_;
  int port_ = 0;
  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

TEST_CASE("servers: a header without end is cut at the deadline") {
  const DrippingServer server;
  const HttpJson http(server.url(), "", 1000);
  const auto got = http.get("/", std::chrono::steady_clock::now() + milliseconds(200));
  REQUIRE_FALSE(got);
  CHECK(got.error().reason == Reason::kTimeout);
}

TEST_CASE("servers: a slow answer is a timeout, and not asked for again") {
  ExchangeServer server(exchanges("llama_cpp", "generate"), milliseconds(500));
  ServerOptions options = server.options();
  options.generate_deadline = milliseconds(100);
  const auto result = LlamaCppServer(options).generate(request_at(1.0, {}));
  REQUIRE_FALSE(result);
  INFO(result.error().detail);
  CHECK(result.error().reason == Reason::kTimeout);
  CHECK_THAT(result.error().detail, Catch::Contains(options.url + "/completion"));
  CHECK(server.calls() <= 1);
}

TEST_CASE("servers: an answer above the limit is refused") {
  ExchangeServer server({{"GET", "/", {}, 200, std::string(1001, ' ')},
                         {"GET", "/", {}, 200, std::string(1000, ' ')}});
  const HttpJson http(server.options().url, "", 1000);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  const auto above = http.get("/", deadline);
  REQUIRE_FALSE(above);
  CHECK(above.error().reason == Reason::kLimit);
  CHECK(http.get("/", deadline));
}

TEST_CASE("servers: deeply nested JSON does not exhaust the stack") {
  const std::string deep(1 << 20, '[');
  ExchangeServer server(
      {{"GET", "/", {}, 200, deep}, {"GET", "/", {}, 200, deep + std::string(1 << 20, ']')}});
  const HttpJson http(server.options().url, "", 16 << 20);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  CHECK_FALSE(http.get_json("/", deadline));
  CHECK(http.get_json("/", deadline));
}

TEST_CASE("servers: nobody there is an error, and no time left sends nothing") {
  const HttpJson http("http://127.0.0.1:1", "key", 1000);
  const auto now = std::chrono::steady_clock::now();
  const auto gone = http.get("/x", now + std::chrono::minutes(1));
  REQUIRE_FALSE(gone);
  CHECK(gone.error().reason == Reason::kClosed);
  CHECK_THAT(gone.error().detail,
             Catch::Contains("GET http://127.0.0.1:1/x: cannot connect; expected a server") &&
                 !Catch::Contains("key"));
  CHECK(http.get("/x", now).error().reason == Reason::kTimeout);
}

TEST_CASE("servers: statuses have their reasons") {
  const std::vector<std::pair<int, Reason>> cases = {
      {401, Reason::kDenied},       {403, Reason::kDenied},      {404, Reason::kUnsupported},
      {429, Reason::kBusy},         {503, Reason::kBusy},        {500, Reason::kClosed},
      {400, Reason::kInvalidField}, {302, Reason::kInvalidField}};
  for (const auto& [status, reason] : cases) {
    ExchangeServer server({{"GET", "/", {}, status, "why"}});
    const HttpJson http(server.options().url, "", 1000);
    const auto got = http.get("/", std::chrono::steady_clock::now() + std::chrono::minutes(1));
    REQUIRE_FALSE(got);
    CHECK(got.error().reason == reason);
    CHECK_THAT(got.error().detail, Catch::Contains("status " + std::to_string(status) + ": why"));
  }
}

TEST_CASE("servers: generate tries again after 500 and 503 under another id, with the same seed") {
  const auto good = exchanges("vllm", "generate");
  auto list =
      joined(exchanges("vllm", "connect_processed"),
             joined(joined(answering(good, 500, "down"), answering(good, 503, "busy")), good));
  list[list.size() - 2].body["request_id"] = "u-1-try1";
  list[list.size() - 1].body["request_id"] = "u-1-try2";
  ExchangeServer server(list);
  VllmServer client(server.options(), "M");
  REQUIRE(client.connect());
  CHECK(client.generate(request_at(0.7, {9})));
  CHECK(server.differences() == "");
}

TEST_CASE("servers: generate gives up after its tries") {
  const auto down = answering(exchanges("llama_cpp", "generate"), 500, "down");
  ExchangeServer server(joined(joined(down, down), down));
  const auto result = LlamaCppServer(server.options()).generate(request_at(1.0, {}));
  REQUIRE_FALSE(result);
  CHECK(result.error().reason == Reason::kClosed);
  CHECK_THAT(result.error().detail, Catch::Contains("status 500: down"));
  CHECK(server.differences() == "");
}

}  // namespace
}  // namespace ringside::bridge::test
