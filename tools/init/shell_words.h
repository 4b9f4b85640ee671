// Words of the commands in a shell script, as far as they can be known without running it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringside::tools {

struct ShellWord {
  std::string text;  // without quotes, with the values of variables that the script sets
  int line = 0;      // from 1
  // The first part whose value the script alone does not tell: "$MODEL", "$(nproc)"; "" = all
  // known.
  std::string unknown;
};

using ShellCommand = std::vector<ShellWord>;

struct ShellScript {
  std::vector<ShellCommand> commands;  // in the order of the file, assignments left out
  std::vector<std::string> remarks;    // what was not followed
};

// Reads a script. It follows assignments, also of arrays, ${NAME:-default}, $((arithmetic)),
// quotes, continued lines and comments; the lines of a here-document are read as commands. Nothing
// is run. Assignments inside of if, case and loops are not carried out; a remark names those that
// are used. HOME, where the script does not set it, is "~". Throws: std::invalid_argument "LINE:
// what is wrong" for a quote or a bracket without its end.
ShellScript read_shell_script(std::string_view text);

}  // namespace ringside::tools
