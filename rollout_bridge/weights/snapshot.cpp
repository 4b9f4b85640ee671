#include "rollout_bridge/weights/snapshot.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <unordered_set>

#include "rollout_bridge/base/content_hash.h"
#include "rollout_bridge/weights/delta_codec.h"
#include "rollout_bridge/weights/shared_block.h"

namespace ringside::bridge {
namespace {

constexpr std::size_t kHexDigits = 32;
constexpr std::size_t kMaxDims = 8;

// Bytes of a tensor of this shape and dtype; the error names the tensor.
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
    if (!expected) {
      throw std::invalid_argument(expected.error().detail);
    }
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

void require_in_order(const std::vector<NamedBuffer>& tensors, const SharedBlock& block) {
  std::size_t offset = 0;
  for (const NamedBuffer& t : tensors) {
    const std::size_t bytes = t.data.bytes.size();
    if (offset + bytes > block.bytes().size() ||
        (bytes > 0 && t.data.bytes.data() != block.bytes().data() + offset)) {
      throw std::invalid_argument("tensor '" + t.name + "' does not lie at byte " +
                                  std::to_string(offset) + " of its shared block of " +
                                  std::to_string(block.bytes().size()) + " bytes");
    }
    offset += bytes;
  }
}

// The rules of TensorEntry's encodings; only a manifest with a base may have others than "dense".
bool encoding_fits(const TensorEntry& t, bool has_base) {
  if (t.encoding == "overwrite") {
    return has_base && t.changed >= 1 && t.changed <= t.bytes / dtype_size(t.dtype) &&
           t.payload_bytes >= 1 && t.payload_bytes < t.bytes;
  }
  return (t.encoding == "dense" || (has_base && t.encoding == "same")) && t.changed == 0 &&
         t.payload_bytes == 0;
}

bool same_layout(const Manifest& a, const Manifest& b) {
  return a.run_id == b.run_id && a.trainer_term == b.trainer_term &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const TensorEntry& x, const TensorEntry& y) {
                      return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape;
                    });
}

bool is_hex128(const std::string& text) {
  return text.size() == kHexDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Status check_tensor(const TensorEntry& t, uint64_t offset, bool has_base) {
  const auto bytes = shape_bytes(t.name, t.dtype, t.shape);
  if (!bytes) {
    return bytes.error();
  }
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
  if (!encoding_fits(t, has_base)) {
    return Error{Reason::kInvalidField,
                 "tensor '" + t.name + "': encoding '" + t.encoding + "' with " +
                     std::to_string(t.changed) + " changes in " + std::to_string(t.payload_bytes) +
                     " bytes, for a tensor of " + std::to_string(t.bytes) + " bytes " +
                     (has_base ? "with" : "without") + " a base"};
  }
  return Success{};
}

}  // namespace

std::string tensor_hash(std::span<const std::byte> bytes) { return hash128(bytes); }

std::string root_hash(const std::vector<TensorEntry>& tensors) {
  std::string text;
  for (const TensorEntry& t : tensors) {
    text += t.name + '\t' + t.dtype + '\t';
    for (std::size_t i = 0; i < t.shape.size(); ++i) {
      if (i > 0) {
        text += ',';
      }
      text += std::to_string(t.shape[i]);
    }
    text += '\t' + t.xxh3 + '\n';
  }
  return hash128(std::as_bytes(std::span(text)));
}

std::shared_ptr<const WeightSnapshot> make_snapshot(std::string run_id, int64_t trainer_term,
                                                    int64_t version,
                                                    std::vector<NamedBuffer> tensors,
                                                    std::shared_ptr<const SharedBlock> shared) {
  if (shared) {
    require_in_order(tensors, *shared);
  }
  auto snapshot = std::make_shared<WeightSnapshot>();
  Manifest& m = snapshot->manifest;
  m.run_id = std::move(run_id);
  m.trainer_term = trainer_term;
  m.version = version;
  m.tensors = hash_all(tensors);
  m.root_hash = root_hash(m.tensors);
  if (Status s = validate(m); !s) {
    throw std::invalid_argument(s.error().detail);
  }
  for (NamedBuffer& t : tensors) {
    snapshot->tensors.push_back(std::move(t.data));
  }
  snapshot->shared = std::move(shared);
  return snapshot;
}

std::string root_hash_of(const std::vector<NamedBuffer>& tensors) {
  return root_hash(hash_all(tensors));
}

