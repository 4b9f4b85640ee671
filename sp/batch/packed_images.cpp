#include "sp/batch/packed_images.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iomanip>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

namespace ringside::sp {
namespace {

struct FieldForm {
  const char* name;
  FieldType dtype;
  int64_t width;
};

constexpr std::array kImageFields = {FieldForm{kPositionsField, FieldType::kInt32, 3},
                                     FieldForm{kImageField, FieldType::kInt64, 2},
                                     FieldForm{kImageRowField, FieldType::kInt32, 1}};

// The index among `fields` of each of kImageFields.
std::array<std::size_t, kImageFields.size()> indices_of(std::span<const TokenField> fields) {
  std::array<std::size_t, kImageFields.size()> indices{};
  for (std::size_t i = 0; i < kImageFields.size(); ++i) {
    const FieldForm& form = kImageFields[i];
    const auto found = std::ranges::find(fields, form.name, &TokenField::name);
    if (found == fields.end() || found->dtype != form.dtype || found->width != form.width) {
      throw std::invalid_argument("images: documents have no field " + std::string(form.name) +
                                  " of " + std::to_string(form.width) + " numbers of " +
                                  std::to_string(bytes_of(form.dtype)) +
                                  " bytes, which documents with images have");
    }
    indices[i] = static_cast<std::size_t>(found - fields.begin());
  }
  return indices;
}

template <class T>
T number_at(const TokenSource& source, std::size_t field, int64_t index) {
  T value;
  std::memcpy(&value,
              source.document->fields[field].bytes.data() + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

std::string said(const ImageId& id) {
  std::ostringstream text;
  text << "image " << std::hex << std::setfill('0') << std::setw(16) << id.high << std::setw(16)
       << id.low;
  return text.str();
}

// The image of a document with this id.
// Throws: std::invalid_argument when it has none, or `row` is not one of it.
const DocumentImage& image_of(const Document& document, const ImageId& id, int64_t row) {
  const auto found = std::ranges::find(document.images, id, &DocumentImage::id);
  if (found == document.images.end()) {
    throw std::invalid_argument("images: a token is a row of " + said(id) +
                                ", which is none of its document's " +
                                std::to_string(document.images.size()));
  }
  if (row < 0 || row >= found->tokens) {
    throw std::invalid_argument("images: a token is row " + std::to_string(row) + " of " +
                                said(id) + ", which has " + std::to_string(found->tokens));
  }
  return *found;
}

}  // namespace

bool is_image_field(const TokenField& field) {
  return std::ranges::find(kImageFields, field.name, &FieldForm::name) != kImageFields.end();
}

bool have_image_fields(std::span<const TokenField> fields) {
  return std::ranges::any_of(fields, is_image_field);
}

PackedImages packed_images(std::span<const TokenSource> sources,
                           std::span<const TokenField> fields) {
  const auto indices = indices_of(fields);
  const std::size_t image_field = indices[1], row_field = indices[2];
  PackedImages packed;
  std::map<ImageId, int64_t> number_of;
  for (const TokenSource& source : sources) {
    const int64_t row = number_at<int32_t>(source, row_field, source.token);
    packed.row.push_back(row);
    if (row == -1) {
      packed.image.push_back(-1);
      continue;
    }
    const ImageId id{number_at<uint64_t>(source, image_field, 2 * source.token),
                     number_at<uint64_t>(source, image_field, 2 * source.token + 1)};
    const DocumentImage& image = image_of(*source.document, id, row);
    const auto [place, is_new] = number_of.try_emplace(id, std::ssize(packed.images));
    if (is_new) {
      packed.images.push_back(image);
    } else if (packed.images[place->second] != image) {
      throw std::invalid_argument("images: two documents have " + said(id) +
                                  " with other grids or tokens");
    }
    packed.image.push_back(place->second);
  }
  return packed;
}

std::vector<ImageRow> rows_on_ranks(const PackedImages& images, const SequenceLayout& layout) {
  std::vector<ImageRow> rows;
  for (int64_t rank = 0; rank < layout.sp_size(); ++rank) {
    int64_t token = 0;
    for (const int64_t i : layout.packed_indices(rank)) {
      if (images.image[i] >= 0) {
        rows.push_back({rank, token, images.image[i], images.row[i]});
      }
      ++token;
    }
  }
  return rows;
}

}  // namespace ringside::sp
