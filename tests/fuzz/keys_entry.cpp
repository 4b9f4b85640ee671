#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "rollout_bridge/transport/curve_keys.h"
#include "tests/fuzz/entries.h"
#include "tests/rollout_bridge/samples.h"

namespace ringside::bridge::fuzz {
namespace {

namespace fs = std::filesystem;

void write_file(const fs::path& path, std::span<const uint8_t> bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

// The first words of the lines of a file that are long enough to be told from other text.
std::vector<std::string> long_words(const std::string& text) {
  constexpr std::size_t kLong = 12;
  std::vector<std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::string word;
    if (std::istringstream(line) >> word && word.size() >= kLong) {
      out.push_back(word);
    }
  }
  return out;
}

// The error may name the file, but nothing that is in it: it may be a secret in the wrong place.
template <class Read>
void read_keys(const Read& read, const fs::path& path, const std::string& text) {
  try {
    read();
  } catch (const std::invalid_argument& error) {
    const std::string message = error.what();
    require(message.starts_with(path.string() + ": "));
    const std::string what = message.substr(path.string().size());
    for (const std::string& word : long_words(text)) {
      require(what.find(word) == std::string::npos);
    }
  }
}

}  // namespace

void keys(std::span<const uint8_t> bytes) {
  const test::TempDir dir;
  const fs::path path = dir.path() / "k";
  write_file(path, bytes);
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  const std::string text(bytes.begin(), bytes.end());
  read_keys(
      [&] {
        const KeyPair pair = read_secret_key(path);
        require(is_key(pair.secret_key) && is_key(pair.public_key));
      },
      path, text);
  read_keys([&] { require(is_key(read_public_key(path))); }, path, text);
  try {
    std::set<std::string> seen;
    for (const AllowedKey& key : read_allowed_keys(path)) {
      require(is_key(key.public_key) && !key.name.empty() && seen.insert(key.public_key).second);
    }
  } catch (const std::invalid_argument&) {
    // public text: the error may name what is there twice
  }
}

}  // namespace ringside::bridge::fuzz
