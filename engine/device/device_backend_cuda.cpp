// The CUDA backend. Only in programs that are linked for CUDA, which it registers itself in.
#include <ATen/ATen.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "engine/device/device_backend.h"
#include "sp/attention/cuda/kernels.h"
#include "sp/mesh/nccl_groups.h"

namespace ringside::engine {
namespace {

struct DeviceCount {
  int count = 0;
  cudaError_t error = cudaSuccess;
};

DeviceCount count_devices() {
  DeviceCount found;
  found.error = cudaGetDeviceCount(&found.count);
  if (found.error != cudaSuccess) {
    found.count = 0;
    (void)cudaGetLastError();  // or the next check of another call would report it
  }
  return found;
}

// "13.0" of 13000, as CUDA counts.
std::string cuda_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// "2.28.9" of 22809, as NCCL counts.
std::string nccl_version(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string runtime_versions() {
  int cuda = 0;
  int nccl = 0;
  if (cudaRuntimeGetVersion(&cuda) != cudaSuccess || ncclGetVersion(&nccl) != ncclSuccess) {
    return "unknown";
  }
  return "CUDA " + cuda_version(cuda) + ", NCCL " + nccl_version(nccl);
}

// As CUDA counts; 0 when this machine has no driver.
int driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

std::string device_line(int index) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) {
    return "device " + std::to_string(index) + ": does not answer";
  }
  return "device " + std::to_string(index) + ": " + properties.name + ", " +
         std::to_string(properties.totalGlobalMem >> 20) + " MiB, compute capability " +
         std::to_string(properties.major) + "." + std::to_string(properties.minor);
}

class CudaBackend final : public DeviceBackend {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  std::string name() const override { return "cuda"; }
  int64_t device_count() const override { return count_devices().count; }
  std::string reason_none() const override {
    if (driver_version() == 0) {
      return "this machine has no NVIDIA driver";
    }
    const DeviceCount found = count_devices();
    if (found.error != cudaSuccess) {
      return cudaGetErrorString(found.error);
    }
    return found.count > 0 ? "" : "the driver reports no CUDA device";
  }
  std::string device_name(int64_t index) const override {
    cudaDeviceProp properties{};
    return cudaGetDeviceProperties(&properties, static_cast<int>(index)) == cudaSuccess
               ? properties.name
               : "unknown";
  }
  std::vector<std::string> describe() const override {
    const int driver = driver_version();
    std::vector<std::string> lines{
        "built with: CUDA " + cuda_version(CUDART_VERSION) + ", NCCL " +
            nccl_version(NCCL_VERSION_CODE) + ", kernels for " RINGSIDE_CUDA_ARCHITECTURES,
        "running with: " + runtime_versions(),
        "driver: " + (driver == 0 ? "none" : "for CUDA " + cuda_version(driver)), "groups: NCCL"};
    for (int index = 0; index < static_cast<int>(device_count()); ++index) {
      lines.push_back(device_line(index));
    }
    return lines;
  }

  sp::ProcessGroups::Connect tensor_groups(const sp::Mesh& mesh,
                                           const sp::GroupRendezvous& rendezvous,
                                           c10::Device device) const override {
    return sp::nccl_groups(mesh, rendezvous, device);
  }
  std::shared_ptr<const sp::RingStepKernels> attention_kernels(
      const ProductPlan& /*products*/) const override {
    return sp::cuda_kernels();
  }
};

const DeviceBackendRegistration registration{std::make_unique<CudaBackend>()};

}  // namespace
}  // namespace ringside::engine
