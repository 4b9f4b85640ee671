// Document as the collator packs it: token ids, their loss entries, its images and what else
// belongs to each token. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sp/batch/loss_entries.h"
#include "sp/plan/image_plan.h"

namespace ringside::sp {

enum class FieldType { kUInt8, kInt16, kInt32, kInt64, kFloat32 };

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

// Fields that documents with images have, and with them all documents of their step.
// int32 [3]: the token's position in time, height and width.
inline constexpr const char* kPositionsField = "positions";
// int64 [2]: the image that the token is a row of, as its ImageId; zeros for text.
inline constexpr const char* kImageField = "image";
// int32 [1]: which row of it; -1 for text.
inline constexpr const char* kImageRowField = "image_row";

// 128 bits of the hash of an image's content: equal for equal images.
struct ImageId {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const ImageId&) const = default;
};

// An image of a document, wherever its tokens are.
struct DocumentImage {
  ImageId id;
  ImageGrid grid;
  int64_t tokens = 0;  // rows that a tower makes of it
  bool operator==(const DocumentImage&) const = default;
};

struct Document {
  std::vector<int64_t> ids;
  LossEntries entries;  // source = index into ids
  // All documents of a step have fields of the same names, dtypes and widths in the same order,
  // but those without ids. Tokens with different values are not shared.
  std::vector<TokenField> fields = {};
  // All that kImageField names, in any order; more do no harm.
  std::vector<DocumentImage> images = {};
  // Documents of different kinds share no micro-batch: what a pass does may differ by kind.
  int64_t kind = 0;
};

}  // namespace ringside::sp
