#include "engine/io/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "engine/json/json_text.h"

namespace ringside::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors stores little-endian");

using Json = nlohmann::json;

// The limit of the Python package.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kLengthBytes = 8;

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 10> kDtypes = {{
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"BF16", at::kBFloat16},
    {"F16", at::kHalf},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E8M0", at::kFloat8_e8m0fnu},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
}};

// Parses and refuses a repeated key, of which nlohmann would silently keep the last.
Json parse_unique(std::string_view text) {
  std::vector<std::set<std::string>> keys_by_depth;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      keys_by_depth.resize(static_cast<std::size_t>(depth) + 2);
      keys_by_depth.back().clear();
    } else if (event == Json::parse_event_t::key) {
      const auto name = parsed.get<std::string>();
      if (!keys_by_depth.at(static_cast<std::size_t>(depth)).insert(name).second) {
        throw std::runtime_error("the name '" + name + "' comes twice");
      }
    }
    return true;
  };
  return Json::parse(text, check);
}

at::ScalarType parse_dtype(const std::string& name) {
  for (const auto& [text, dtype] : kDtypes) {
    if (text == name) {
      return dtype;
    }
  }
  throw std::runtime_error("dtype '" + name +
                           "' is none of F64 F32 BF16 F16 F8_E4M3 F8_E8M0 I64 I32 U8 BOOL");
}

std::string_view dtype_name(at::ScalarType dtype, const std::string& tensor) {
  for (const auto& [text, value] : kDtypes) {
    if (value == dtype) {
      return text;
    }
  }
  throw std::runtime_error("tensor '" + tensor + "': dtype " + c10::toString(dtype) +
                           " is none of F64 F32 BF16 F16 F8_E4M3 F8_E8M0 I64 I32 U8 BOOL");
}

// Bytes of a tensor of this shape, checked against the `limit` bytes that exist.
uint64_t checked_bytes(const std::vector<int64_t>& shape, at::ScalarType dtype, uint64_t limit) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    return 0;
  }
  uint64_t bytes = c10::elementSize(dtype);
  for (const int64_t size : shape) {
    if (bytes > limit / static_cast<uint64_t>(size)) {
      throw std::runtime_error("its shape asks for more than the " + std::to_string(limit) +
                               " bytes of data in the file");
    }
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

SafetensorsEntry parse_entry(const std::string& name, const Json& json, uint64_t data_bytes) {
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = parse_dtype(json.at("dtype").get<std::string>());
  for (const Json& size : json.at("shape")) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      throw std::runtime_error("shape " + json.at("shape").dump() + " holds " + size.dump() +
                               ", expected whole numbers from 0");
    }
    entry.shape.push_back(size.get<int64_t>());
  }
  const Json& offsets = json.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    throw std::runtime_error("data_offsets is " + offsets.dump() + ", expected [begin, end]");
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  if (entry.begin > entry.end || entry.end > data_bytes) {
    throw std::runtime_error("data_offsets is " + offsets.dump() + " in a file with " +
                             std::to_string(data_bytes) + " bytes of data");
  }
  const uint64_t bytes = checked_bytes(entry.shape, entry.dtype, data_bytes);
  if (bytes != entry.end - entry.begin) {
    throw std::runtime_error("shape " + json.at("shape").dump() + " of " + json.at("dtype").dump() +
                             " takes " + std::to_string(bytes) + " bytes, data_offsets " +
                             offsets.dump() + " give it " +
                             std::to_string(entry.end - entry.begin));
  }
  return entry;
}

// Orders the entries by their bytes and checks that they fill the data without overlap or gap.
void sort_and_check_cover(std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != covered) {
      throw std::runtime_error("tensor '" + entry.name + "' begins at byte " +
                               std::to_string(entry.begin) + ", the one before it ends at " +
                               std::to_string(covered));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw std::runtime_error("the tensors end at byte " + std::to_string(covered) + " of " +
                             std::to_string(data_bytes) + " bytes of data");
  }
}

