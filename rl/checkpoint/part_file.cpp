#include "rl/checkpoint/part_file.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <utility>

#include "engine/device/device_event.h"
#include "rollout_bridge/base/content_hash.h"

namespace ringside::rl {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kAlignment = 16;
constexpr const char* kShapes = "shapes";

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Checks a part's size before it is mapped: a truncated file is named as such.
fs::path checked_path(const fs::path& dir, const PartFile& expected) {
  const fs::path path = dir / expected.name;
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) {
    throw std::runtime_error(path.string() + " is missing or cannot be read (" + error.message() +
                             "), but the checkpoint's manifest names it");
  }
  if (static_cast<int64_t>(bytes) != expected.bytes) {
    throw std::runtime_error(path.string() + " has " + std::to_string(bytes) +
                             " bytes, the checkpoint's manifest says " +
                             std::to_string(expected.bytes));
  }
  return path;
}

int64_t parse_number(const std::string& text, const std::string& what) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) {
    throw std::runtime_error(what + " is '" + text + "', expected a whole number from 0");
  }
  return number;
}

// The name of a slice's tensor in a file.
std::string stored_name(const engine::NamedSlice& slice) {
  std::string name = slice.name;
  if (slice.columns) {
    name.append("[").append(std::to_string(slice.columns->begin)).append(":");
    name.append(std::to_string(slice.columns->end)).append("]");
  }
  return name.append("@").append(std::to_string(slice.begin));
}

// Sets name, columns and begin from stored_name().
// Throws: std::runtime_error when it is none.
void parse_name(const std::string& stored, PartReader::Entry& entry) {
  const auto at = stored.rfind('@');
  if (at == std::string::npos) {
    throw std::runtime_error("tensor '" + stored + "' is no slice NAME@BEGIN");
  }
  entry.begin = parse_number(stored.substr(at + 1), "the begin of " + stored);
  entry.name = stored.substr(0, at);
  const auto bracket = entry.name.rfind('[');
  if (bracket == std::string::npos || !entry.name.ends_with("]")) {
    return;
  }
  const std::string columns = entry.name.substr(bracket + 1, entry.name.size() - bracket - 2);
  const auto colon = columns.find(':');
  if (colon == std::string::npos) {
    throw std::runtime_error("tensor '" + stored + "' is no slice NAME[C0:C1]@BEGIN");
  }
  entry.columns = sp::Range{parse_number(columns.substr(0, colon), "the columns of " + stored),
                            parse_number(columns.substr(colon + 1), "the columns of " + stored)};
  entry.name.resize(bracket);
}

// Elements of the block that an entry is of; -1: the parameter has no such columns.
int64_t block_elements(const PartReader::Entry& entry, const std::vector<int64_t>& shape) {
  const int64_t all = c10::multiply_integers(shape);
  if (!entry.columns) {
    return all;
  }
  const int64_t rows = shape.empty() ? 0 : shape.front();
  const bool fits = rows > 0 && !entry.columns->empty() && entry.columns->end <= all / rows;
  return fits ? rows * entry.columns->size() : -1;
}

}  // namespace

PartFile write_part(const fs::path& dir, const PartId& id,
                    const std::vector<engine::NamedSlice>& slices) {
  nlohmann::json shapes = nlohmann::json::object();
  std::vector<engine::TensorToWrite> tensors;
  for (const engine::NamedSlice& slice : slices) {
    shapes[slice.name] = slice.shape;
    tensors.push_back({stored_name(slice), slice.values, slice.values.scalar_type()});
  }
  bridge::Hash128 hash;
  engine::SafetensorsOptions options;
  options.metadata = {{"step", std::to_string(id.step)},
                      {"part", std::to_string(id.part)},
                      {"parts", std::to_string(id.parts)},
                      {kShapes, shapes.dump()}};
  options.on_bytes = [&](std::span<const std::byte> bytes) { hash.update(bytes); };
  PartFile part{part_name(id.part, id.parts), 0, ""};
  const fs::path path = dir / part.name;
  engine::write_safetensors(path, std::move(tensors), options);
  engine::sync_path(path);
  part.bytes = static_cast<int64_t>(fs::file_size(path));
  part.hash = hash.hex();
  return part;
}