std::shared_ptr<const WeightDelta> make_delta(const WeightSnapshot& base,
                                              const WeightSnapshot& next) {
  if (!same_layout(base.manifest, next.manifest) ||
      base.manifest.version >= next.manifest.version) {
    return nullptr;
  }
  auto delta = std::make_shared<WeightDelta>();
  delta->manifest = next.manifest;
  delta->manifest.encoding = "overwrite";
  delta->manifest.base_version = base.manifest.version;
  bool useful = false;
  DeltaScratch scratch;
  for (std::size_t i = 0; i < next.tensors.size(); ++i) {
    TensorEntry& t = delta->manifest.tensors[i];
    Buffer payload;
    auto changes = encode_overwrite(base.tensors[i].bytes, next.tensors[i].bytes,
                                    dtype_size(t.dtype), &scratch);
    if (changes) {
      t.encoding = changes->changed == 0 ? "same" : "overwrite";
      t.changed = changes->changed;
      t.payload_bytes = changes->payload.size();
      payload = Buffer::own(std::move(changes->payload));
      useful = true;
    }
    delta->payloads.push_back(std::move(payload));
  }
  return useful ? delta : nullptr;
}

Manifest dense_manifest(Manifest manifest) {
  manifest.encoding = "dense";
  manifest.base_version.reset();
  for (TensorEntry& t : manifest.tensors) {
    t.encoding = "dense";
    t.changed = t.payload_bytes = 0;
  }
  return manifest;
}

DeltaChain::DeltaChain(Options options) : options_(options) {
  if (options.full_every < 1) {
    throw std::invalid_argument("DeltaChain: full_every " + std::to_string(options.full_every) +
                                ", expected >= 1");
  }
}

std::shared_ptr<const WeightSnapshot> DeltaChain::extend(
    std::shared_ptr<const WeightSnapshot> next) {
  if (!options_.deltas) {
    return next;
  }
  if (base_ && since_full_ + 1 < options_.full_every) {
    auto with_delta = std::make_shared<WeightSnapshot>(*next);  // shares the bytes
    with_delta->delta = make_delta(*base_, *next);
    next = std::move(with_delta);
  }
  since_full_ = next->delta ? since_full_ + 1 : 0;
  base_ = next;
  return next;
}

Status validate(const Manifest& m, const Limits& limits) {
  const auto bad = [&](const std::string& what) {
    return Error{Reason::kInvalidField,
                 "manifest of version " + std::to_string(m.version) + ": " + what};
  };
  if (m.version < 0 || m.trainer_term < 0) {
    return bad("trainer_term " + std::to_string(m.trainer_term) + ", both must be >= 0");
  }
  if (m.encoding != "dense" && m.encoding != "overwrite") {
    return bad("encoding '" + m.encoding + "', expected 'dense' or 'overwrite'");
  }
  const bool has_base = m.encoding == "overwrite";
  if (m.base_version.has_value() != has_base) {
    return bad("encoding '" + m.encoding + (has_base ? "' without" : "' with") + " base_version");
  }
  if (has_base && (*m.base_version < 0 || *m.base_version >= m.version)) {
    return bad("base_version " + std::to_string(*m.base_version));
  }
  if (m.tensors.empty() || m.tensors.size() > limits.max_tensors) {
    return bad(std::to_string(m.tensors.size()) + " tensors, expected 1 to " +
               std::to_string(limits.max_tensors));
  }
  std::unordered_set<std::string_view> names;
  uint64_t offset = 0;
  for (const TensorEntry& t : m.tensors) {
    if (t.name.empty() || !names.insert(t.name).second) {
      return bad("tensor name '" + t.name + "' is empty or repeated");
    }
    if (t.name.find_first_of("\t\n") != std::string::npos) {
      return bad("TAB or LF in a tensor name");
    }
    if (Status s = check_tensor(t, offset, has_base); !s) {
      return s;
    }
    if (t.bytes > limits.max_weight_bytes - offset) {
      return bad("more than " + std::to_string(limits.max_weight_bytes) + " bytes");
    }
    offset += t.bytes;
  }
  const std::string expected = root_hash(m.tensors);
  if (m.root_hash != expected) {
    return bad("root_hash " + m.root_hash + ", expected " + expected);
  }
  return Success{};
}

}  // namespace ringside::bridge
