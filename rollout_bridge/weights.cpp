#include "rollout_bridge/weights.h"

#include <xxhash.h>

#include <array>
#include <set>
#include <stdexcept>

namespace ringside::bridge {
namespace {

constexpr std::size_t kHexDigits = 32;
constexpr std::size_t kMaxDims = 8;

std::string hex128(XXH128_hash_t hash) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const uint64_t half : {hash.high64, hash.low64}) {
    for (int shift = 60; shift >= 0; shift -= 4) out += kDigits[(half >> shift) & 15];
  }
  return out;
}

// Bytes that shape x dtype make; an error that names the tensor otherwise.
Result<uint64_t> shape_bytes(const std::string& name, const std::string& dtype,
                             const std::vector<int64_t>& shape) {
  uint64_t product = dtype_size(dtype);
  if (product == 0) {
    return Error{Reason::kInvalidField, "tensor '" + name + "': unknown dtype '" + dtype + "'"};
  }
  if (shape.size() > kMaxDims) {
    return Error{Reason::kInvalidField, "tensor '" + name + "': " + std::to_string(shape.size()) +
                                            " dims, limit " + std::to_string(kMaxDims)};
  }
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(product, static_cast<uint64_t>(extent), &product)) {
      return Error{Reason::kInvalidField,
                   "tensor '" + name + "': shape with extent " + std::to_string(extent)};
    }
  }
  return product;
}

std::vector<TensorEntry> hash_all(const std::vector<NamedBuffer>& tensors) {
  std::vector<TensorEntry> entries;
  uint64_t offset = 0;
  for (const NamedBuffer& t : tensors) {
    const auto expected = shape_bytes(t.name, t.dtype, t.shape);
    if (!expected) throw std::invalid_argument(expected.error().detail);
    if (expected.value() != t.data.bytes.size()) {
      throw std::invalid_argument("tensor '" + t.name + "': shape and dtype make " +
                                  std::to_string(expected.value()) + " bytes, the buffer has " +
                                  std::to_string(t.data.bytes.size()));
    }
    entries.push_back(
        {t.name, t.dtype, t.shape, offset, expected.value(), tensor_hash(t.data.bytes)});
    offset += expected.value();
  }
  return entries;
}

bool is_hex128(const std::string& text) {
  return text.size() == kHexDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Status check_tensor(const TensorEntry& t, uint64_t offset) {
  const auto bytes = shape_bytes(t.name, t.dtype, t.shape);
  if (!bytes) return bytes.error();
  if (bytes.value() != t.bytes) {
    return Error{Reason::kInvalidField, "tensor '" + t.name + "': shape and dtype make " +
                                            std::to_string(bytes.value()) +
                                            " bytes, the manifest says " + std::to_string(t.bytes)};
  }
  if (t.offset != offset) {
    return Error{Reason::kInvalidField, "tensor '" + t.name + "': offset " +
                                            std::to_string(t.offset) + ", expected " +
                                            std::to_string(offset)};
  }
  if (!is_hex128(t.xxh3)) {
    return Error{Reason::kInvalidField, "tensor '" + t.name + "': xxh3 is not 32 hex digits"};
  }
  return Success{};
}

}  // namespace

std::string tensor_hash(std::span<const std::byte> bytes) {
  return hex128(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string root_hash(const std::vector<TensorEntry>& tensors) {
  std::string text;
  for (const TensorEntry& t : tensors) {
    text += t.name + '\t' + t.dtype + '\t';
    for (std::size_t i = 0; i < t.shape.size(); ++i) {
      if (i > 0) text += ',';
      text += std::to_string(t.shape[i]);
    }
    text += '\t' + t.xxh3 + '\n';
  }
  return hex128(XXH3_128bits(text.data(), text.size()));
}

std::shared_ptr<const WeightSnapshot> make_snapshot(std::string run_id, int64_t run_epoch,
                                                    int64_t version,
                                                    std::vector<NamedBuffer> tensors) {
  auto snapshot = std::make_shared<WeightSnapshot>();
  Manifest& m = snapshot->manifest;
  m.run_id = std::move(run_id);
  m.run_epoch = run_epoch;
  m.version = version;
  m.tensors = hash_all(tensors);
  m.root_hash = root_hash(m.tensors);
  if (Status s = validate(m); !s) throw std::invalid_argument(s.error().detail);
  for (NamedBuffer& t : tensors) snapshot->tensors.push_back(std::move(t.data));
  return snapshot;
}

std::string root_hash_of(const std::vector<NamedBuffer>& tensors) {
  return root_hash(hash_all(tensors));
}

Status validate(const Manifest& m, const Limits& limits) {
  const auto bad = [&](const std::string& what) {
    return Error{Reason::kInvalidField,
                 "manifest of version " + std::to_string(m.version) + ": " + what};
  };
  if (m.version < 0 || m.run_epoch < 0) {
    return bad("run_epoch " + std::to_string(m.run_epoch) + ", both must be >= 0");
  }
  if (m.encoding != "dense") return bad("encoding '" + m.encoding + "', expected 'dense'");
  if (m.base_version) return bad("base_version with encoding dense");
  if (m.tensors.empty() || m.tensors.size() > limits.max_tensors) {
    return bad(std::to_string(m.tensors.size()) + " tensors, expected 1 to " +
               std::to_string(limits.max_tensors));
  }
  std::set<std::string> names;
  uint64_t offset = 0;
  for (const TensorEntry& t : m.tensors) {
    if (t.name.empty() || !names.insert(t.name).second) {
      return bad("tensor name '" + t.name + "' is empty or repeated");
    }
    if (t.name.find_first_of("\t\n") != std::string::npos) return bad("TAB or LF in a tensor name");
    if (Status s = check_tensor(t, offset); !s) return s;
    if (t.bytes > limits.max_weight_bytes - offset) {
      return bad("more than " + std::to_string(limits.max_weight_bytes) + " bytes");
    }
    offset += t.bytes;
  }
  const std::string expected = root_hash(m.tensors);
  if (m.root_hash != expected) return bad("root_hash " + m.root_hash + ", expected " + expected);
  return Success{};
}

}  // namespace ringside::bridge
