#include "rl/publish/nccl_store.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

namespace ringside::rl {
namespace {

constexpr int kBacklog = 128;

sockaddr_in address_of(const std::string& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    throw std::invalid_argument("'" + host +
                                "' is no numeric IPv4 address to bind a weight group's store to");
  }
  return address;
}

}  // namespace

GroupStore::GroupStore(const std::string& host, uint16_t port) : host_(host) {
  sockaddr_in address = address_of(host, port);
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int reuse = 1;
  socklen_t length = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (listener_ < 0 ||
      ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse) != 0 ||
      ::bind(listener_, plain, length) != 0 || ::listen(listener_, kBacklog) != 0 ||
      ::getsockname(listener_, plain, &length) != 0) {
    const int error = errno;
    if (listener_ >= 0) ::close(listener_);
    throw std::system_error(error, std::generic_category(),
                            "weight group's store at " + host + ":" + std::to_string(port));
  }
  port_ = ntohs(address.sin_port);
}

GroupStore::~GroupStore() {
  if (listener_ >= 0) ::close(listener_);
}

c10::intrusive_ptr<c10d::Store> GroupStore::open(int64_t world_size,
                                                 std::chrono::milliseconds timeout) {
  if (listener_ < 0) {
    throw std::logic_error("the weight group's store is open already");
  }
  c10d::TCPStoreOptions options;
  options.port = port_;
  options.isServer = true;
  options.numWorkers = static_cast<std::size_t>(world_size);
  options.timeout = timeout;
  options.masterListenFd = std::exchange(listener_, -1);  // the store closes it
  options.useLibUV = false;  // libuv does not accept an existing listener
  return c10::make_intrusive<c10d::TCPStore>(host_, options);
}

void announce_vllm_id(c10d::Store& store, std::span<const uint8_t, kNcclIdBytes> id) {
  store.set(kVllmIdKey, pickled_nccl_id(id));
}

c10::intrusive_ptr<c10d::Store> custom_group_store(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const std::string& group_name,
                                                   const std::string& device) {
  auto of_function = c10::make_intrusive<c10d::PrefixStore>(group_name, store);
  auto of_group = c10::make_intrusive<c10d::PrefixStore>(group_name + "/", std::move(of_function));
  return c10::make_intrusive<c10d::PrefixStore>(device + "/", std::move(of_group));
}

}  // namespace ringside::rl
