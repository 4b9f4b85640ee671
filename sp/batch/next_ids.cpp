#include "sp/batch/next_ids.h"

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace ringside::sp {

void add_next_ids(Document& document) {
  std::vector<int64_t> next(document.ids.size(), 0);
  for (std::size_t i = 0; i + 1 < next.size(); ++i) {
    next[i] = document.ids[i + 1];
  }
  TokenField field{kNextIdField, FieldType::kInt64, /*width=*/1};
  field.bytes.resize(next.size() * sizeof(int64_t));
  if (!next.empty()) {
    std::memcpy(field.bytes.data(), next.data(), field.bytes.size());
  }
  document.fields.push_back(std::move(field));
}

}  // namespace ringside::sp
