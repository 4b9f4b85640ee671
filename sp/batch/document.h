// Document as the collator packs it: token ids and their loss entries. Torch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/batch/loss_entries.h"

namespace ringside::sp {

struct Document {
  std::vector<int64_t> ids;
  LossEntries entries;  // source = index into ids
  // Bytes that belong to each token beside its id, for example routes that are replayed: a row for
  // each id, all rows of a step equally long. Tokens with different rows are not shared. Empty:
  // none.
  std::vector<uint8_t> token_rows = {};
};

}  // namespace ringside::sp
