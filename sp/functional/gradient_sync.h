// Sum of gradients over the sequence-parallel axes that parameter sharding has not summed over.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sp/mesh/process_groups.h"

namespace ringside::sp {

// Sums each gradient in place over axes::sp_without_fsdp(mode). Never a mean, because the ranks
// hold different tokens of one sequence. Without parameter sharding use kNone, which sums over all
// of sp. Data parallelism is not included: sum over dp afterwards.
// Shapes: any, of any floating dtype, on the device of comms.tensors().
// Collective over: these axes; the same sizes in the same order on every rank. Blocks.
// Throws: c10::Error, before anything is sent, when a gradient is undefined.
// Thread safety: none.
void sync_sp_gradients(const std::vector<at::Tensor>& gradients, const ProcessGroups& comms,
                       CpFsdpMode mode);

// sync_sp_gradients() for the gradients of parameters. A parameter that requires a gradient but has
// none on this rank, which held no token of it, counts as zero and gets the sum. Parameters that
// require no gradient are skipped.
// Collective over, blocks: as sync_sp_gradients().
void sync_sp_parameter_gradients(const std::vector<at::Tensor>& parameters,
                                 const ProcessGroups& comms, CpFsdpMode mode);

}  // namespace ringside::sp
