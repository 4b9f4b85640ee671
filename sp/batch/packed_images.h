// Images of a packed micro-batch: which ones, and which tokens are their rows. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sp/batch/document.h"
#include "sp/layout/sequence_layout.h"
#include "sp/plan/image_plan.h"

namespace ringside::sp {

// The place that a token of a micro-batch is taken from.
struct TokenSource {
  const Document* document = nullptr;
  int64_t token = 0;
};

// What the tokens of a micro-batch say of images.
struct PackedImages {
  // The distinct ones, in the order of their first tokens.
  std::vector<DocumentImage> images;
  // Of each packed token: the image that it is a row of, or -1, and the row. [tokens]
  std::vector<int64_t> image;
  std::vector<int64_t> row;
};

// Whether documents with these fields may have images.
bool have_image_fields(std::span<const TokenField> fields);
// Whether this is one of the fields of images.
bool is_image_field(const TokenField& field);

// sources: of each packed token. fields: of its documents.
// Throws: std::invalid_argument when only some of the fields of images are there, one has another
// form, or a token names an image that its document does not have, a row outside of it, or an image
// that another document has in another form.
PackedImages packed_images(std::span<const TokenSource> sources,
                           std::span<const TokenField> fields);

// The rows of images on all ranks of a layout, as plan_images() takes them.
std::vector<ImageRow> rows_on_ranks(const PackedImages& images, const SequenceLayout& layout);

}  // namespace ringside::sp
