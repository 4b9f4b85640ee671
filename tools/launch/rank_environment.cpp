#include "tools/launch/rank_environment.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace ringside::tools {
namespace {

constexpr int kMaxPort = 65535;
constexpr int kMaxRanks = 1 << 20;

// The variable as an integer in [low, high]; nullopt when it is unset or empty.
std::optional<int> integer(const char* name, int low, int high) {
  const char* raw = std::getenv(name);
  if (raw == nullptr || *raw == '\0') {
    return std::nullopt;
  }
  const std::string_view text(raw);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    throw std::invalid_argument("environment: " + std::string(name) + " is \"" + raw +
                                "\", expected an integer from " + std::to_string(low) + " to " +
                                std::to_string(high));
  }
  return value;
}

int required(const char* name, int low, int high, const char* because) {
  const auto value = integer(name, low, high);
  if (!value) {
    throw std::invalid_argument("environment: " + std::string(name) + " is not set, but " +
                                because + " is");
  }
  return *value;
}

std::string text_or(const char* name, const std::string& otherwise) {
  const char* raw = std::getenv(name);
  return raw == nullptr || *raw == '\0' ? otherwise : raw;
}

RankEnvironment from_torchrun(int rank) {
  RankEnvironment env;
  env.rank = rank;
  env.world_size = required("WORLD_SIZE", 1, kMaxRanks, "RANK");
  env.local_rank = integer("LOCAL_RANK", 0, kMaxRanks).value_or(rank);
  env.master_addr = text_or("MASTER_ADDR", "");
  if (env.master_addr.empty()) {
    throw std::invalid_argument("environment: MASTER_ADDR is not set, but RANK is");
  }
  env.master_port = required("MASTER_PORT", 1, kMaxPort, "RANK");
  return env;
}

RankEnvironment from_slurm(int rank) {
  RankEnvironment env;
  env.rank = rank;
  env.world_size = required("SLURM_NTASKS", 1, kMaxRanks, "SLURM_PROCID");
  env.local_rank = integer("SLURM_LOCALID", 0, kMaxRanks).value_or(rank);
  const int nodes = integer("SLURM_STEP_NUM_NODES", 1, kMaxRanks)
                        .value_or(integer("SLURM_NNODES", 1, kMaxRanks).value_or(1));
  env.master_addr = text_or("MASTER_ADDR", nodes == 1 ? "127.0.0.1" : "");
  if (env.master_addr.empty()) {
    throw std::invalid_argument("environment: MASTER_ADDR is not set, but the Slurm step spans " +
                                std::to_string(nodes) +
                                " nodes; expected the name of the node of task 0");
  }
  // Every rank of a step derives the same port, and two jobs that share a node rarely collide.
  const int job = integer("SLURM_JOB_ID", 0, 2147483647).value_or(0);
  const int step = integer("SLURM_STEP_ID", 0, 2147483647).value_or(0);
  const int derived = 20000 + static_cast<int>((static_cast<long long>(job) * 31 + step) % 10000);
  env.master_port = integer("MASTER_PORT", 1, kMaxPort).value_or(derived);
  return env;
}

}  // namespace

std::optional<RankEnvironment> rank_environment() {
  RankEnvironment env;
  if (const auto rank = integer("RANK", 0, kMaxRanks)) {
    env = from_torchrun(*rank);
  } else if (integer("WORLD_SIZE", 1, kMaxRanks)) {
    throw std::invalid_argument("environment: RANK is not set, but WORLD_SIZE is");
  } else if (const auto task = integer("SLURM_PROCID", 0, kMaxRanks);
             task && std::getenv("SLURM_STEP_ID") != nullptr) {
    // A batch script has SLURM_PROCID too, but outside a step: no ranks are started yet.
    env = from_slurm(*task);
  } else {
    return std::nullopt;
  }
  if (env.rank >= env.world_size) {
    throw std::invalid_argument("environment: rank is " + std::to_string(env.rank) +
                                ", expected less than the world size " +
                                std::to_string(env.world_size));
  }
  return env;
}

}  // namespace ringside::tools
