// Files that come with the program: configs and recipes.
#pragma once

#include <filesystem>

namespace ringside::tools {

// The folder with configs/ and recipes/: ../share/ringside beside the folder of an installed
// program, or the checkout that the program was built in. "" if neither is there.
std::filesystem::path installed_files();

}  // namespace ringside::tools
