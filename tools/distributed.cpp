#include "tools/distributed.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rl/log/log.h"
#include "sp/comm/c10d_communicator.h"
#include "tools/command.h"
#include "tools/launch/rank_environment.h"

namespace ringside::tools {
namespace {

sp::MeshShape mesh_shape(const rl::ParallelConfig& parallel) {
  return {parallel.data_parallel_replicate_size, parallel.ringattn_parallel_size,
          parallel.ulysses_parallel_size};
}

bool is_loopback(const std::string& host) { return host == "localhost" || host.starts_with("127."); }

// The configured number, or this machine's cores shared among its ranks.
int threads_per_rank(const rl::Config& config, int ranks) {
  if (config.train.threads > 0) {
    return static_cast<int>(config.train.threads);
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
}

}  // namespace

Ranks connect_ranks(const rl::Config& config) {
  const sp::MeshShape shape = mesh_shape(config.parallel);
  const auto environment = rank_environment().value_or(RankEnvironment{});
  if (environment.world_size != shape.world_size()) {
    throw std::invalid_argument("the mesh has " + std::to_string(shape.world_size()) + " ranks (dp_replicate " +
                                std::to_string(shape.dp_replicate) + " x ring " + std::to_string(shape.ring) +
                                " x ulysses " + std::to_string(shape.ulysses) + "), but " +
                                std::to_string(environment.world_size) + " were started");
  }
  at::set_num_threads(threads_per_rank(config, environment.world_size));
  const sp::Mesh mesh(shape, environment.rank);
  if (environment.world_size == 1) {
    const auto alone = sp::make_single_rank_communicator();
    return {mesh, {alone, alone, alone, alone, alone}};
  }
  rl::log::set_prefix("rank " + std::to_string(environment.rank));
  const auto timeout = std::chrono::milliseconds(
      static_cast<int64_t>(config.parallel.collective_timeout_s * 1000));
  const auto store = sp::make_tcp_store(environment.master_addr, static_cast<uint16_t>(environment.master_port),
                                        environment.rank, environment.world_size, timeout);
  const std::string host = is_loopback(environment.master_addr) ? "127.0.0.1" : "";
  return {mesh, sp::connect_mesh(mesh, store, host, timeout)};
}

void check_nproc(const rl::Config& config, int nproc) {
  const int64_t wanted = config.parallel.world_size();
  if (nproc != 0 && nproc != wanted) {
    throw std::invalid_argument("--nproc " + std::to_string(nproc) + " does not fit the mesh: parallel.* asks for " +
                                std::to_string(wanted) + " ranks");
  }
}

int run_on_ranks(const rl::Config& config, int nproc, const std::vector<std::string>& arguments,
                 const std::function<void()>& body) {
  check_nproc(config, nproc);
  const auto wanted = static_cast<int>(config.parallel.world_size());
  if (wanted == 1 || rank_environment()) {
    body();
    return kExitOk;
  }
  LaunchOptions options;
  options.num_trainers = wanted;
  options.trainer_args = arguments;
  return report_launch(launch(options));
}

int report_launch(const LaunchResult& result) {
  if (!result.ok() && !result.error.empty()) {
    rl::log::error(result.error);
  }
  return result.exit_code;
}

}  // namespace ringside::tools
