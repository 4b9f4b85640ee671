#include "rl/publish/weight_snapshot.h"

#include <ATen/ATen.h>

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

// The dtype of a unit in a snapshot of `dtype`.
at::ScalarType dtype_of(const engine::ParamUnit& unit, at::ScalarType dtype) {
  return engine::widened_dtype(unit.specs().front(), dtype);
}

// The dtype of a TensorEntry or a NamedBuffer.
template <class Named>
at::ScalarType dtype_of(const Named& tensor) {
  const auto found = dtypes().find(tensor.dtype);
  TORCH_CHECK(found != dtypes().end(), "weights: tensor ", tensor.name, " has dtype ", tensor.dtype,
              ", expected F32, BF16, F16 or F64");
  return found->second;
}

// The bytes of parameter i in a flat buffer of the unit's layout. The view keeps the buffer alive.
bridge::Buffer view_bytes(const engine::ParamUnit& unit,
                          const std::shared_ptr<const at::Tensor>& flat, std::size_t i) {
  const auto element = flat->element_size();
  const auto* begin = static_cast<const std::byte*>(flat->const_data_ptr());
  const auto [offset, numel] = unit.range(i);
  return {flat,
          {begin + static_cast<std::size_t>(offset) * element,
           static_cast<std::size_t>(numel) * element}};
}

// A unit's values in one dtype after another, each converted once for all parameters. A model has a
// dozen small parameters per large one, and a conversion of its own would cost each of them more
// than its elements do.
class Converted {
 public:
  // values: flat, in the unit's layout.
  Converted(const engine::ParamUnit& unit, at::Tensor values, bool copy)
      : unit_(unit), values_(std::move(values)), copy_(copy) {}
  bridge::NamedBuffer parameter(std::size_t i, at::ScalarType dtype) {
    auto& flat = flats_[dtype];
    if (!flat) {
      flat = std::make_shared<const at::Tensor>(
          values_.to(at::kCPU, dtype, /*non_blocking=*/false, copy_));
    }
    const engine::ParamSpec& spec = unit_.specs()[i];
    return {spec.name, dtype_name(dtype), spec.shape, view_bytes(unit_, flat, i)};
  }

 private:
  const engine::ParamUnit& unit_;
  at::Tensor values_;
  bool copy_;
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

// Appends a copy of each parameter of the unit.
void append_copies(std::vector<bridge::NamedBuffer>& tensors, const engine::ParamUnit& unit,
                   const at::Tensor& values, at::ScalarType dtype) {
  Converted converted(unit, values, /*copy=*/true);
  for (std::size_t i = 0; i < unit.specs().size(); ++i) {
    tensors.push_back(converted.parameter(i, engine::widened_dtype(unit.specs()[i], dtype)));
  }
}

// The copies of a unit in memory of the block, from the front of `rest`, which then begins behind
// them.
void append_copies_in(const std::shared_ptr<bridge::SharedBlock>& block, std::span<std::byte>& rest,
                      std::vector<bridge::NamedBuffer>& tensors, const engine::ParamUnit& unit,
                      const at::Tensor& values, at::ScalarType dtype) {
  const at::Tensor copy =
      at::from_blob(rest.data(), values.sizes(), at::TensorOptions().dtype(dtype));
  copy.copy_(values);
  for (const engine::ParamSpec& spec : unit.specs()) {
    const auto bytes = rest.first(static_cast<std::size_t>(spec.numel()) * copy.element_size());
    tensors.push_back({spec.name, dtype_name(dtype), spec.shape, {block, bytes}});
    rest = rest.subspan(bytes.size());
  }
}

void require_parameters(const engine::Decoder& decoder, const bridge::Manifest& manifest) {
  std::size_t count = 0;
  for (const engine::ParamUnit* unit : decoder.trained_units()) {
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
      numel += unit.range(end).numel;
    }
    const at::Tensor gathered =
        at::empty({numel}, at::TensorOptions().dtype(dtype_of(entry(begin))));
    auto* to = static_cast<std::byte*>(gathered.mutable_data_ptr());
    for (std::size_t i = begin; i < end; ++i) {
      const auto bytes = snapshot.tensors[first + i].bytes;
      to = std::copy(bytes.begin(), bytes.end(), to);
    }
    unit.flat().detach().narrow(0, unit.range(begin).offset, numel).copy_(gathered);
  }
}

}  // namespace

PublishedParameters::PublishedParameters(const engine::Decoder& decoder)
    : units_(decoder.units()), merged_(&decoder) {}

PublishedParameters PublishedParameters::adapters_of(const engine::Decoder& decoder) {
  TORCH_CHECK(decoder.adapters() != nullptr, "weights: the model has no adapters to publish");
  PublishedParameters parameters;
  parameters.units_ = {&decoder.adapters()->unit()};
  return parameters;
}

