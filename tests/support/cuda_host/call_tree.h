// Call stacks as numbers: equal stacks have equal numbers.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace ringside::cuda_host {

// A node is a call from an address of the code, under another node. Node 0 is the kernel's start.
// Thread safety: none.
class CallTree {
 public:
  // The node of a call from this address, made where it is new.
  uint32_t child(uint32_t parent, uintptr_t address) {
    const uint64_t key = (static_cast<uint64_t>(parent) << 40) ^ address;
    Recent& recent = recent_[(key ^ (key >> 40) * 31) % kRecent];
    if (recent.parent == parent && recent.address == address && recent.node != 0) {
      return recent.node;
    }
    const auto [at, is_new] =
        nodes_.try_emplace(Call{parent, address}, static_cast<uint32_t>(calls_.size()));
    if (is_new) {
      calls_.push_back({parent, address});
    }
    recent = {parent, at->second, address};
    return at->second;
  }

  // The node that it was called under.
  uint32_t parent(uint32_t node) const { return calls_[node].parent; }

  // The addresses of the calls, innermost first.
  std::vector<uintptr_t> addresses(uint32_t node) const {
    std::vector<uintptr_t> all;
    for (; node != 0; node = calls_[node].parent) {
      all.push_back(calls_[node].address);
    }
    return all;
  }

 private:
  static constexpr std::size_t kRecent = 4096;
  struct Call {
    uint32_t parent;
    uintptr_t address;
    bool operator==(const Call&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Call& call) const {
      return call.address * 0x9e3779b97f4a7c15u ^ call.parent * 0xc2b2ae3d27d4eb4fu;
    }
  };
  struct Recent {
    uint32_t parent = 0;
    uint32_t node = 0;
    uintptr_t address = 0;
  };

  std::vector<Call> calls_{{0, 0}};
  std::unordered_map<Call, uint32_t, Hash> nodes_;
  std::vector<Recent> recent_ = std::vector<Recent>(kRecent);
};

}  // namespace ringside::cuda_host
