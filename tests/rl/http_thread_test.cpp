// Guards agents that connect at once: connections beyond a short queue, which are reset or wait.
#include "rl/report/http_thread.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <vector>

namespace ringside::rl {
namespace {

// A client's socket that has begun to connect.
int connecting(int port) {
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  (void)connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address);
  return client;
}

TEST_CASE("many clients connect before the server has accepted one") {
  HttpThread server;
  const int port = server.bind("127.0.0.1", 0);
  REQUIRE(port > 0);
  std::vector<pollfd> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back({connecting(port), POLLOUT, 0});
  }
  int connected = 0;
  for (pollfd& client : clients) {
    connected += poll(&client, 1, 200) == 1 && (client.revents & POLLOUT) != 0 ? 1 : 0;
    close(client.fd);
  }
  CHECK(connected == 200);
}

TEST_CASE("a port that is taken is not bound a second time") {
  HttpThread first, second;
  const int port = first.bind("127.0.0.1", 0);
  REQUIRE(port > 0);
  CHECK(second.bind("127.0.0.1", port) == 0);
}

}  // namespace
}  // namespace ringside::rl