at::Tensor PublishedParameters::values(std::size_t u) const {
  return merged_ != nullptr ? merged_->effective_values(u) : units_.at(u)->gather_flat();
}

std::size_t PublishedParameters::bytes(at::ScalarType dtype) const {
  std::size_t bytes = 0;
  for (const engine::ParamUnit* unit : units_) {
    bytes += static_cast<std::size_t>(unit->numel()) * at::elementSize(dtype_of(*unit, dtype));
  }
  return bytes;
}

std::vector<bridge::NamedBuffer> copy_weights(const PublishedParameters& parameters,
                                              at::ScalarType dtype) {
  std::vector<bridge::NamedBuffer> tensors;
  for (std::size_t u = 0; u < parameters.units().size(); ++u) {
    append_copies(tensors, *parameters.units()[u], parameters.values(u), dtype);
  }
  return tensors;
}

std::vector<bridge::NamedBuffer> copy_weights(const PublishedParameters& parameters,
                                              at::ScalarType dtype,
                                              const std::shared_ptr<bridge::SharedBlock>& block) {
  require_size(*block, parameters.bytes(dtype));
  std::vector<bridge::NamedBuffer> tensors;
  std::span<std::byte> rest = block->bytes();
  for (std::size_t u = 0; u < parameters.units().size(); ++u) {
    const engine::ParamUnit& unit = *parameters.units()[u];
    append_copies_in(block, rest, tensors, unit, parameters.values(u), dtype_of(unit, dtype));
  }
  return tensors;
}

WeightCopy::WeightCopy(const PublishedParameters& parameters, at::ScalarType dtype,
                       std::shared_ptr<bridge::SharedBlock> block,
                       const std::optional<c10::Stream>& stream)
    : block_(std::move(block)) {
  if (!stream) {
    buffers_ = block_ ? copy_weights(parameters, dtype, block_) : copy_weights(parameters, dtype);
    return;
  }
  if (block_) {
    require_size(*block_, parameters.bytes(dtype));
  }
  for (std::size_t u = 0; u < parameters.units().size(); ++u) {
    const engine::ParamUnit& unit = *parameters.units()[u];
    download(unit, parameters.values(u), dtype_of(unit, dtype), *stream);
  }
  for (const engine::ParamUnit* unit : parameters.units()) {
    unit->hold_for(arrived_);
  }
}

void WeightCopy::download(const engine::ParamUnit& unit, const at::Tensor& values,
                          at::ScalarType dtype, const c10::Stream& stream) {
  const auto copy = std::make_shared<const at::Tensor>(
      at::empty({values.numel()}, at::TensorOptions().dtype(dtype).pinned_memory(true)));
  // One download a unit: it waits for the kernels that merge adapters into the unit's values.
  engine::Download download(stream);
  download.add(values, *copy);
  for (std::size_t i = 0; i < unit.specs().size(); ++i) {
    const engine::ParamSpec& spec = unit.specs()[i];
    buffers_.push_back({spec.name, dtype_name(dtype), spec.shape, view_bytes(unit, copy, i)});
  }
  arrived_ = download.finish();
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

void install_weights(engine::Decoder& decoder, const bridge::WeightSnapshot& snapshot) {
  const auto& entries = snapshot.manifest.tensors;
  require_parameters(decoder, snapshot.manifest);
  std::size_t i = 0;
  for (const engine::ParamUnit* unit : decoder.trained_units()) {
    for (const engine::ParamSpec& spec : unit->specs()) {
      TORCH_CHECK(entries[i].name == spec.name && entries[i].shape == spec.shape,
                  "weights: tensor ", i, " is ", entries[i].name, " ", entries[i].shape,
                  ", the model expects ", spec.name, " ", spec.shape);
      dtype_of(entries[i++]);
    }
  }
  const at::NoGradGuard no_grad;
  std::size_t first = 0;
  for (engine::ParamUnit* unit : decoder.trained_units()) {
    install_unit(*unit, snapshot, first);
    unit->changed();
    first += unit->specs().size();
  }
}

std::string installed_root_hash(const engine::Decoder& decoder, const bridge::Manifest& manifest) {
  require_parameters(decoder, manifest);
  std::vector<bridge::NamedBuffer> installed;
  for (const engine::ParamUnit* unit : decoder.trained_units()) {
    Converted values(*unit, unit->flat().detach(), /*copy=*/false);
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      installed.push_back(values.parameter(i, dtype_of(manifest.tensors[installed.size()])));
    }
  }
  return bridge::root_hash_of(installed);
}

}  // namespace ringside::rl
