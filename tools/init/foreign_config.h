// Configuration file of another system as a flat list of its keys.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ringside::tools {

struct ForeignValue {
  std::string key;  // dotted, as the other system names it: "actor_rollout_ref.rollout.n"
  std::vector<std::string> items;  // a scalar has one, null and an empty list have none
  int line = 0;                    // from 1
  bool is_list = false;
  // What the value needs and the file does not hold: "$MODEL_PATH"; "" = it is complete.
  std::string unknown;

  // The items with ", " between them.
  std::string text() const;
};

struct ForeignConfig {
  std::string file;                  // its name, for messages
  std::vector<std::string> program;  // words of a command line that name what it starts
  std::vector<ForeignValue>
      values;  // in the order of the file; of a command line a later one counts
  std::vector<std::string> remarks;  // what of the file was not followed
};

// Reads YAML or JSON (a mapping, which may be nested), or a shell script or other text with one
// command line of settings: key=value as Hydra takes them, or --key value. Of several commands of a
// script the one counts that starts a trainer of verl, TRL, axolotl or OpenRLHF.
// Throws: std::invalid_argument with the mistakes of the file, one a line: "FILE:LINE:COLUMN: KEY:
// what was wrong"; also for a file that cannot be read.
ForeignConfig read_foreign_config(const std::filesystem::path& file);

}  // namespace ringside::tools
