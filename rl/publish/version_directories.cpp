#include "rl/publish/version_directories.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/io/adapter_directory.h"
#include "engine/io/atomic_directory.h"
#include "engine/io/weight_files.h"
#include "engine/models/decoder_units.h"

namespace ringside::rl {
namespace {

// Matches names such as e0001-v000012 only, so that other files in the directory are left alone.
bool is_version_name(const std::string& name) {
  const auto digits = [&](std::size_t begin, std::size_t end) {
    return begin < end && std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin),
                                      name.begin() + static_cast<std::ptrdiff_t>(end),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  const std::size_t middle = name.find("-v");
  return middle != std::string::npos && name[0] == 'e' && digits(1, middle) &&
         digits(middle + 2, name.size());
}

}  // namespace

VersionDirectories::VersionDirectories(std::filesystem::path root, int64_t keep,
                                       at::ScalarType storage, std::filesystem::path copy_from)
    : root_(std::move(root)), keep_(keep), storage_(storage), copy_from_(std::move(copy_from)) {}

std::filesystem::path VersionDirectories::path_of(int64_t trainer_term, int64_t version) const {
  char name[64];
  std::snprintf(name, sizeof name, "e%04lld-v%06lld", static_cast<long long>(trainer_term),
                static_cast<long long>(version));
  return root_ / name;
}

std::filesystem::path VersionDirectories::write(const engine::Decoder& decoder,
                                                int64_t trainer_term, int64_t version) const {
  return write(trainer_term, version, [&](const std::filesystem::path& dir) {
    engine::save_decoder(decoder, dir, storage_, save_options());
  });
}

std::filesystem::path VersionDirectories::write(const engine::ModelConfig& config,
                                                const std::vector<engine::TensorToWrite>& tensors,
                                                int64_t trainer_term, int64_t version) const {
  return write(trainer_term, version, [&](const std::filesystem::path& dir) {
    engine::save_model(config, with_constants(config, tensors), dir, storage_, save_options());
  });
}

std::vector<engine::TensorToWrite> VersionDirectories::with_constants(
    const engine::ModelConfig& config, std::vector<engine::TensorToWrite> tensors) const {
  if (!config.vision) {
    return tensors;
  }
  std::set<std::string> published;
  for (const engine::TensorToWrite& tensor : tensors) {
    published.insert(tensor.name);
  }
  const engine::WeightFiles files(copy_from_, config);
  for (const engine::ParamSpec& spec : engine::decoder_specs(config)) {
    if (!published.contains(spec.name)) {
      tensors.push_back({spec.name, files.read(spec.name), storage_});
    }
  }
  return tensors;
}

engine::SaveOptions VersionDirectories::save_options() const {
  engine::SaveOptions options;
  options.copy_from = copy_from_;
  return options;
}

std::filesystem::path VersionDirectories::write(
    int64_t trainer_term, int64_t version,
    const std::function<void(const std::filesystem::path&)>& save) const {
  const auto target = path_of(trainer_term, version);
  engine::AtomicDirectory directory(target);
  save(directory.path());
  directory.commit();
  prune();
  return target;
}

std::filesystem::path VersionDirectories::write_adapters(const engine::Adapters& adapters,
                                                         const std::string& base_model,
                                                         int64_t trainer_term,
                                                         int64_t version) const {
  return write(trainer_term, version, [&](const std::filesystem::path& dir) {
    engine::save_adapters(adapters, dir, base_model);
  });
}

std::filesystem::path VersionDirectories::write_adapters(const NamedAdapters& adapters,
                                                         const std::string& base_model,
                                                         int64_t trainer_term,
                                                         int64_t version) const {
  return write(trainer_term, version, [&](const std::filesystem::path& dir) {
    for (const auto& [name, own] : adapters) {
      std::filesystem::create_directories(dir / name);
      engine::save_adapters(*own, dir / name, base_model);
    }
  });
}

void VersionDirectories::prune() const {
  if (keep_ == 0) {
    return;
  }
  std::vector<std::filesystem::path> versions;
  for (const auto& entry : std::filesystem::directory_iterator(root_)) {
    if (is_version_name(entry.path().filename().string())) {
      versions.push_back(entry.path());
    }
  }
  std::sort(versions.begin(), versions.end());
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < versions.size(); ++i) {
    std::filesystem::remove_all(versions[i]);
  }
}

}  // namespace ringside::rl