// Fills in the entries' offsets.
std::string header_text(std::vector<SafetensorsEntry>& entries,
                        std::map<std::string, std::string> metadata) {
  metadata["format"] = "pt";
  Json header = {{"__metadata__", metadata}};
  uint64_t offset = 0;
  for (SafetensorsEntry& entry : entries) {
    entry.begin = offset;
    entry.end = offset + static_cast<uint64_t>(c10::multiply_integers(entry.shape)) *
                             c10::elementSize(entry.dtype);
    const Json json = {{"dtype", dtype_name(entry.dtype, entry.name)},
                       {"shape", entry.shape},
                       {"data_offsets", {entry.begin, entry.end}}};
    if (entry.name == "__metadata__" || !header.emplace(entry.name, json).second) {
      throw std::runtime_error("the name '" + entry.name + "' comes twice or is reserved");
    }
    offset = entry.end;
  }
  std::string text = header.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  return text;
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : path_(std::move(path)), file_(std::make_shared<MappedFile>(path_)) {
  std::string where;
  try {
    uint64_t header_bytes = 0;
    if (file_->size() < kLengthBytes) {
      throw std::runtime_error("the file has " + std::to_string(file_->size()) +
                               " bytes, its header length alone takes 8");
    }
    const std::size_t head_bytes = std::min<std::size_t>(file_->size(), 64);
    if (is_lfs_pointer({reinterpret_cast<const char*>(file_->data()), head_bytes})) {
      throw std::runtime_error(lfs_advice());
    }
    std::memcpy(&header_bytes, file_->data(), kLengthBytes);
    if (header_bytes > kMaxHeaderBytes || header_bytes > file_->size() - kLengthBytes) {
      throw std::runtime_error("is not a safetensors file: the header length is " +
                               std::to_string(header_bytes) + " in a file of " +
                               std::to_string(file_->size()) + " bytes (at most " +
                               std::to_string(kMaxHeaderBytes) + ")");
    }
    data_begin_ = kLengthBytes + header_bytes;
    const uint64_t data_bytes = file_->size() - data_begin_;
    const Json header =
        parse_unique({reinterpret_cast<const char*>(file_->data()) + kLengthBytes, header_bytes});
    if (!header.is_object()) {
      throw std::runtime_error("the header is not a JSON object");
    }
    for (const auto& [name, value] : header.items()) {
      where = "'" + name + "': ";
      if (name == "__metadata__") {
        metadata_ = value.get<std::map<std::string, std::string>>();
      } else {
        entries_.push_back(parse_entry(name, value, data_bytes));
      }
    }
    where.clear();
    sort_and_check_cover(entries_, data_bytes);
  } catch (const Json::exception& e) {
    throw std::runtime_error(path_.string() + ": " + where +
                             "the header is not that of safetensors: " + json_problem(e));
  } catch (const std::exception& e) {
    throw std::runtime_error(path_.string() + ": " + where + e.what());
  }
}

at::Tensor SafetensorsFile::tensor(std::size_t i) const {
  const SafetensorsEntry& entry = entries_.at(i);
  const at::TensorOptions options = at::TensorOptions().dtype(entry.dtype);
  if (entry.begin == entry.end) {
    return at::empty(entry.shape, options);
  }
  std::byte* bytes = file_->data() + data_begin_ + entry.begin;
  if (reinterpret_cast<uintptr_t>(bytes) % c10::elementSize(entry.dtype) == 0) {
    return at::from_blob(
        bytes, entry.shape, [keep = file_](void*) {}, options);
  }
  const at::Tensor copy = at::empty(entry.shape, options);
  std::memcpy(copy.data_ptr(), bytes, entry.end - entry.begin);
  return copy;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path,
                                     std::vector<SafetensorsEntry> entries,
                                     SafetensorsOptions options)
    : path_(std::move(path)),
      entries_(std::move(entries)),
      options_(std::move(options)),
      file_(path_) {
  std::string header;
  try {
    header = header_text(entries_, options_.metadata);
  } catch (const std::runtime_error& e) {
    throw std::runtime_error(path_.string() + ": " + e.what());
  }
  const uint64_t header_bytes = header.size();
  write_bytes(&header_bytes, kLengthBytes);
  write_bytes(header.data(), header.size());
}

void SafetensorsWriter::write_bytes(const void* data, std::size_t size) {
  file_.write(data, size);
  if (options_.on_bytes) {
    options_.on_bytes({static_cast<const std::byte*>(data), size});
  }
}

void SafetensorsWriter::write(const at::Tensor& tensor) {
  if (next_ == entries_.size()) {
    throw std::runtime_error(path_.string() + ": all " + std::to_string(next_) +
                             " tensors are written, there is no place for another");
  }
  const SafetensorsEntry& entry = entries_[next_];
  if (tensor.sizes() != at::IntArrayRef(entry.shape)) {
    throw std::runtime_error(path_.string() + ": tensor '" + entry.name + "' has shape " +
                             c10::str(tensor.sizes()) + ", expected " +
                             c10::str(at::IntArrayRef(entry.shape)));
  }
  const at::Tensor stored = tensor.detach().to(at::kCPU).to(entry.dtype).contiguous();
  write_bytes(stored.const_data_ptr(), stored.nbytes());
  ++next_;
}

void SafetensorsWriter::close() {
  if (next_ != entries_.size()) {
    throw std::runtime_error(path_.string() + ": tensor '" + entries_[next_].name +
                             "' was not written");
  }
  file_.close();
}

void write_safetensors(const std::filesystem::path& path, std::vector<TensorToWrite> tensors,
                       const SafetensorsOptions& options) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  std::vector<SafetensorsEntry> entries;
  for (const TensorToWrite& t : tensors) {
    entries.push_back({t.name, t.dtype, t.tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, std::move(entries), options);
  for (const TensorToWrite& t : tensors) {
    writer.write(t.tensor);
  }
  writer.close();
}

}  // namespace ringside::engine
