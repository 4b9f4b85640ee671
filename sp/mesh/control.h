// Reductions of losses and control values over the world. Losses are always SUMmed over dp x sp,
// never averaged, because every loss entry's weight already contains the global denominator.
//
// Collective over: the world.
// Blocks: until the host has the result.
// Thread safety: as Communicator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sp/mesh/communicator.h"

namespace ringside::sp {

// Sums a few numbers (losses, counts) in fp64, as many on every rank.
std::vector<double> sum_scalars(const std::vector<double>& values, Communicator& world);

// Element-wise maximum of a few numbers, as many on every rank.
std::vector<double> max_scalars(const std::vector<double>& values, Communicator& world);

// Checks that `hash` is the same on all ranks, because ranks that run different collectives would
// hang.
// Throws: c10::Error on every rank, naming `what`, when the hashes differ.
void check_agreement(uint64_t hash, const char* what, Communicator& world);

}  // namespace ringside::sp
