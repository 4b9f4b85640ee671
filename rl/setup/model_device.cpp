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

std::string virtual_ranks_problem(c10::Device device, int64_t ranks_here) {
  if (ranks_here <= 1 || !device.is_cuda()) {
    return "";
  }
  return "a process would carry " + std::to_string(ranks_here) +
         " virtual ranks (sp.virtual_ranks) on one GPU, which NCCL refuses; expected as many "
         "processes as ranks, or model.device cpu";
}

}  // namespace ringside::rl
