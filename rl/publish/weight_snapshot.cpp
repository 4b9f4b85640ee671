#include "rl/publish/weight_snapshot.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/device/download.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::rl {
namespace {

const std::map<std::string, at::ScalarType>& dtypes() {
  static const std::map<std::string, at::ScalarType> kDtypes{
      {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"F16", at::kHalf}, {"F64", at::kDouble}};
  return kDtypes;
}

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, value] : dtypes()) {
    if (value == dtype) {
      return name;
    }
  }
  TORCH_CHECK(false, "weights are published in F32, BF16, F16 or F64, got ", dtype);
}

// The dtype of a TensorEntry or a NamedBuffer.
template <class Named>
at::ScalarType dtype_of(const Named& tensor) {
  const auto found = dtypes().find(tensor.dtype);
  TORCH_CHECK(found != dtypes().end(), "weights: tensor ", tensor.name, " has dtype ", tensor.dtype,
              ", expected F32, BF16, F16 or F64");
  return found->second;
}

// The bytes of these elements of a flat buffer. The view keeps the buffer alive.
bridge::Buffer view_bytes(engine::UnitLayout::Range range,
                          const std::shared_ptr<const at::Tensor>& flat) {
  const auto element = flat->element_size();
  const auto* begin = static_cast<const std::byte*>(flat->const_data_ptr());
  return {flat,
          {begin + static_cast<std::size_t>(range.offset) * element,
           static_cast<std::size_t>(range.numel) * element}};
}

// A unit's values in one dtype after another, each converted once for all parameters. A model has a
// dozen small parameters per large one, and a conversion of its own would cost each of them more
// than its elements do.
class Converted {
 public:
  // values: flat, in the layout.
  Converted(const engine::UnitLayout& layout, at::Tensor values)
      : layout_(layout), values_(std::move(values)) {}
  bridge::NamedBuffer parameter(std::size_t i, at::ScalarType dtype) {
    auto& flat = flats_[dtype];
    if (!flat) {
      flat = std::make_shared<const at::Tensor>(values_.to(at::kCPU, dtype));
    }
    const engine::ParamSpec& spec = layout_.specs()[i];
    return {spec.name, dtype_name(dtype), spec.shape, view_bytes(layout_.range(i), flat)};
  }

 private:
  const engine::UnitLayout& layout_;
  at::Tensor values_;
  std::map<at::ScalarType, std::shared_ptr<const at::Tensor>> flats_;
};

void require_size(const bridge::SharedBlock& block, std::size_t bytes) {
  if (block.bytes().size() != bytes) {
    throw std::invalid_argument("weights of " + std::to_string(bytes) + " bytes for a block of " +
                                std::to_string(block.bytes().size()));
  }
}

// Copies the buffers, one after another, into the block, which has their size; they then are views
// of it.
void move_into(const std::shared_ptr<bridge::SharedBlock>& block,
               std::vector<bridge::NamedBuffer>& buffers) {
  std::span<std::byte> rest = block->bytes();
  for (bridge::NamedBuffer& buffer : buffers) {
    const auto from = buffer.data.bytes;
    std::copy(from.begin(), from.end(), rest.begin());
    buffer.data = {block, rest.first(from.size())};
    rest = rest.subspan(from.size());
  }
}

// A trained unit of one of the decoders, and what its parameters' names begin with.
template <class Unit>
struct PrefixedUnit {
  std::string prefix;
  Unit* unit;
};

template <class Unit, class Decoder>
void add_units(std::vector<PrefixedUnit<Unit>>& units, const std::string& prefix,
               Decoder& decoder) {
  for (Unit* unit : decoder.trained_units()) {
    units.push_back({prefix, unit});
  }
}

template <class Unit>
void require_count(const std::vector<PrefixedUnit<Unit>>& units, const bridge::Manifest& manifest) {
  std::size_t count = 0;
  for (const auto& [prefix, unit] : units) {
    count += unit->specs().size();
  }
  TORCH_CHECK(manifest.tensors.size() == count, "weights: version ", manifest.version, " has ",
              manifest.tensors.size(), " tensors, the model has ", count);
}

// Installs the snapshot's tensors from `first` on, one per parameter of the unit. Consecutive
// tensors of one dtype (usually all of them) are gathered first and converted together.
void install_unit(engine::ParamUnit& unit, const bridge::WeightSnapshot& snapshot,
                  std::size_t first) {
  const auto entry = [&](std::size_t i) -> const bridge::TensorEntry& {
    return snapshot.manifest.tensors[first + i];
  };
  const std::size_t count = unit.specs().size();
  for (std::size_t begin = 0, end = 0; begin < count; begin = end) {
    int64_t numel = 0;
    for (end = begin; end < count && entry(end).dtype == entry(begin).dtype; ++end) {
      numel += unit.layout().range(end).numel;
    }
    const at::Tensor gathered =
        at::empty({numel}, at::TensorOptions().dtype(dtype_of(entry(begin))));
    auto* to = static_cast<std::byte*>(gathered.mutable_data_ptr());
    for (std::size_t i = begin; i < end; ++i) {
      const auto bytes = snapshot.tensors[first + i].bytes;
      to = std::copy(bytes.begin(), bytes.end(), to);
    }
    unit.flat().detach().narrow(0, unit.layout().range(begin).offset, numel).copy_(gathered);
  }
}

}  // namespace

WeightCopy::WeightCopy(engine::UnitExport& units, at::ScalarType dtype,
                       std::shared_ptr<bridge::SharedBlock> block,
                       const std::optional<c10::Stream>& stream)
    : block_(std::move(block)), stream_(stream) {
  if (block_) {
    require_size(*block_, units.weights().bytes(dtype));
  }
  while (const auto unit = units.next()) {
    add(*unit, unit->stored_dtype(dtype));
  }
}

