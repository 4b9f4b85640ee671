// The one rule of gradients and losses under parallelism: SUM over dp x sp, never a mean, because
// every loss entry's weight already holds the global denominator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sp/mesh/communicator.h"

namespace ringside::sp {

// Sums each flat gradient in place over the world (dp x sp). Collective; every rank passes the same
// sizes in the same order, and ends with the same bits.
void sum_gradients(std::vector<at::Tensor>& flat_gradients, Communicator& world);

// Sums a few numbers (losses, counts) over the world in fp64. Collective.
std::vector<double> sum_scalars(const std::vector<double>& values, Communicator& world);

// Element-wise maximum of a few numbers over the world. Collective.
std::vector<double> max_scalars(const std::vector<double>& values, Communicator& world);

// Throws c10::Error on every rank when `hash` differs between ranks, naming `what`: ranks about to
// run different collectives would otherwise hang. Collective.
void check_agreement(uint64_t hash, const char* what, Communicator& world);

}  // namespace ringside::sp
