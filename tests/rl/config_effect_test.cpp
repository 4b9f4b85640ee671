// Guards: a key that is accepted and does nothing. Every key of the schema has an entry; an entry
// changes the key and runs the code that reads it, before and after, and what comes out must
// differ. Keys that only a whole process or an inference server shows name the test that does so,
// and that test must exist.
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "rl/config/load.h"
#include "rl/config/schema.h"
#include "tests/rl/config_effects.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;
using namespace ringside::test;
namespace fs = std::filesystem;

namespace {

const fs::path kRoot = RINGSIDE_SOURCE_DIR;

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Sets the key of a word "section.key=value".
void set_key(YAML::Node node, const std::string& word) {
  const std::size_t end = word.find_first_of(".=");
  const std::string name = word.substr(0, end), rest = word.substr(end + 1);
  if (word[end] == '=') {
    node[name] = YAML::Load(rest);
  } else {
    set_key(node[name], rest);
  }
}

// common() as a recipe, below the words of a command line: a word may switch off what reads a key
// of it.
rl::Config config_of(const fs::path& recipe, const Words& words) {
  return rl::load_config_or_throw({recipe}, words);
}

}  // namespace

TEST_CASE("every key has one entry in the table of effects, and every entry is a key") {
  std::multiset<std::string> entries;
  for (const Effect& effect : all_effects()) {
    entries.insert(effect.key);
  }
  for (const Elsewhere& entry : elsewhere()) {
    entries.insert(entry.key);
  }
  const std::set<std::string> keys(rl::known_keys().begin(), rl::known_keys().end());
  for (const std::string& key : keys) {
    INFO(key);
    CHECK(entries.count(key) == 1);
  }
  for (const std::string& key : entries) {
    INFO(key);
    CHECK(keys.contains(key));
  }
}

TEST_CASE("changing a key changes what the code that reads it makes of it") {
  const TemporaryDirectory folder;
  const fs::path recipe = folder.path() / "common.yaml";
  YAML::Node keys(YAML::NodeType::Map);
  for (const std::string& word : common()) {
    set_key(keys, word);
  }
  write_file(recipe, YAML::Dump(keys) + "\n");
  std::map<std::string, std::string>
      before;  // by consumer-independent text of the base: bases are shared
  for (const Effect& effect : all_effects()) {
    INFO(effect.key << " = " << effect.value);
    const rl::Config plain = config_of(recipe, effect.base);
    const rl::Config changed =
        config_of(recipe, with(effect.base, {effect.key + "=" + effect.value}));
    REQUIRE(rl::dump(plain) != rl::dump(changed));
    const auto target = effect.consumer.target<std::string (*)(const rl::Config&)>();
    const std::string name =
        (target == nullptr ? effect.key
                           : std::to_string(reinterpret_cast<std::uintptr_t>(*target))) +
        rl::dump(plain);
    if (!before.contains(name)) {
      before[name] = effect.consumer(plain);
    }
    CHECK(before[name] != effect.consumer(changed));
  }
}

TEST_CASE("a run repeats itself, so that a difference is the key's") {
  const rl::Config config = rl::load_config_or_throw({}, with(common(), kKl));
  CHECK(recorded(config) == recorded(config));
  const rl::Config critic = rl::load_config_or_throw({}, with(common(), kGae));
  CHECK(recorded(critic) == recorded(critic));
  CHECK(sampled(config) == sampled(config));
  CHECK(scored(config) == scored(config));
}

TEST_CASE("tests and code that keys are said to be read by exist") {
  for (const Elsewhere& entry : elsewhere()) {
    INFO(entry.key << " in " << entry.file);
    bool found = false;
    if (fs::is_directory(kRoot / entry.file)) {
      for (const auto& file : fs::recursive_directory_iterator(kRoot / entry.file)) {
        found = found || (file.is_regular_file() &&
                          text_of(file.path()).find(entry.text) != std::string::npos);
      }
    } else {
      found = text_of(kRoot / entry.file).find(entry.text) != std::string::npos;
    }
    CHECK(found);
  }
}
