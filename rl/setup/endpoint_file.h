// Endpoint file: the addresses of a run's bridge on disk, read by the run's workers. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace ringside::rl {

struct EndpointAddresses {
  std::string rollout_address;
  std::string weights_address;
  std::string run_id;
  int64_t trainer_term = 0;
  bool ended = false;  // the run is over; the addresses are closed
};

// Replaces the file atomically.
// Throws: std::runtime_error when it cannot be written.
void write_endpoint_file(const std::filesystem::path& path, const EndpointAddresses& addresses);

// The addresses; nullopt when the file does not exist.
// Throws: std::runtime_error when it does not parse.
std::optional<EndpointAddresses> read_endpoint_file(const std::filesystem::path& path);

}  // namespace ringside::rl
