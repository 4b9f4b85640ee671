// Bytes and integers of the protocol by which a trainer joins NCCL weight groups of vLLM and
// SGLang. Torch-free; pure functions.
// Source: vLLM 0.24, distributed/device_communicators/{pynccl,pynccl_wrapper}.py,
// distributed/utils.py, distributed/weight_transfer/packed_tensor.py.
// tests/rl/nccl/nccl_wire_test.py checks against it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ringside::rl {

inline constexpr std::size_t kNcclIdBytes = 128;

// Store key at which the ranks of a vLLM StatelessProcessGroup wait for the first object that rank
// 0 broadcasts.
inline constexpr const char* kVllmIdKey = "broadcast_from/0/0";

// Python pickle (protocol 4) of vLLM's ncclUniqueId with the bytes `id`: constant bytes around the
// 128 bytes. Pickles are only written here, never read.
std::vector<uint8_t> pickled_nccl_id(std::span<const uint8_t, kNcclIdBytes> id);

// Tensors [first, last) that are sent as one contiguous buffer.
struct Bucket {
  std::size_t first = 0;
  std::size_t last = 0;
  int64_t bytes = 0;
  bool operator==(const Bucket&) const = default;
};

// vLLM's default of packed_buffer_size_bytes. Sender and receiver must use the same number.
inline constexpr int64_t kVllmBucketBytes = int64_t{1} << 30;

// Buckets as vLLM's packed receiver forms them from sizes in bytes: a bucket ends with the tensor
// that makes it exceed `limit`.
// Throws: std::invalid_argument for a limit or a size below 0.
std::vector<Bucket> vllm_buckets(std::span<const int64_t> tensor_bytes, int64_t limit);

}  // namespace ringside::rl
