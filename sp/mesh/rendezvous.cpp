#include "sp/mesh/rendezvous.h"

#include <stdexcept>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace ringside::sp {
namespace {

std::string arrival_key(const std::string& name, int64_t rank) {
  return "arrived/" + name + "/" + std::to_string(rank);
}

std::string missing_ranks(c10d::Store& store, const std::string& name, int64_t size) {
  std::string missing;
  for (int64_t rank = 0; rank < size; ++rank) {
    if (!store.check({arrival_key(name, rank)})) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  return missing;
}

}  // namespace

void await_ranks(const GroupRendezvous& rendezvous, const std::string& name, int64_t rank,
                 int64_t size) {
  c10d::Store& store = *rendezvous.store;
  store.set(arrival_key(name, rank), std::vector<uint8_t>{1});
  std::vector<std::string> all;
  for (int64_t peer = 0; peer < size; ++peer) {
    all.push_back(arrival_key(name, peer));
  }
  try {
    store.wait(all, rendezvous.timeout);
  } catch (const std::exception& error) {
    const std::string missing = missing_ranks(store, name, size);
    if (missing.empty()) {
      throw;
    }
    throw std::runtime_error("group " + name + ": rank " + std::to_string(rank) + " waited " +
                             std::to_string(rendezvous.timeout.count()) + " ms for rank(s) " +
                             missing + " of " + std::to_string(size));
  }
}

}  // namespace ringside::sp
