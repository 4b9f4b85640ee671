// Row counts of all ranks, which every exchange of this folder needs in advance.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sp/mesh/communicator.h"

namespace ringside::sp {

// `mine` of every rank, in rank order. Call it once per micro-batch and pass the result on;
// functions without lengths gather them each time. device: one that the group's backend sends from.
// Collective over: comm.
// Blocks: until the host has all of them.
std::vector<int64_t> gather_lengths(int64_t mine, at::Device device, Communicator& comm);

// Parts of `total` whose sizes differ by at most one, the larger ones first: the cut of
// slice_input_tensor. Not collective.
// Throws: std::invalid_argument when total is negative or ranks below 1.
std::vector<int64_t> even_lengths(int64_t total, int64_t ranks);

// `lengths` if not empty; otherwise gather_lengths().
// Collective over: comm, when `lengths` is empty, which it must be on all ranks or none.
// Throws: c10::Error, naming `what`, when the given lengths are not one per rank or differ from
// `mine` for this rank.
std::vector<int64_t> known_lengths(const std::vector<int64_t>& lengths, int64_t mine,
                                   at::Device device, Communicator& comm, const char* what);

// `lengths` if not empty; otherwise even_lengths of total. Not collective.
// Throws: c10::Error, naming `what`, when the given lengths are not one per rank or do not sum to
// total.
std::vector<int64_t> cut_lengths(const std::vector<int64_t>& lengths, int64_t total,
                                 const Communicator& comm, const char* what);

}  // namespace ringside::sp
