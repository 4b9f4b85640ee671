// Speeds of known devices: what predictions of time start from. Torch-free.
//
// Source: makers' data sheets, times the share that is reached in practice (device_speeds.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sp/plan/method_choice.h"

namespace ringside::sp {

// What a device reaches in practice, not its peak. Bandwidths are per device and direction.
struct DeviceSpeeds {
  std::string name;
  double attention_flops_per_s = 0.0;  // of 16-bit dtypes; on a CPU of fp32
  double gemm_flops_per_s = 0.0;       // the same
  double wide_flops_per_s = 0.0;       // of fp32, attention and GEMM; fp64 is half as fast
  double intra_node_bytes_per_s = 0.0;
  double inter_node_bytes_per_s = 0.0;
  double transfer_seconds = 0.0;    // of a transfer without bytes, its launch included
  double memory_bytes_per_s = 0.0;  // read
  int64_t memory_bytes = 0;         // 0 = unknown
  int64_t ranks_per_node = 0;       // 0 = all ranks of a run
};

// The devices whose speeds are known, "CPU" among them.
const std::vector<DeviceSpeeds>& known_devices();

// The entry that `name` contains or is, in any letter case; nullptr if there is none. The longest
// name wins.
const DeviceSpeeds* find_device(std::string_view name);

// What the ranking of methods needs for elements of this size in bytes: 2, 4 or 8.
RankSpeed rank_speed(const DeviceSpeeds& speeds, int64_t element_bytes);

}  // namespace ringside::sp
