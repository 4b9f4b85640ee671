// Base64 of RFC 4648 with padding, for bytes in a JSON string.
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::bridge {

// The text of the bytes.
std::string base64(std::span<const uint8_t> bytes);

// The inverse; nullopt for text that base64() does not write.
std::optional<std::vector<uint8_t>> from_base64(std::string_view text);

}  // namespace ringside::bridge
