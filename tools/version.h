// Text of `ringside --version`.
#pragma once

#include <string>

namespace ringside::tools {

// Versions of the program and of LibTorch, then the devices that the program was linked for: how
// many there are, what each backend was built with and what it found here.
std::string version_text();

}  // namespace ringside::tools
