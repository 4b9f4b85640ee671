// Text of a size in bytes for people, in the unit that reads best.
#pragma once

#include <string>

namespace ringside::rl {

// "0 B", "640 B", "36.5 KiB", "512 MiB", "11.4 GiB", "2048 TiB": three digits that count. bytes:
// at least 0.
std::string byte_text(double bytes);

}  // namespace ringside::rl
