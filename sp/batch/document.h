// Document as the collator packs it: token ids, their loss entries and what else belongs to each
// token. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sp/batch/loss_entries.h"

namespace ringside::sp {

enum class FieldType { kUInt8, kInt16, kInt64, kFloat32 };

// Bytes of one number.
inline int64_t bytes_of(FieldType type) {
  return type == FieldType::kUInt8   ? 1
         : type == FieldType::kInt16 ? 2
         : type == FieldType::kInt64 ? 8
                                     : 4;
}

// Numbers that belong to each token of a document beside its id, for example routes that are
// replayed.
struct TokenField {
  std::string name;
  FieldType dtype = FieldType::kUInt8;
  int64_t width = 1;                // numbers of each token
  std::vector<uint8_t> bytes = {};  // [ids, width] in dtype, little-endian

  int64_t row_bytes() const { return width * bytes_of(dtype); }
};

struct Document {
  std::vector<int64_t> ids;
  LossEntries entries;  // source = index into ids
  // All documents of a step have fields of the same names, dtypes and widths in the same order,
  // but those without ids. Tokens with different values are not shared.
  std::vector<TokenField> fields = {};
};

}  // namespace ringside::sp
