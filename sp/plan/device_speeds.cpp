#include "sp/plan/device_speeds.h"

#include <algorithm>
#include <cctype>

namespace ringside::sp {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

constexpr int64_t kGb = 1'000'000'000;

}  // namespace

// Peaks (dense bf16; fp32; link per direction; memory) are those of NVIDIA's data sheets, SXM forms
// where there are several:
//   A100 312 TFLOP/s; 19.5; NVLink 3: 300 GB/s; 80 GB    H100 989; 67; NVLink 4: 450; 80
//   H200 989; 67; NVLink 4: 450; 141                      B200 2250; 80; NVLink 5: 900; 180
//   L40S 362; 91.6; PCIe 4.0 x16: 32; 48                  RTX 4090 165; 82.6; PCIe 4.0 x16: 32; 24
// H200: attention, GEMMs, fp32 and memory were measured on one by `ringside doctor --measure`
// (tools/bench/results/gpu-2026-11-28.json). Others: attention by FlashAttention 2, which LibTorch
// has, reaches about 0.6 of the peak on the A100 and 0.9 on the RTX 4090; by cuDNN, for long
// documents, 0.53 on the H100, which is an H200 with less memory (blocks that a ring passes on go
// through FlashAttention 2, at 0.33); for B200 and L40S 0.25 and 0.5
// are assumed. GEMMs: 0.7 to 0.9. NVLink: 0.78. PCIe: 0.75; the RTX 4090 has no peer
// access, so that bytes cross it twice. Between nodes: one 200 Gb/s adapter for each A100, 400 Gb/s
// for H100, H200 and B200, 100 Gb/s for each L40S and 100 Gb/s for a node of RTX 4090, at 0.9. CPU:
// fp32 on a core or two, ranks on one machine; 10 Gb/s between machines. `ringside doctor
// --measure` replaces all of this by figures of the machine at hand.
const std::vector<DeviceSpeeds>& known_devices() {
  static const std::vector<DeviceSpeeds> devices{
      {"CPU", 40e9, 60e9, 40e9, 2e9, 1.1e9, 2e-4, 1e10, 0, 0},
      {"A100", 190e12, 250e12, 15e12, 235e9, 22e9, 2e-5, 1.9e12, 80 * kGb, 8},
      {"H100", 520e12, 790e12, 10e12, 350e9, 45e9, 2e-5, 3.3e12, 80 * kGb, 8},
      {"H200", 520e12, 790e12, 10e12, 350e9, 45e9, 2e-5, 3.6e12, 141 * kGb, 8},
      {"B200", 560e12, 1500e12, 55e12, 700e9, 45e9, 2e-5, 7.7e12, 180 * kGb, 8},
      {"L40S", 180e12, 270e12, 60e12, 24e9, 11e9, 3e-5, 0.86e12, 48 * kGb, 8},
      {"RTX 4090", 150e12, 150e12, 60e12, 12e9, 1.4e9, 3e-5, 1e12, 24 * kGb, 8},
  };
  return devices;
}

const DeviceSpeeds* find_device(std::string_view name) {
  const std::string wanted = lower(name);
  const DeviceSpeeds* found = nullptr;
  for (const DeviceSpeeds& device : known_devices()) {
    if (wanted.find(lower(device.name)) != std::string::npos &&
        (found == nullptr || device.name.size() > found->name.size())) {
      found = &device;
    }
  }
  return found;
}

RankSpeed rank_speed(const DeviceSpeeds& speeds, int64_t element_bytes) {
  RankSpeed speed{speeds.attention_flops_per_s,  speeds.intra_node_bytes_per_s,
                  speeds.inter_node_bytes_per_s, speeds.transfer_seconds,
                  speeds.gemm_flops_per_s,       speeds.memory_bytes_per_s,
                  speeds.ranks_per_node};
  if (element_bytes > 2) {
    const double wide = speeds.wide_flops_per_s / (element_bytes > 4 ? 2 : 1);
    speed.flops_per_s = std::min(speed.flops_per_s, wide);
    speed.gemm_flops_per_s = std::min(speed.gemm_flops_per_s, wide);
  }
  return speed;
}

}  // namespace ringside::sp
