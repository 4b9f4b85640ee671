// What vLLM and SGLang expect of a trainer that joins their NCCL weight groups, as far as it is
// bytes and integers. Torch-free, pure, thread-safe. Written from vLLM 0.24
// (distributed/device_communicators/{pynccl,pynccl_wrapper}.py, distributed/utils.py,
// distributed/weight_transfer/packed_tensor.py) and checked against it
// (tests/rl/nccl/nccl_wire_test.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ringside::rl {

inline constexpr std::size_t kNcclIdBytes = 128;

// Where the ranks of a vLLM StatelessProcessGroup wait for the first object that rank 0 broadcasts.
inline constexpr const char* kVllmIdKey = "broadcast_from/0/0";

// Python's pickle (protocol 4) of vLLM's ncclUniqueId that holds `id`: a fixed text around the 128
// bytes. Only ever written: nothing here reads a pickle.
std::vector<uint8_t> pickled_nccl_id(std::span<const uint8_t, kNcclIdBytes> id);

// Tensors [first, last) that travel as one run of bytes.
struct Bucket {
  std::size_t first = 0;
  std::size_t last = 0;
  int64_t bytes = 0;
  bool operator==(const Bucket&) const = default;
};

// vLLM's default of packed_buffer_size_bytes; its receiver must be told the same number.
inline constexpr int64_t kVllmBucketBytes = int64_t{1} << 30;

// The cuts that vLLM's packed receiver makes, from sizes in bytes: a bucket ends with the tensor
// that takes it above `limit`. Throws std::invalid_argument for a limit or a size below 0.
std::vector<Bucket> vllm_buckets(std::span<const int64_t> tensor_bytes, int64_t limit);

}  // namespace ringside::rl
