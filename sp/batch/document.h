// What the collator packs: token ids and the loss entries that hang on them. Torch-free.
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
