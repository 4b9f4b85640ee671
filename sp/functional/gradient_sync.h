// Summing gradients over the sequence-parallel axes that parameter sharding has not summed over
// already.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sp/mesh/process_groups.h"

namespace ringside::sp {

// Sums each gradient in place over axes::sp_without_fsdp(mode); never a mean, because the ranks
// hold different tokens of one sequence. Gradients without parameter sharding are summed over all
// of sp: kNone. Data parallel is not touched: sum over dp after it. Collective over that axis: the
// same sizes in the same order on every rank; blocks; not thread-safe. Throws c10::Error when a
// gradient is undefined.
void sync_sp_gradients(const std::vector<at::Tensor>& gradients, const ProcessGroups& comms,
                       CpFsdpMode mode);

// The same for the gradients of parameters. One that requires a gradient and has none on this rank,
// which held no token of it, counts as zero and gets the sum; one that requires none is passed
// over.
void sync_sp_parameter_gradients(const std::vector<at::Tensor>& parameters,
                                 const ProcessGroups& comms, CpFsdpMode mode);

}  // namespace ringside::sp