void HostCopy::copy(const std::vector<engine::NamedSlice>& slices) {
  const at::NoGradGuard no_grad;
  int64_t bytes = 0;
  c10::Device device(c10::kCPU);
  for (const engine::NamedSlice& slice : slices) {
    bytes += aligned(static_cast<int64_t>(slice.values.nbytes()));
    if (!slice.values.device().is_cpu()) {
      device = slice.values.device();
    }
  }
  if (!memory_.defined() || memory_.numel() < bytes) {
    memory_ = at::Tensor();  // freed before the larger one is allocated
    memory_ =
        at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(!device.is_cpu()));
  }
  slices_.clear();
  int64_t offset = 0;
  for (const engine::NamedSlice& slice : slices) {
    const auto size = static_cast<int64_t>(slice.values.nbytes());
    at::Tensor host = memory_.narrow(0, offset, size).view(slice.values.scalar_type());
    host.copy_(slice.values, /*non_blocking=*/true);
    slices_.push_back({slice.name, slice.shape, slice.begin, std::move(host), slice.columns});
    offset += aligned(size);
  }
  engine::DeviceEvent arrived(device.type());
  arrived.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  arrived.synchronize();
}

PartReader::PartReader(const fs::path& dir, const PartFile& expected, const PartId& id)
    : expected_(expected), file_(checked_path(dir, expected)) {
  try {
    read_metadata(id);
    read_entries();
  } catch (const std::exception& error) {
    throw std::runtime_error(path().string() + ": " + error.what());
  }
}

void PartReader::read_metadata(const PartId& id) {
  const auto number = [&](const char* key) {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) {
      throw std::runtime_error(std::string("is no part of a checkpoint: its metadata has no '") +
                               key + "'");
    }
    return parse_number(found->second, key);
  };
  const PartId found{number("step"), number("part"), number("parts")};
  if (found.step != id.step || found.part != id.part || found.parts != id.parts) {
    const auto text = [](const PartId& which) {
      return "part " + std::to_string(which.part) + " of " + std::to_string(which.parts) +
             " of the checkpoint of step " + std::to_string(which.step);
    };
    throw std::runtime_error("is " + text(found) + ", but the manifest is that of step " +
                             std::to_string(id.step) + " and expects " + text(id));
  }
  if (!file_.metadata().contains(kShapes)) {
    throw std::runtime_error("its metadata has no 'shapes'");
  }
  shapes_ = nlohmann::json::parse(file_.metadata().at(kShapes));
}

void PartReader::read_entries() {
  for (std::size_t i = 0; i < file_.entries().size(); ++i) {
    const engine::SafetensorsEntry& stored = file_.entries()[i];
    if (stored.shape.size() != 1) {
      throw std::runtime_error("tensor '" + stored.name + "' is no slice: it has " +
                               std::to_string(stored.shape.size()) + " dims");
    }
    Entry entry;
    parse_name(stored.name, entry);
    entry.end = entry.begin + stored.shape[0];
    entry.dtype = stored.dtype;
    entry.index = i;
    const auto shape = shapes_.find(entry.name);
    if (shape == shapes_.end() || entry.end > block_elements(entry, shape->second)) {
      throw std::runtime_error("tensor '" + stored.name + "' has " +
                               std::to_string(stored.shape[0]) +
                               " elements, which its parameter's shape does not hold");
    }
    entries_.push_back(std::move(entry));
  }
}

void PartReader::verify() const {
  const engine::MappedFile mapped(path());
  const std::string hash = bridge::hash128({mapped.data(), mapped.size()});
  if (hash != expected_.hash) {
    throw std::runtime_error(path().string() + " has hash " + hash +
                             ", the checkpoint's manifest says " + expected_.hash +
                             ": the file was changed, or belongs to another checkpoint");
  }
}

}  // namespace ringside::rl
