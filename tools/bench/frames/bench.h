// Parts of bench_frames. Each runs in its own process; see README.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "tools/bench/frames/messages.h"

namespace ringside::bench {

// Sends `messages` damaged messages and waits until they are sent. Returns the number sent by kind.
nlohmann::json attack(const Target& target, uint64_t messages, uint32_t seed);

// Runs a TrainerEndpoint that grants groups to every worker, compares every rollout that pop()
// returns with what the correct worker makes, and publishes new weights now and then. Writes the
// addresses to `folder`/endpoint.json, and a line of counters and memory to stdout every second.
// Ends when `folder`/stop exists and all granted groups have arrived. Exit status 1 when a rollout
// was wrong or lost.
int run_trainer(const std::filesystem::path& folder);

// Runs the correct worker: samples what it is granted until the trainer sends END. Status 1 when
// any of its messages was rejected.
int run_worker(const Target& target);

}  // namespace ringside::bench
