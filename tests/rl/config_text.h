// Recipes as text, for tests of what is read from them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "rl/config/load.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {

class TempDir : public test::TemporaryDirectory {
 public:
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path() / name).parent_path());
    test::write_file(path() / name, text);
    return path() / name;
  }
};

inline LoadedConfig load_text(const std::string& yaml,
                              const std::vector<std::string>& overrides = {}) {
  const TempDir dir;
  return load_config({dir.write("recipe.yaml", yaml)}, overrides);
}

inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) {
    text += line + "\n";
  }
  return text;
}

}  // namespace ringside::rl