// The block is not pinned: with a stream its bytes are copied in take().
at::Tensor WeightCopy::host_memory(int64_t elements, at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  if (!block_ || stream_) {
    return at::empty({elements}, options.pinned_memory(stream_.has_value()));
  }
  std::byte* begin = block_->bytes().data() + filled_;
  filled_ += static_cast<std::size_t>(elements) * at::elementSize(dtype);
  return at::from_blob(
      begin, {elements}, [owner = block_](void*) {}, options);
}

void WeightCopy::add(const engine::ExportedUnit& unit, at::ScalarType dtype) {
  const auto copy = std::make_shared<const at::Tensor>(host_memory(unit.values().numel(), dtype));
  // One download a unit: it waits for the kernels that merge adapters into the unit's values.
  engine::Download download(stream_);
  download.add(unit.values(), *copy);
  if (stream_) {
    arrived_ = download.finish();
    unit.hold_for(arrived_);
  }
  for (std::size_t i = 0; i < unit.specs().size(); ++i) {
    buffers_.push_back(
        {unit.name(i), dtype_name(dtype), unit.specs()[i].shape, view_bytes(unit.range(i), copy)});
  }
}

std::vector<bridge::NamedBuffer> WeightCopy::take() {
  if (arrived_) {
    arrived_->synchronize();
    if (block_) {
      move_into(block_, buffers_);
    }
  }
  return std::move(buffers_);
}

std::vector<bridge::NamedBuffer> copy_weights(const engine::WeightView& weights,
                                              at::ScalarType dtype,
                                              const std::shared_ptr<bridge::SharedBlock>& block) {
  std::vector<bridge::NamedBuffer> copies;
  engine::export_weights(weights, [&](engine::UnitExport& units) {
    copies = WeightCopy(units, dtype, block, std::nullopt).take();
  });
  return copies;
}

std::vector<engine::TensorToWrite> tensors_of(const std::vector<bridge::NamedBuffer>& copies) {
  std::vector<engine::TensorToWrite> tensors;
  for (const bridge::NamedBuffer& copy : copies) {
    const at::ScalarType dtype = dtype_of(copy);
    // from_blob takes a mutable pointer; the tensor is never written.
    void* bytes = const_cast<std::byte*>(copy.data.bytes.data());
    tensors.push_back({copy.name,
                       at::from_blob(
                           bytes, copy.shape, [owner = copy.data.owner](void*) {},
                           at::TensorOptions().dtype(dtype)),
                       dtype});
  }
  return tensors;
}

std::shared_ptr<const bridge::WeightSnapshot> snapshot_weights(const engine::Decoder& decoder,
                                                               at::ScalarType dtype,
                                                               const std::string& run_id,
                                                               int64_t trainer_term,
                                                               int64_t version) {
  return bridge::make_snapshot(run_id, trainer_term, version, copy_weights(decoder, dtype));
}

namespace {

void install(const std::vector<PrefixedUnit<engine::ParamUnit>>& units,
             const bridge::WeightSnapshot& snapshot) {
  const auto& entries = snapshot.manifest.tensors;
  require_count(units, snapshot.manifest);
  std::size_t i = 0;
  for (const auto& [prefix, unit] : units) {
    for (const engine::ParamSpec& spec : unit->specs()) {
      TORCH_CHECK(entries[i].name == prefix + spec.name && entries[i].shape == spec.shape,
                  "weights: tensor ", i, " is ", entries[i].name, " ", entries[i].shape,
                  ", the model expects ", prefix, spec.name, " ", spec.shape);
      dtype_of(entries[i++]);
    }
  }
  const at::NoGradGuard no_grad;
  std::size_t first = 0;
  for (const auto& [prefix, unit] : units) {
    install_unit(*unit, snapshot, first);
    unit->changed();
    first += unit->specs().size();
  }
}

std::string root_hash_of(const std::vector<PrefixedUnit<const engine::ParamUnit>>& units,
                         const bridge::Manifest& manifest) {
  require_count(units, manifest);
  std::vector<bridge::NamedBuffer> installed;
  for (const auto& [prefix, unit] : units) {
    Converted values(unit->layout(), unit->flat().detach());
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      installed.push_back(values.parameter(i, dtype_of(manifest.tensors[installed.size()])));
      installed.back().name.insert(0, prefix);
    }
  }
  return bridge::root_hash_of(installed);
}

}  // namespace

void install_weights(engine::Decoder& decoder, const bridge::WeightSnapshot& snapshot) {
  std::vector<PrefixedUnit<engine::ParamUnit>> units;
  add_units(units, "", decoder);
  install(units, snapshot);
}

void install_weights(std::span<const PrefixedDecoder> decoders,
                     const bridge::WeightSnapshot& snapshot) {
  std::vector<PrefixedUnit<engine::ParamUnit>> units;
  for (const auto& [prefix, decoder] : decoders) {
    add_units(units, prefix, *decoder);
  }
  install(units, snapshot);
}

std::string installed_root_hash(const engine::Decoder& decoder, const bridge::Manifest& manifest) {
  std::vector<PrefixedUnit<const engine::ParamUnit>> units;
  add_units(units, "", decoder);
  return root_hash_of(units, manifest);
}

std::string installed_root_hash(std::span<const PrefixedDecoder> decoders,
                                const bridge::Manifest& manifest) {
  std::vector<PrefixedUnit<const engine::ParamUnit>> units;
  for (const auto& [prefix, decoder] : decoders) {
    add_units(units, prefix, std::as_const(*decoder));
  }
  return root_hash_of(units, manifest);
}

}  // namespace ringside::rl
