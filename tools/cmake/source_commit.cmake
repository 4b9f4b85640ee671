# Writes OUTPUT, a source file with the commit of the checkout in SOURCE, if it has changed. Run at every build:
#   cmake -DSOURCE=... -DOUTPUT=... -P source_commit.cmake
# "" without git, as in an archive; "+" marks files that differ from the commit.
execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY "${SOURCE}"
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "")
else()
  execute_process(COMMAND git status --porcelain --untracked-files=no WORKING_DIRECTORY "${SOURCE}"
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND commit "+")
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT
"#include \"tools/commands/source_commit.h\"

namespace ringside::tools {

const char* source_commit() { return \"${commit}\"; }

}  // namespace ringside::tools
" @ONLY)
