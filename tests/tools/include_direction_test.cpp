// Guards the architecture's one direction of dependency: tools -> rl -> {engine, rollout_bridge},
// engine -> sp, and the folders that promise to build without torch. One include the other way, and
// layers can no longer be tested alone.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/include_rules.h"

namespace ringside::tools {
namespace {

namespace fs = std::filesystem;

// Every source file of the five layers: path relative to the root -> text.
const std::map<std::string, std::string>& sources() {
  static const std::map<std::string, std::string> files = [] {
    const std::set<std::string> extensions = {".h", ".cpp", ".cu", ".cuh"};
    const fs::path root = RINGSIDE_SOURCE_DIR;
    std::map<std::string, std::string> found;
    for (const char* folder : {"sp", "engine", "rollout_bridge", "rl", "tools"}) {
      for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
        if (!entry.is_regular_file() || !extensions.contains(entry.path().extension())) continue;
        std::ostringstream text;
        text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
        found[fs::relative(entry.path(), root).generic_string()] = text.str();
      }
    }
    return found;
  }();
  return files;
}

// The include chain from `file` to a torch header, "a.h -> b.h -> ATen/x.h", or "".
std::string path_to_torch(const std::string& file, std::set<std::string>& visited) {
  if (!visited.insert(file).second || !sources().contains(file)) return "";
  for (const std::string& include : includes_of(sources().at(file))) {
    if (is_torch_include(include)) return file + " -> " + include;
    const std::string rest = path_to_torch(include, visited);
    if (!rest.empty()) return file + " -> " + rest;
  }
  return "";
}

TEST_CASE("include lines are found whatever their spelling, and comments are not") {
  const std::string text =
      "#include \"rl/config/config.h\"\n  #  include <ATen/ATen.h>  // why\n"
      "// #include \"no.h\"\n#pragma once\n#include<vector>\n";
  CHECK(includes_of(text) ==
        std::vector<std::string>{"rl/config/config.h", "ATen/ATen.h", "vector"});
  CHECK(includes_of("int x;").empty());
}

TEST_CASE("the rules hold on made-up lines") {
  const auto bad = [](const char* file, const char* include) {
    return !include_violation(file, include).empty();
  };
  CHECK(bad("sp/layout/a.cpp", "engine/model/decoder.h"));
  CHECK(bad("sp/comm/a.h", "rl/config/config.h"));
  CHECK(bad("engine/model/a.cpp", "rl/trainer.h"));
  CHECK(bad("engine/model/a.cpp", "rollout_bridge/schema.h"));
  CHECK(bad("rollout_bridge/a.cpp", "sp/layout/range.h"));
  CHECK(bad("rl/trainer.cpp", "tools/launch/launcher.h"));
  CHECK(bad("rl/trainer.cpp", "tests/support/catch.h"));
  CHECK_FALSE(bad("tools/main.cpp", "rl/trainer.h"));
  CHECK_FALSE(bad("rl/trainer.cpp", "engine/model/decoder.h"));
  CHECK_FALSE(bad("rl/trainer.cpp", "rollout_bridge/schema.h"));
  CHECK_FALSE(bad("engine/model/a.cpp", "sp/attention/attention.h"));
  CHECK_FALSE(bad("sp/comm/a.h", "vector"));

  CHECK(bad("rollout_bridge/a.h", "ATen/core/Tensor.h"));
  CHECK(bad("sp/plan/a.cpp", "c10/util/Exception.h"));
  CHECK(bad("rl/metrics/a.cpp", "torch/csrc/distributed/c10d/Store.hpp"));
  CHECK_FALSE(bad("sp/comm/a.cpp", "ATen/ATen.h"));
  CHECK(bad("engine/model/a.h", "torch/torch.h"));
  CHECK_FALSE(bad("engine/model/a.cpp", "torch/torch.h"));

  std::string lines;
  for (int i = 0; i < 500; ++i) lines += "\n";
  CHECK(text_violation(lines).empty());
  CHECK_FALSE(text_violation(lines + "\n").empty());
  CHECK_FALSE(text_violation(std::string("// TO") + "DO: later").empty());
  CHECK_FALSE(text_violation(std::string("// FIX") + "ME").empty());
  CHECK(text_violation("int kTODOs; // mastodon").empty());
}

TEST_CASE("every source file keeps the rules") {
  REQUIRE(sources().size() > 20);
  for (const auto& [file, text] : sources()) {
    for (const std::string& include : includes_of(text)) {
      INFO(file << " includes " << include);
      CHECK(include_violation(file, include) == "");
    }
    INFO(file);
    CHECK(text_violation(text) == "");
  }
}

TEST_CASE("torch-free folders reach no torch header through another file") {
  for (const auto& [file, text] : sources()) {
    if (!must_be_torch_free(file)) continue;
    std::set<std::string> visited;
    CHECK(path_to_torch(file, visited) == "");
  }
}

}  // namespace
}  // namespace ringside::tools
