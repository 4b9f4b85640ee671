// Routed experts as inference servers return them: a table of ids for the tokens that the model
// saw, with or without the layers that have no experts.
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "rollout_bridge/base/result.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// Row i belongs to token first_row + i of prompt and completion.
struct RoutedTable {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t layers = 0;
  int64_t per_token = 0;
  std::vector<int32_t> ids;  // [rows, layers, per_token]
  bool empty() const { return rows == 0; }
};

// vLLM's: base64 of a .npy file, [rows, layers, per_token] of one- or two-byte integers, or int32.
// Errors: kMalformed.
Result<RoutedTable> read_npy_table(std::string_view base64_text);

// SGLang's: base64 of int32 numbers, [rows, layers, per_token] without a shape. The number of rows
// and of experts a token is known, that of the layers follows.
// Errors: kMalformed.
Result<RoutedTable> read_int32_table(std::string_view base64_text, int64_t rows, int64_t per_token);

// The rows of a whole sequence of `tokens` tokens for the layers with experts, `layers` of the
// model's num_layers. Layers without experts are dropped from a table that has all num_layers.
// Errors: kMalformed when the table has other rows, layers or experts a token.
Result<RoutedExperts> routed_experts(const RoutedTable& table, int64_t tokens,
                                     std::span<const int32_t> layers, int64_t num_layers,
                                     int64_t per_token);

}  // namespace ringside::bridge
