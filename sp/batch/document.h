// Document as the collator packs it: token ids and their loss entries. Torch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/batch/loss_entries.h"

namespace ringside::sp {

struct Document {
  std::vector<int64_t> ids;
  LossEntries entries;  // source = index into ids
};

}  // namespace ringside::sp
