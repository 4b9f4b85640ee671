// Guards the architecture's one direction of dependency: tools -> rl -> {engine, rollout_bridge},
// engine -> sp, and the folders that promise to build without torch. One include the other way, and
// layers can no longer be tested alone. Also guards the size of functions and classes, which a
// limit on a file's length does not: it only cuts a large class into several files.
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
#include "tests/tools/source_shape.h"

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
        if (!entry.is_regular_file() || !extensions.contains(entry.path().extension())) {
          continue;
        }
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
  if (!visited.insert(file).second || !sources().contains(file)) {
    return "";
  }
  for (const std::string& include : includes_of(sources().at(file))) {
    if (is_torch_include(include)) {
      return file + " -> " + include;
    }
    const std::string rest = path_to_torch(include, visited);
    if (!rest.empty()) {
      return file + " -> " + rest;
    }
  }
  return "";
}

// For discover_tests_test.py: Catch2 reads such a name as "all but".
TEST_CASE("~a name may begin like a negation, with [brackets], commas and \"quotes\"") {
  SUCCEED();
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
  CHECK(bad("sp/layout/a.cpp", "engine/models/decoder.h"));
  CHECK(bad("sp/mesh/a.h", "rl/config/config.h"));
  CHECK(bad("engine/models/a.cpp", "rl/trainer/trainer.h"));
  CHECK(bad("engine/models/a.cpp", "rollout_bridge/protocol/schema.h"));
  CHECK(bad("rollout_bridge/a.cpp", "sp/layout/range.h"));
  CHECK(bad("rl/trainer/trainer.cpp", "tools/launch/launcher.h"));
  CHECK(bad("rl/trainer/trainer.cpp", "tests/support/catch.h"));
  CHECK(bad("rl/worker/a.cpp", "rl/trainer/training_run.h"));
  CHECK(bad("rl/worker/a.cpp", "rollout_bridge/trainer/journal.h"));
  CHECK_FALSE(bad("rl/worker/a.cpp", "rollout_bridge/worker/worker_endpoint.h"));
  CHECK_FALSE(bad("tools/main.cpp", "rl/trainer/trainer.h"));
  CHECK_FALSE(bad("rl/trainer/trainer.cpp", "engine/models/decoder.h"));
  CHECK_FALSE(bad("rl/trainer/trainer.cpp", "rollout_bridge/protocol/schema.h"));
  CHECK_FALSE(bad("engine/models/a.cpp", "sp/attention/attention.h"));
  CHECK_FALSE(bad("sp/mesh/a.h", "vector"));

  CHECK(bad("rollout_bridge/a.h", "ATen/core/Tensor.h"));
  CHECK(bad("sp/plan/a.cpp", "c10/util/Exception.h"));
  CHECK(bad("rl/report/a.cpp", "torch/csrc/distributed/c10d/Store.hpp"));
  CHECK_FALSE(bad("sp/mesh/a.cpp", "ATen/ATen.h"));
  CHECK(bad("engine/models/a.h", "torch/torch.h"));
  CHECK_FALSE(bad("engine/models/a.cpp", "torch/torch.h"));

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

TEST_CASE("folders that include each other are found, a file outside the layers is not") {
  const auto found =
      two_way_folders({{"rl/trainer/trainer.h", "#include \"rl/worker/link.h\"\n"},
                       {"rl/worker/link.cpp", "#include \"rl/trainer/trainer.h\"\n"},
                       {"rl/data/text.cpp", "#include \"rl/config/config.h\"\n"},
                       {"sp/plan/plan.cpp", "#include \"sp/plan/plan.h\"\n#include <vector>\n"}});
  REQUIRE(found.size() == 1);
  CHECK(found.begin()->first == "rl/trainer <-> rl/worker");
  CHECK(found.begin()->second ==
        "rl/trainer/trainer.h includes rl/worker/link.h; rl/worker/link.cpp includes "
        "rl/trainer/trainer.h");
}

TEST_CASE("no two second-level folders include each other") {
  for (const auto& [pair, example] : two_way_folders(sources())) {
    INFO(pair << ": " << example);
    CHECK(false);
  }
}

TEST_CASE("functions and classes are measured as they are written") {
  const SourceShape shape = shape_of(R"cpp(
#define IGNORED \
      {             \
        {
    namespace a {
    struct Point {
      int x = 0, y = 0;
      std::function<void(int)> moved;
    };  // } a comment
    template <class T>
    class Box : public Base<T> {
     public:
      Box() : items_{1, 2}, name_("}") { add(); }
      Box(const Box&) = default;
      using Item = T;
      const T& get(int i) const;
      bool operator==(const Box&) const { return true; }

     private:
      std::vector<T> items_{};
      std::string name_ = std::string("{");
    };
    enum class E { kA, kB };
    const std::map<int, int> kTable = {{1, 2}};
    auto f(std::vector<int> v = {1}) -> int {
      const auto g = [&] { return v; };
      for (int i : g()) {
        use(i);
      }
    }
    }  // namespace a
  )cpp");
  REQUIRE(shape.classes.size() == 2);
  CHECK(shape.classes[0].name == "Point");
  CHECK(shape.classes[0].data == 2);
  CHECK(shape.classes[0].methods == 0);
  CHECK(shape.classes[1].name == "Box");
  CHECK(shape.classes[1].data == 2);
  CHECK(shape.classes[1].methods == 3);
  REQUIRE(shape.functions.size() == 3);
  CHECK(shape.functions[2].line == 25);
  CHECK(shape.functions[2].lines == 6);
}

// A body that fits on one screen. A class of 40 members: the largest table of settings has 34, and
// what is above was one class written in several files.
constexpr int kMaxFunctionLines = 70, kMaxMembers = 40;
TEST_CASE("functions have at most 70 lines and classes at most 40 members") {
  for (const auto& [file, text] : sources()) {
    const SourceShape shape = shape_of(text);
    for (const FunctionSize& function : shape.functions) {
      INFO(file << ":" << function.line << " has a function of " << function.lines << " lines");
      CHECK(function.lines <= kMaxFunctionLines);
    }
    for (const ClassSize& one : shape.classes) {
      INFO(file << ":" << one.line << " " << one.name << " has " << one.data << " data members and "
                << one.methods << " methods");
      CHECK(one.data + one.methods <= kMaxMembers);
    }
  }
}

TEST_CASE("torch-free folders reach no torch header through another file") {
  for (const auto& [file, text] : sources()) {
    if (!must_be_torch_free(file)) {
      continue;
    }
    std::set<std::string> visited;
    CHECK(path_to_torch(file, visited) == "");
  }
}

}  // namespace
}  // namespace ringside::tools
