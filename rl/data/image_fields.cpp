#include "rl/data/image_fields.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <utility>

namespace ringside::rl {
namespace {

// Appends the low `count` bytes of a number, the lowest first.
void append(std::vector<uint8_t>& bytes, uint64_t value, int count) {
  for (int byte = 0; byte < count; ++byte) {
    bytes.push_back(static_cast<uint8_t>(value >> (8 * byte)));
  }
}

uint64_t hex_number(const std::string& hash, std::size_t begin) {
  uint64_t value = 0;
  const char* const first = hash.data() + begin;
  const auto [end, error] = std::from_chars(first, first + 16, value, 16);
  if (error != std::errc() || end != first + 16) {
    throw std::invalid_argument("the hash of an image is \"" + hash + "\", expected 32 hex digits");
  }
  return value;
}

// The row of an image that each of these tokens is, and the image.
struct TokenRows {
  std::vector<sp::ImageId> id;
  std::vector<int64_t> row;
};

TokenRows token_rows(std::size_t tokens, std::span<const PlacedImage> images, int64_t merge) {
  TokenRows rows{std::vector<sp::ImageId>(tokens), std::vector<int64_t>(tokens, -1)};
  for (const PlacedImage& image : images) {
    const sp::ImageId id = image_id(image.hash);
    for (int64_t row = 0; row < image.span.grid.tokens(merge); ++row) {
      rows.id[image.span.begin + row] = id;
      rows.row[image.span.begin + row] = row;
    }
  }
  return rows;
}

}  // namespace

bool StepImages::any() const {
  return std::ranges::any_of(of_rollout, [](const auto& images) { return !images.empty(); });
}

sp::ImageId image_id(const std::string& hash) {
  if (hash.size() != 32 || hash.find_first_not_of('0') == std::string::npos) {
    throw std::invalid_argument("the hash of an image is \"" + hash + "\", expected 32 hex digits");
  }
  return {hex_number(hash, 0), hex_number(hash, 16)};
}

std::string image_hash(const sp::ImageId& id) {
  std::string hash;
  for (const uint64_t part : {id.high, id.low}) {
    for (int digit = 15; digit >= 0; --digit) {
      hash += "0123456789abcdef"[part >> (4 * digit) & 15];
    }
  }
  return hash;
}

void add_image_fields(sp::Document& document, std::span<const PlacedImage> images, int64_t merge) {
  std::vector<engine::ImageSpan> spans;
  for (const PlacedImage& image : images) {
    spans.push_back(image.span);
    const engine::PatchGrid& grid = image.span.grid;
    document.images.push_back(
        {image_id(image.hash), {grid.t, grid.height, grid.width}, grid.tokens(merge)});
  }
  const std::size_t tokens = document.ids.size();
  const auto positions = engine::token_positions(static_cast<int64_t>(tokens) + 1, spans, merge);
  const TokenRows rows = token_rows(tokens + 1, images, merge);
  sp::TokenField position{sp::kPositionsField, sp::FieldType::kInt32, 3};
  sp::TokenField image{sp::kImageField, sp::FieldType::kInt64, 2};
  sp::TokenField row{sp::kImageRowField, sp::FieldType::kInt32, 1};
  for (std::size_t i = 0; i < tokens; ++i) {
    for (const auto* component : {&positions.time, &positions.height, &positions.width}) {
      append(position.bytes, static_cast<uint64_t>((*component)[i]), 4);
    }
    append(image.bytes, rows.id[i].high, 8);
    append(image.bytes, rows.id[i].low, 8);
    append(row.bytes, static_cast<uint64_t>(rows.row[i]), 4);
  }
  document.fields.push_back(std::move(position));
  document.fields.push_back(std::move(image));
  document.fields.push_back(std::move(row));
}

}  // namespace ringside::rl
