#include "rollout_bridge/servers/routed_table.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>

#include "rollout_bridge/base/base64.h"

namespace ringside::bridge {
namespace {

Error malformed_table(const std::string& what) {
  return Error{Reason::kMalformed, "routed_experts " + what};
}

template <class T>
std::vector<int32_t> integers_of(std::span<const uint8_t> bytes) {
  std::vector<int32_t> out(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value{};
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = value;
  }
  return out;
}

// Elements of numpy's dtype names; nullopt for another dtype or a part of an element.
std::optional<std::vector<int32_t>> read_elements(std::string_view dtype,
                                                  std::span<const uint8_t> bytes) {
  if (dtype == "|u1") {
    return integers_of<uint8_t>(bytes);
  }
  if (dtype == "<u2" && bytes.size() % 2 == 0) {
    return integers_of<uint16_t>(bytes);
  }
  if (dtype == "<i2" && bytes.size() % 2 == 0) {
    return integers_of<int16_t>(bytes);
  }
  if (dtype == "<i4" && bytes.size() % 4 == 0) {
    return integers_of<int32_t>(bytes);
  }
  return std::nullopt;
}

// What follows `key` in a header like "{'descr': '|u1', 'shape': (3, 2, 1), }", up to `end`.
std::string_view value_after(std::string_view header, std::string_view key, char end) {
  const std::size_t at = header.find(key);
  if (at == header.npos) {
    return {};
  }
  const std::string_view rest = header.substr(at + key.size());
  return rest.substr(0, std::min(rest.find(end), rest.size()));
}

// "3, 2, 1" as three positive numbers of at most nine digits.
std::optional<std::vector<int64_t>> read_shape(std::string_view text) {
  std::vector<int64_t> shape;
  while (!text.empty()) {
    uint32_t extent = 0;
    const std::size_t digits = std::min<std::size_t>(text.size(), 9);
    const auto [stop, error] = std::from_chars(text.data(), text.data() + digits, extent);
    if (error != std::errc{}) {
      return std::nullopt;
    }
    shape.push_back(extent);
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
    text.remove_prefix(std::min(text.find_first_not_of(", "), text.size()));
  }
  return shape.size() == 3 ? std::optional(shape) : std::nullopt;
}

bool has_size(const RoutedTable& table) {
  const auto ids = static_cast<int64_t>(table.ids.size());
  return table.rows > 0 && table.layers > 0 && table.per_token > 0 &&
         table.per_token <= ids / table.rows / table.layers &&
         table.rows * table.layers * table.per_token == ids;
}

}  // namespace

Result<RoutedTable> read_npy_table(std::string_view base64_text) {
  constexpr std::string_view kMagic = "\x93NUMPY\x01";
  constexpr std::size_t kHead = 10;  // magic, version, length of the header
  const auto bytes = from_base64(base64_text);
  if (!bytes) {
    return malformed_table("is no base64");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  if (!text.starts_with(kMagic) || text.size() < kHead) {
    return malformed_table("is no .npy file of version 1");
  }
  const std::size_t header_bytes = (*bytes)[8] | (*bytes)[9] << 8;
  if (text.size() - kHead < header_bytes) {
    return malformed_table("ends within its .npy header");
  }
  const std::string_view header = text.substr(kHead, header_bytes);
  const auto shape = read_shape(value_after(header, "'shape': (", ')'));
  const auto ids = read_elements(value_after(header, "'descr': '", '\''),
                                 std::span(*bytes).subspan(kHead + header_bytes));
  const bool rows_first = header.find("'fortran_order': False") != header.npos;
  if (!shape || !ids || !rows_first) {
    return malformed_table("has the .npy header " + clip_text(std::string(header), 120) +
                           "; expected [tokens, layers, experts] of |u1, <u2, <i2 or <i4");
  }
  RoutedTable table{0, (*shape)[0], (*shape)[1], (*shape)[2], *ids};
  if (!has_size(table)) {
    return malformed_table("has " + std::to_string(ids->size()) + " ids for shape [" +
                           std::to_string(table.rows) + ", " + std::to_string(table.layers) + ", " +
                           std::to_string(table.per_token) + "]");
  }
  return table;
}

Result<RoutedTable> read_int32_table(std::string_view base64_text, int64_t rows,
                                     int64_t per_token) {
  const auto bytes = from_base64(base64_text);
  if (!bytes) {
    return malformed_table("is no base64");
  }
  const auto ids = read_elements("<i4", *bytes);
  const int64_t count = ids ? static_cast<int64_t>(ids->size()) : 0;
  RoutedTable table{0, rows, 0, per_token, ids.value_or(std::vector<int32_t>{})};
  if (rows > 0 && per_token > 0) {
    table.layers = count / rows / per_token;
  }
  if (!has_size(table)) {
    return malformed_table("has " + std::to_string(bytes->size()) +
                           " bytes, which are not int32 ids of " + std::to_string(per_token) +
                           " experts for " + std::to_string(rows) + " tokens");
  }
  return table;
}

Result<RoutedExperts> routed_experts(const RoutedTable& table, int64_t tokens,
                                     std::span<const int32_t> layers, int64_t num_layers,
                                     int64_t per_token) {
  const auto with_experts = static_cast<int64_t>(layers.size());
  const bool all_layers = table.layers == num_layers;
  if (table.first_row != 0 || table.rows != tokens - 1 || table.per_token != per_token ||
      (!all_layers && table.layers != with_experts)) {
    return malformed_table(
        "begins at token " + std::to_string(table.first_row) + " and has shape [" +
        std::to_string(table.rows) + ", " + std::to_string(table.layers) + ", " +
        std::to_string(table.per_token) + "]; expected 0 and [" + std::to_string(tokens - 1) +
        ", " + std::to_string(with_experts) + " or " + std::to_string(num_layers) + ", " +
        std::to_string(per_token) + "] for a model with " + std::to_string(with_experts) +
        " layers with experts of " + std::to_string(num_layers));
  }
  RoutedExperts routed{{layers.begin(), layers.end()}, static_cast<int32_t>(per_token), 1, {}};
  std::vector<int32_t> kept;
  kept.reserve(static_cast<std::size_t>(table.rows * with_experts * per_token));
  for (int64_t row = 0; row < table.rows; ++row) {
    for (int64_t i = 0; i < with_experts; ++i) {
      const int64_t layer = all_layers ? layers[i] : i;
      const auto* ids = table.ids.data() + (row * table.layers + layer) * per_token;
      kept.insert(kept.end(), ids, ids + per_token);
    }
  }
  const auto [least, most] = std::minmax_element(kept.begin(), kept.end());
  if (kept.empty() || *least < 0 || *most > kMaxExpertId) {
    return malformed_table("has an id outside [0, " + std::to_string(kMaxExpertId) + "]");
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto token = kept.begin() + static_cast<std::ptrdiff_t>(i - i % per_token);
    if (std::find(token, kept.begin() + static_cast<std::ptrdiff_t>(i), kept[i]) !=
        kept.begin() + static_cast<std::ptrdiff_t>(i)) {
      return malformed_table("has expert " + std::to_string(kept[i]) +
                             " twice for one token and layer; the server recorded none");
    }
  }
  routed.id_bytes = *most <= 255 ? 1 : 2;
  for (const int32_t id : kept) {
    routed.ids.push_back(static_cast<uint8_t>(id));
    if (routed.id_bytes == 2) {
      routed.ids.push_back(static_cast<uint8_t>(id >> 8));
    }
  }
  return routed;
}

}  // namespace ringside::bridge
