// Tokens that stand for one byte in vocabularies of SentencePiece: "<0x00>" to "<0xFF>".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ringside::engine {

// "<0x0A>", the piece of a byte.
std::string byte_piece(uint8_t byte);

// The byte of such a piece; nullopt for any other text.
std::optional<uint8_t> byte_of_piece(std::string_view piece);

}  // namespace ringside::engine
