#include "rl/setup/device_speeds.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/device/device_backend.h"
#include "engine/json/json_object.h"

namespace ringside::rl {
namespace {

constexpr const char* kStandIn = "A100";  // for a device that the table does not have

std::string known_names() {
  std::string names;
  for (const sp::DeviceSpeeds& device : sp::known_devices()) {
    names += (names.empty() ? "" : ", ") + device.name;
  }
  return names;
}

FoundSpeeds speeds_of(const engine::DeviceBackend& backend) {
  FoundSpeeds found;
  const std::string name = backend.device_name(0);
  const sp::DeviceSpeeds* known = sp::find_device(name);
  found.speeds = known != nullptr ? *known : *sp::find_device(kStandIn);
  if (known == nullptr) {
    found.notice = "the speeds of " + name + " are not known: predictions take those of " +
                   kStandIn +
                   "; `ringside doctor --measure` finds this device's, for sp.device_speeds";
  }
  if (backend.type() != c10::kCPU) {
    found.speeds.ranks_per_node = backend.device_count();
  }
  return found;
}

double positive(const engine::JsonObject& json, const char* key) {
  const double value = json.require(json.number(key), key);
  if (!(value > 0)) {
    json.fail(key, "is " + nlohmann::json(value).dump() + ", expected more than 0");
  }
  return value;
}

}  // namespace

FoundSpeeds device_speeds(const Config& config) {
  const std::string& named = config.sp.device_speeds;
  if (named.empty()) {
    const auto choice = engine::choose_device(to_string(config.model.device), 0);
    return speeds_of(engine::device_backend(choice.device.type()));
  }
  if (std::filesystem::exists(named)) {
    return {read_device_speeds(named), ""};
  }
  // A name in a recipe was taken for a path beside it.
  const std::string name = std::filesystem::path(named).filename().string();
  for (const sp::DeviceSpeeds& device : sp::known_devices()) {
    if (device.name == name) {
      return {device, ""};
    }
  }
  throw std::invalid_argument("is " + named + ", neither a file nor a known device; expected " +
                              "what `ringside doctor --measure` wrote, or one of " + known_names());
}

sp::DeviceSpeeds read_device_speeds(const std::filesystem::path& file) {
  const engine::JsonObject json = engine::JsonObject::read(file);
  sp::DeviceSpeeds speeds;
  speeds.name = json.require(json.text("device"), "device");
  speeds.attention_flops_per_s = positive(json, "attention_flops_per_s");
  speeds.gemm_flops_per_s = positive(json, "gemm_flops_per_s");
  speeds.wide_flops_per_s = positive(json, "wide_flops_per_s");
  speeds.intra_node_bytes_per_s = positive(json, "intra_node_bytes_per_s");
  speeds.inter_node_bytes_per_s = positive(json, "inter_node_bytes_per_s");
  speeds.transfer_seconds = positive(json, "transfer_seconds");
  speeds.memory_bytes_per_s = positive(json, "memory_bytes_per_s");
  speeds.memory_bytes = json.require_at_least(0, "memory_bytes");
  speeds.ranks_per_node = json.require_at_least(0, "ranks_per_node");
  return speeds;
}

void write_device_speeds(const sp::DeviceSpeeds& speeds, const std::filesystem::path& file) {
  const nlohmann::ordered_json json = {{"device", speeds.name},
                                       {"attention_flops_per_s", speeds.attention_flops_per_s},
                                       {"gemm_flops_per_s", speeds.gemm_flops_per_s},
                                       {"wide_flops_per_s", speeds.wide_flops_per_s},
                                       {"intra_node_bytes_per_s", speeds.intra_node_bytes_per_s},
                                       {"inter_node_bytes_per_s", speeds.inter_node_bytes_per_s},
                                       {"transfer_seconds", speeds.transfer_seconds},
                                       {"memory_bytes_per_s", speeds.memory_bytes_per_s},
                                       {"memory_bytes", speeds.memory_bytes},
                                       {"ranks_per_node", speeds.ranks_per_node}};
  std::ofstream out(file, std::ios::trunc);
  out << json.dump(2) << "\n";
  if (!out.flush()) {
    throw std::runtime_error(file.string() + ": cannot be written");
  }
}

}  // namespace ringside::rl
