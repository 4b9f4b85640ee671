#include "engine/device/device_backend.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <stdexcept>
#include <utility>

namespace ringside::engine {
namespace {

class CpuBackend final : public DeviceBackend {
 public:
  c10::DeviceType type() const override { return c10::kCPU; }
  std::string name() const override { return "cpu"; }
  int64_t device_count() const override { return 1; }
  std::string reason_none() const override { return ""; }
  std::string device_name(int64_t /*index*/) const override { return "CPU"; }
  std::vector<std::string> describe() const override {
    return {"groups: shared memory on one machine, Gloo",
            "vector instructions: " + at::get_cpu_capability()};
  }
  sp::ProcessGroups::Connect tensor_groups(const sp::Mesh& mesh,
                                           const sp::GroupRendezvous& rendezvous,
                                           c10::Device /*device*/) const override {
    return sp::host_groups(mesh, rendezvous);
  }
  std::shared_ptr<const sp::RingStepKernels> attention_kernels(
      const ProductPlan& products) const override {
    return sp::cpu_kernels(products.bf16_attention);
  }
};

using Registered = std::vector<std::unique_ptr<const DeviceBackend>>;

// Filled before main() by the registrations of the linked objects; read afterwards.
Registered& registered() {
  static Registered backends = [] {
    Registered first;
    first.push_back(std::make_unique<CpuBackend>());
    return first;
  }();
  return backends;
}

std::string names_of_backends() {
  std::string names;
  for (const DeviceBackend* backend : device_backends()) {
    names += (names.empty() ? "" : ", ") + backend->name();
  }
  return names;
}

DeviceChoice choose_from(const DeviceBackend& backend, int64_t local_rank) {
  if (backend.type() == c10::kCPU) {
    return {};
  }
  const int64_t count = backend.device_count();
  if (count == 0) {
    return {.error = backend.name() + ": no device: " + backend.reason_none()};
  }
  if (local_rank >= count) {
    return {.error = backend.name() + ": this machine has " + std::to_string(count) +
                     " devices and a rank with local number " + std::to_string(local_rank) +
                     "; each rank needs its own device"};
  }
  return {.device = c10::Device(backend.type(), static_cast<c10::DeviceIndex>(local_rank))};
}

}  // namespace

std::vector<const DeviceBackend*> device_backends() {
  std::vector<const DeviceBackend*> backends;
  for (const auto& backend : registered()) {
    backends.push_back(backend.get());
  }
  return backends;
}

const DeviceBackend& device_backend(c10::DeviceType type) {
  for (const DeviceBackend* backend : device_backends()) {
    if (backend->type() == type) {
      return *backend;
    }
  }
  throw std::invalid_argument("no backend for devices of type " + c10::DeviceTypeName(type, true) +
                              "; this program has " + names_of_backends());
}

DeviceBackendRegistration::DeviceBackendRegistration(std::unique_ptr<const DeviceBackend> backend) {
  registered().push_back(std::move(backend));
}

DeviceChoice choose_device(std::string_view wanted, int64_t local_rank) {
  for (const DeviceBackend* backend : device_backends()) {
    const bool named = wanted == backend->name();
    const bool found =
        wanted == "auto" && backend->type() != c10::kCPU && backend->device_count() > 0;
    if (named || found) {
      return choose_from(*backend, local_rank);
    }
  }
  if (wanted == "auto") {
    return {};
  }
  return {.error = std::string(wanted) + ": this program was linked without it; it has " +
                   names_of_backends()};
}

sp::ProcessGroups connect_groups(const sp::Mesh& mesh, const sp::GroupRendezvous& rendezvous,
                                 c10::Device device, const std::vector<sp::Axes>& more) {
  sp::await_ranks(rendezvous, "world", mesh.rank(), mesh.size(sp::axes::kWorld));
  const auto control = sp::host_groups(mesh, rendezvous);
  if (device.is_cpu()) {
    return sp::ProcessGroups(mesh, control, nullptr, device, more);
  }
  return sp::ProcessGroups(mesh,
                           device_backend(device.type()).tensor_groups(mesh, rendezvous, device),
                           control, device, more);
}

}  // namespace ringside::engine
