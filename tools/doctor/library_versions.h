// Versions of the libraries that the program runs with.
#pragma once

#include <string>

namespace ringside::tools {

// "libzmq 4.3.4, libzstd 1.5.4, ...".
std::string library_versions();

}  // namespace ringside::tools
