// The device that model.device gives a rank.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "rl/config/config.h"

namespace ringside::rl {

// Why the rank with this number on its machine cannot have the device of config.model.device; "" if
// it can.
std::string device_problem(const Config& config, int64_t local_rank);

// The device of the rank with this number on its machine.
// Throws: std::invalid_argument with the key and device_problem().
c10::Device model_device(const Config& config, int64_t local_rank);

// Why a process cannot carry `ranks_here` virtual ranks (sp.virtual_ranks) on the device; "" where
// it can: NCCL takes a device once for each group.
std::string virtual_ranks_problem(c10::Device device, int64_t ranks_here);

}  // namespace ringside::rl
