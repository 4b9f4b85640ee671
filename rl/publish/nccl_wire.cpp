#include "rl/publish/nccl_wire.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

namespace ringside::rl {
namespace {

using std::string_view_literals::operator""sv;

// Frame of 236 bytes: _ctypes._unpickle(ncclUniqueId, ({}, <128 bytes>)).
constexpr auto kBefore =
    "\x80\x04\x95\xec\x00\x00\x00\x00\x00\x00\x00"
    "\x8c\x07_ctypes\x94\x8c\x09_unpickle\x94\x93\x94"
    "\x8c\x34vllm.distributed.device_communicators.pynccl_"
    "wrapper\x94\x8c\x0cncclUniqueId\x94\x93\x94"
    "}\x94"
    "C\x80"sv;
constexpr auto kAfter = "\x94\x86\x94\x86\x94R\x94."sv;

}  // namespace

std::vector<uint8_t> pickled_nccl_id(std::span<const uint8_t, kNcclIdBytes> id) {
  std::vector<uint8_t> bytes(kBefore.size() + id.size() + kAfter.size());
  auto at = std::copy(kBefore.begin(), kBefore.end(), bytes.begin());
  at = std::copy(id.begin(), id.end(), at);
  std::copy(kAfter.begin(), kAfter.end(), at);
  return bytes;
}

std::vector<Bucket> vllm_buckets(std::span<const int64_t> tensor_bytes, int64_t limit) {
  if (limit < 0) {
    throw std::invalid_argument("buckets of at most " + std::to_string(limit) +
                                " bytes, expected 0 or more");
  }
  std::vector<Bucket> buckets;
  Bucket open;
  for (std::size_t i = 0; i < tensor_bytes.size(); ++i) {
    if (tensor_bytes[i] < 0) {
      throw std::invalid_argument("tensor " + std::to_string(i) + " has " +
                                  std::to_string(tensor_bytes[i]) + " bytes");
    }
    open.last = i + 1;
    open.bytes += tensor_bytes[i];
    if (open.bytes > limit) {
      buckets.push_back(open);
      open = {i + 1, i + 1, 0};
    }
  }
  if (open.last > open.first) {
    buckets.push_back(open);
  }
  return buckets;
}

}  // namespace ringside::rl
