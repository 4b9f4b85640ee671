#include "rl/setup/model_device.h"

#include <stdexcept>

#include "engine/device/device_backend.h"

namespace ringside::rl {

std::string device_problem(const Config& config, int64_t local_rank) {
  return engine::choose_device(to_string(config.model.device), local_rank).error;
}

c10::Device model_device(const Config& config, int64_t local_rank) {
  const auto choice = engine::choose_device(to_string(config.model.device), local_rank);
  if (!choice.error.empty()) {
    throw std::invalid_argument("model.device: " + choice.error);
  }
  return choice.device;
}

}  // namespace ringside::rl
