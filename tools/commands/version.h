// Text of `ringside --version`.
#pragma once

#include <string>

namespace ringside::tools {

// "ringside 1.2 (commit 0123abcd)"; without the commit where it is unknown.
std::string program_name();

// Versions of the program and of LibTorch, then the devices that the program was linked for: how
// many there are, what each backend was built with and what it found here.
std::string version_text();

}  // namespace ringside::tools
