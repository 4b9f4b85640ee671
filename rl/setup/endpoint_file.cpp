#include "rl/setup/endpoint_file.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace ringside::rl {

void write_endpoint_file(const std::filesystem::path& path, const EndpointAddresses& addresses) {
  const nlohmann::json content{{"rollout_address", addresses.rollout_address},
                               {"weights_address", addresses.weights_address},
                               {"run_id", addresses.run_id},
                               {"trainer_term", addresses.trainer_term},
                               {"ended", addresses.ended}};
  const std::filesystem::path temporary = path.string() + ".tmp";
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << content.dump(2) << '\n';
    file.flush();
    if (!file) {
      throw std::runtime_error("cannot write " + temporary.string());
    }
  }
  std::filesystem::rename(temporary, path);
}

std::optional<EndpointAddresses> read_endpoint_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) {
    return std::nullopt;
  }
  try {
    const auto content = nlohmann::json::parse(file);
    return EndpointAddresses{content.at("rollout_address"), content.at("weights_address"),
                             content.at("run_id"), content.at("trainer_term"),
                             content.value("ended", false)};
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(path.string() + ": " + error.what());
  }
}

}  // namespace ringside::rl
