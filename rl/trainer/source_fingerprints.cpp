#include "rl/trainer/source_fingerprints.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <utility>

#include "rl/config/adapter_names.h"
#include "rl/config/teacher.h"
#include "rl/data/record_set.h"
#include "rollout_bridge/base/content_hash.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kReadWhole = std::uintmax_t{64} << 20;
constexpr std::uintmax_t kHead = std::uintmax_t{1} << 20;
constexpr std::uintmax_t kBlocks = 4096;
constexpr std::size_t kBlock = 4096;

// Adds the bytes [begin, end) of the file.
void add_range(std::ifstream& file, std::uintmax_t begin, std::uintmax_t end,
               bridge::Hash128& hash) {
  std::array<char, 1 << 16> buffer;
  file.seekg(static_cast<std::streamoff>(begin));
  while (begin < end && file) {
    const auto wanted = std::min<std::uintmax_t>(buffer.size(), end - begin);
    file.read(buffer.data(), static_cast<std::streamsize>(wanted));
    hash.update(std::as_bytes(std::span(buffer.data(), static_cast<std::size_t>(file.gcount()))));
    begin += wanted;
  }
}

void add_file(const fs::path& path, bridge::Hash128& hash) {
  std::ifstream file(path, std::ios::binary);
  std::error_code failed;
  const std::uintmax_t size = fs::file_size(path, failed);
  if (!file || failed) {
    throw std::runtime_error(path.string() + ": cannot be read");
  }
  const std::string title = path.filename().string() + "\n" + std::to_string(size) + "\n";
  hash.update(std::as_bytes(std::span(title)));
  if (size <= kReadWhole) {
    add_range(file, 0, size, hash);
    return;
  }
  add_range(file, 0, kHead, hash);
  for (std::uintmax_t block = 1; block <= kBlocks; ++block) {
    const std::uintmax_t end = size / kBlocks * block;
    add_range(file, end - kBlock, end, hash);
  }
  add_range(file, size - kBlock, size, hash);
}

// Weights, configuration and tokenizer of a model's directory.
std::vector<fs::path> model_files(const fs::path& dir) {
  std::vector<fs::path> files;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(dir, absent)) {
    const std::string extension = entry.path().extension().string();
    if (entry.is_regular_file() &&
        (extension == ".safetensors" || extension == ".json" || extension == ".jinja")) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The same of the adapters that a run starts from.
std::vector<fs::path> adapter_files(const LoraConfig& lora) {
  std::vector<fs::path> files = model_files(adapter_start(lora, ""));
  for (const std::string& name : adapter_names(lora)) {
    std::ranges::copy(model_files(adapter_start(lora, name)), std::back_inserter(files));
  }
  return files;
}

}  // namespace

std::string fingerprint_of(const std::vector<fs::path>& files) {
  bridge::Hash128 hash;
  for (const fs::path& file : files) {
    add_file(file, hash);
  }
  return hash.hex();
}

SourceFingerprints source_fingerprints(const Config& config) {
  SourceFingerprints found;
  const auto add = [&](const std::string& key, const std::vector<fs::path>& files) {
    try {
      if (!files.empty()) {
        found[key] = fingerprint_of(files);
      }
    } catch (const std::runtime_error&) {
      // Whoever opens the file reports it.
    }
  };
  for (const auto& [key, path] :
       {std::pair("model.path", &config.model.path),
        std::pair("model.reference_path", &config.model.reference_path),
        std::pair("algorithm.critic.model_path", &config.algorithm.critic.model_path)}) {
    if (!path->empty()) {
      add(key, model_files(*path));
    }
  }
  if (!config.lora.path.empty()) {
    add("lora.path", adapter_files(config.lora));
  }
  for (const TeacherEntry& teacher : teachers_of(config.algorithm.distillation)) {
    if (!teacher.is_server()) {
      const std::string key = teacher.source.empty()
                                  ? "algorithm.distillation.teacher"
                                  : "algorithm.distillation.teachers of " + teacher.source;
      add(key, model_files(teacher.place));
    }
  }
  for (const auto& [key, files] :
       {std::pair("data.train", &config.data.train), std::pair("data.sft", &config.data.sft),
        std::pair("data.sft_eval", &config.data.sft_eval),
        std::pair("data.preferences", &config.data.preferences),
        std::pair("data.preferences_eval", &config.data.preferences_eval)}) {
    if (data_files_exist(*files)) {
      add(key, data_files(*files));
    }
  }
  return found;
}

}  // namespace ringside::rl
