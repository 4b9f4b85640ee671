// The parts of bench_frames; each runs in a process of its own, see README.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "tools/bench/frames/messages.h"

namespace ringside::bench {

// Sends `messages` damaged messages and waits until they are out. What was sent, by kind.
nlohmann::json attack(const Target& target, uint64_t messages, uint32_t seed);

// A TrainerEndpoint that grants groups to whoever comes, checks every rollout that pop() returns
// against what the good worker makes, and publishes new weights now and then. Writes the addresses
// to `folder`/endpoint.json and a line of counters and memory to stdout every second. Ends when
// `folder`/stop exists and what was granted is in; exit status 1 when a rollout was wrong or lost.
int run_trainer(const std::filesystem::path& folder);

// The good worker: samples what it is granted until the trainer says END. Status 1 when it was
// refused anything.
int run_worker(const Target& target);

}  // namespace ringside::bench
