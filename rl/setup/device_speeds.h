// Speeds of the device that a run computes on: by its name, or as `ringside doctor --measure` found
// them.
#pragma once

#include <filesystem>
#include <string>

#include "rl/config/config.h"
#include "sp/plan/device_speeds.h"

namespace ringside::rl {

struct FoundSpeeds {
  sp::DeviceSpeeds speeds;
  std::string notice;  // a sentence when another device's speeds stand in for unknown ones
};

// sp.device_speeds: a file of write_device_speeds(), or the name of a known device. Empty: the
// device of model.device on this machine, by its name. Every rank must come to the same answer, so
// the machines of a run need the same file or the same devices.
// Throws: std::invalid_argument when it is neither; std::runtime_error on a bad file.
FoundSpeeds device_speeds(const Config& config);

// The speeds of a file that write_device_speeds() wrote: FLOP/s, bytes/s, seconds, bytes.
// Throws: std::runtime_error naming file and key.
sp::DeviceSpeeds read_device_speeds(const std::filesystem::path& file);

// Writes the speeds as JSON. Replaces the file; not atomic.
// Throws: std::runtime_error when the file cannot be written.
void write_device_speeds(const sp::DeviceSpeeds& speeds, const std::filesystem::path& file);

}  // namespace ringside::rl
