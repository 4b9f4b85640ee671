#include "tools/commands/distributed.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "engine/device/device_backend.h"
#include "engine/device/rank_thread.h"
#include "rl/report/log.h"
#include "rl/setup/model_device.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/sharding.h"
#include "rl/trainer/rank_agreement.h"
#include "rl/trainer/training_run.h"
#include "sp/mesh/c10d_communicator.h"
#include "sp/mesh/group_scope.h"
#include "sp/mesh/rank_work.h"
#include "tools/commands/command.h"
#include "tools/commands/run_launch.h"
#include "tools/commands/version.h"
#include "tools/launch/rank_environment.h"

namespace ringside::tools {
namespace {

constexpr std::chrono::seconds kFailedRankEndsFirst{2};

bool is_loopback(const std::string& host) {
  return host == "localhost" || host.starts_with("127.");
}

// The configured number, or this machine's cores shared among its ranks.
int threads_per_rank(const rl::Config& config, int ranks) {
  if (config.train.threads > 0) {
    return static_cast<int>(config.train.threads);
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
}

// Rendezvous of this process's ranks with the others: one store for the groups of all its virtual
// ranks.
struct Rendezvous {
  RankEnvironment environment;
  int64_t ranks_here = 1;
  std::chrono::milliseconds timeout{0};
  c10::intrusive_ptr<c10d::Store> in_process;  // if one process holds all ranks

  int64_t first_rank() const { return environment.rank * ranks_here; }
};

Rendezvous rendezvous_of(const rl::Config& config) {
  Rendezvous rendezvous;
  rendezvous.environment = rank_environment().value_or(RankEnvironment{});
  rendezvous.timeout =
      std::chrono::milliseconds(static_cast<int64_t>(config.parallel.collective_timeout_s * 1000));
  const int64_t processes = trainer_processes(config, rendezvous.environment.world_size);
  rendezvous.ranks_here = config.parallel.world_size() / processes;
  if (processes == 1) {
    rendezvous.in_process = c10::make_intrusive<c10d::HashStore>();
    rendezvous.environment.master_addr = "127.0.0.1";
  }
  return rendezvous;
}

// Virtual ranks compute on one thread each, for any number of processes: with more threads, sums
// would be split differently.
int threads_of_a_rank(const rl::Config& config, const Rendezvous& rendezvous) {
  return config.sp.virtual_ranks > 0 ? 1
                                     : threads_per_rank(config, rendezvous.environment.world_size);
}

Ranks connect_rank(const rl::Config& config, const Rendezvous& rendezvous, int64_t rank) {
  at::set_num_threads(threads_of_a_rank(config, rendezvous));
  const sp::MeshShape shape = rl::mesh_shape(config.parallel);
  const sp::Mesh mesh(shape, rank);
  // Virtual ranks of a process share its device.
  const c10::Device device = rl::model_device(config, rendezvous.environment.local_rank);
  if (shape.world_size() == 1) {
    return {mesh, sp::single_rank_groups(device)};
  }
  const auto& environment = rendezvous.environment;
  const auto store = rendezvous.in_process
                         ? rendezvous.in_process
                         : sp::make_tcp_store(environment.master_addr,
                                              static_cast<uint16_t>(environment.master_port), rank,
                                              shape.world_size(), rendezvous.timeout);
  const std::string host = is_loopback(environment.master_addr) ? "127.0.0.1" : "";
  sp::GroupRendezvous meeting{store, host, rendezvous.timeout, config.parallel.transport};
  meeting.report = [](const std::string& sentence) { rl::log::warn(sentence); };
  // Before the groups, whose members follow from the configuration.
  rl::RankFacts facts = rl::configuration_facts(config);
  facts.push_back({"the program", program_name()});
  rl::check_ranks_agree(facts, meeting, "configuration", rank, shape.world_size());
  const Ranks ranks{
      mesh, engine::connect_groups(mesh, meeting, device, rl::sharding_axes(config.parallel))};
  const auto nodes =
      sp::gather_node_names(sp::this_node_name(), *ranks.comms.control(sp::axes::kWorld));
  const std::string warning = sp::check_group_scope(config.parallel.group_scope, shape, nodes);
  if (rank == 0 && !warning.empty()) {
    rl::log::warn(warning);
  }
  return ranks;
}

void run_body(const Ranks& ranks, const std::function<void(const Ranks&)>& body) {
  const engine::RankThread thread(ranks.comms.device());
  body(ranks);
}

// Runs the process's ranks as threads. They wait for each other in collectives, so if one fails the
// process ends.
void run_virtual_ranks(const rl::Config& config, const Rendezvous& rendezvous,
                       const std::function<void(const Ranks&)>& body) {
  // c10d's flight recorder keeps one unlocked map for the whole process: the groups of several
  // threads corrupt it.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  std::vector<std::jthread> threads;
  for (int64_t i = 0; i < rendezvous.ranks_here; ++i) {
    threads.emplace_back([&, rank = rendezvous.first_rank() + i] {
      try {
        run_body(connect_rank(config, rendezvous, rank), body);
      } catch (const std::exception& error) {
        rl::log::error("virtual rank " + std::to_string(rank) + ": " + error_text(error));
        std::_Exit(kExitFailure);
      }
    });
  }
}

// Runs one rank of several. Rank 0 reports an error that every rank throws; any other error is
// reported by its own rank.
int run_rank(const rl::Config& config, const Rendezvous& rendezvous,
             const std::function<void(const Ranks&)>& body) {
  try {
    run_body(connect_rank(config, rendezvous, rendezvous.first_rank()), body);
    return kExitOk;
  } catch (const sp::RankFailed&) {
    // The rank that failed ends first, with its reason. Whoever started the ranks then ends this
    // one.
    std::this_thread::sleep_for(kFailedRankEndsFirst);
    return kExitFailure;
  } catch (const rl::TrainingFailed&) {
    if (rendezvous.first_rank() == 0) {
      throw;
    }
    return kExitFailure;
  }
}

}  // namespace

int run_on_ranks(rl::Config& config, int nproc, const std::vector<std::string>& arguments,
                 const std::function<void(const Ranks&)>& body,
                 const std::function<std::string(int signal)>& advice) {
  if (nproc == 0 && rank_environment()) {
    nproc = rank_environment()->world_size;
  }
  const int processes = trainer_processes(config, nproc);
  rl::fix_replicas(config.parallel, config.sp.virtual_ranks > 0 ? 0 : processes);
  if (processes > 1 && !rank_environment()) {
    LaunchOptions options;
    options.num_trainers = processes;
    options.trainer_args = arguments;
    options.report = [](const std::string& sentence) { rl::log::warn(sentence); };
    options.copy_line = rl::log::copy_line;
    options.advice = advice;
    return report_launch(launch(options));
  }
  const auto methods = rl::describe_sequence_parallel(config);
  rl::factor_context_parallel(config);
  Rendezvous rendezvous = rendezvous_of(config);
  if (rendezvous.environment.world_size > 1) {
    rl::log::set_prefix("rank " + std::to_string(rendezvous.environment.rank));
  }
  if (rendezvous.first_rank() == 0) {
    for (const std::string& line : methods) {
      rl::log::info(line);
    }
  }
  if (rendezvous.ranks_here > 1) {
    run_virtual_ranks(config, rendezvous, body);
    return kExitOk;
  }
  return run_rank(config, rendezvous, body);
}

}  // namespace ringside::tools
