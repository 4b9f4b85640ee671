// Memory of a whole run on this machine: ranks, embedded workers and published weights, compared
// with what the machine has.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/layers/model_config.h"
#include "rl/config/config.h"
#include "rl/setup/machine_memory.h"
#include "rl/setup/memory_of_rank.h"

namespace ringside::rl {

// What of a run is on this machine.
struct RunPlace {
  c10::Device device = c10::Device(c10::kCPU);  // of the ranks
  int64_t ranks = 0;                            // 0: all of the layout
  bool workers = true;                          // rollout.num_workers of them
  bool publishes = true;                        // weights for workers, wherever those are
};

// The prediction, in bytes.
struct RunMemory {
  RankMemory rank;
  int64_t ranks = 0;  // on this machine
  // Of one rank: its process, what it keeps in host memory, the copy that a checkpoint is written
  // from, and on the CPU all else.
  int64_t rank_on_host = 0;
  int64_t workers = 0;
  int64_t worker_model = 0;    // of an embedded one: weights, cache and logits, on the device
  int64_t worker_on_host = 0;  // of one: all but a model on a device
  int64_t published = 0;       // the copies that the trainer keeps of the weights that it publishes

  // In the machine's memory.
  int64_t on_host() const { return ranks * rank_on_host + workers * worker_on_host + published; }
  // Of the first device, where it is not the CPU: embedded workers share it with a rank.
  int64_t on_device() const { return rank.total() + workers * worker_model; }
};

// `config` has its context-parallel size factored and its replicas fixed.
// Thread safety: pure.
RunMemory run_memory(const Config& config, const engine::ModelConfig& model, const RunPlace& place);

// One way to need less.
struct MemorySaving {
  std::string keys;  // "model.recompute=full lora.rank=16"
  Config config;
  int64_t bytes = 0;  // of the run in the machine's memory, or of a rank in its device's
};

// Changes of keys, each with the one before it, until one needs at most `bytes`; all of them where
// none does. of_device: the memory of a rank's device counts, and not the machine's.
std::vector<MemorySaving> memory_savings(const Config& config, const engine::ModelConfig& model,
                                         const RunPlace& place, bool of_device, int64_t bytes);

// What a comparison says. At most one of both is not empty.
struct MemoryFit {
  std::string error;    // it cannot fit: sizes, and which keys would make it fit
  std::string warning;  // it is close
};

// Compares the run with this machine's memory, and a rank with its device's where the device is
// none of the machine's. device_bytes: of a rank's device; 0: not known.
MemoryFit compare_memory(const Config& config, const engine::ModelConfig& model,
                         const RunPlace& place, const MachineMemory& machine, int64_t device_bytes);

// compare_memory() of a configuration as it was read with this machine and the device that
// model.device gives its ranks; place.device is not used. The device is here.
MemoryFit compare_with_this_machine(const Config& config, const engine::ModelConfig& model,
                                    RunPlace place);

// Memory of a device that is here; 0 for the CPU, and when the device does not tell.
int64_t device_memory(c10::Device device);

// "2 ranks of 6.9 GiB, 1 worker of 1.6 GiB, published weights 1.8 GiB: 17.2 GiB together".
std::string describe(const RunMemory& memory);

}  // namespace ringside::rl
