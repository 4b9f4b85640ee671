// Commit that the program was built from. Its definition is written at every build
// (tools/cmake/source_commit.cmake).
#pragma once

namespace ringside::tools {

// The first 12 digits, with "+" if files differed from the commit; "" if it is not known.
const char* source_commit();

}  // namespace ringside::tools
