#include "rl/weight_sync.h"

#include <ATen/ATen.h>

#include <map>
#include <utility>
#include <vector>

#include "rollout_bridge/weights.h"

namespace ringside::rl {
namespace {

const std::map<std::string, at::ScalarType>& dtypes() {
  static const std::map<std::string, at::ScalarType> kDtypes{
      {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"F64", at::kDouble}};
  return kDtypes;
}

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, value] : dtypes()) {
    if (value == dtype) {
      return name;
    }
  }
  TORCH_CHECK(false, "weights are published in F32, BF16 or F64, got ", dtype);
}

at::ScalarType dtype_of(const bridge::TensorEntry& entry) {
  const auto found = dtypes().find(entry.dtype);
  TORCH_CHECK(found != dtypes().end(), "weights: tensor ", entry.name, " has dtype ", entry.dtype,
              ", expected F32, BF16 or F64");
  return found->second;
}

struct NamedView {
  const std::string& name;
  at::Tensor values;  // view of the master parameters
};

std::vector<NamedView> parameters(const engine::Decoder& decoder) {
  std::vector<NamedView> views;
  for (const engine::ParamUnit* unit : decoder.units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      views.push_back({unit->specs()[i].name, unit->view(i)});
    }
  }
  return views;
}

// Holds the tensor alive and lends its bytes.
bridge::Buffer lend(const at::Tensor& contiguous) {
  auto owner = std::make_shared<const at::Tensor>(contiguous);
  return {owner, {static_cast<const std::byte*>(owner->const_data_ptr()), owner->nbytes()}};
}

// The values in `dtype`: the master parameters' own memory where they have it already.
bridge::NamedBuffer named_view(const NamedView& view, at::ScalarType dtype) {
  const at::Tensor values = view.values.to(dtype).contiguous();
  return {view.name, dtype_name(dtype), values.sizes().vec(), lend(values)};
}

bridge::NamedBuffer named_copy(const NamedView& view, at::ScalarType dtype) {
  const at::Tensor copy = view.values.to(dtype, /*non_blocking=*/false, /*copy=*/true).contiguous();
  return {view.name, dtype_name(dtype), copy.sizes().vec(), lend(copy)};
}

}  // namespace

std::vector<bridge::NamedBuffer> copy_weights(const engine::Decoder& decoder, at::ScalarType dtype) {
  std::vector<bridge::NamedBuffer> tensors;
  for (const NamedView& view : parameters(decoder)) {
    tensors.push_back(named_copy(view, dtype));
  }
  return tensors;
}

std::shared_ptr<const bridge::WeightSnapshot> snapshot_weights(const engine::Decoder& decoder,
                                                               at::ScalarType dtype,
                                                               const std::string& run_id,
                                                               int64_t run_epoch, int64_t version) {
  return bridge::make_snapshot(run_id, run_epoch, version, copy_weights(decoder, dtype));
}

void install_weights(engine::Decoder& decoder, const bridge::WeightSnapshot& snapshot) {
  const auto views = parameters(decoder);
  const auto& entries = snapshot.manifest.tensors;
  TORCH_CHECK(entries.size() == views.size(), "weights: version ", snapshot.manifest.version, " has ",
              entries.size(), " tensors, the model has ", views.size());
  for (std::size_t i = 0; i < views.size(); ++i) {
    TORCH_CHECK(entries[i].name == views[i].name && views[i].values.sizes() == entries[i].shape,
                "weights: tensor ", i, " is ", entries[i].name, " ", entries[i].shape,
                ", the model expects ", views[i].name, " ", views[i].values.sizes());
    dtype_of(entries[i]);
  }
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < views.size(); ++i) {
    // from_blob wants a mutable pointer; the source is only read.
    void* bytes = const_cast<std::byte*>(snapshot.tensors[i].bytes.data());
    const at::Tensor source = at::from_blob(bytes, entries[i].shape, at::TensorOptions().dtype(dtype_of(entries[i])));
    at::Tensor target = views[i].values;
    target.copy_(source);
  }
}

std::string installed_root_hash(const engine::Decoder& decoder, const bridge::Manifest& manifest) {
  const auto views = parameters(decoder);
  TORCH_CHECK(manifest.tensors.size() == views.size(), "weights: the manifest has ",
              manifest.tensors.size(), " tensors, the model has ", views.size());
  std::vector<bridge::NamedBuffer> installed;
  for (std::size_t i = 0; i < views.size(); ++i) {
    installed.push_back(named_view(views[i], dtype_of(manifest.tensors[i])));
  }
  return bridge::root_hash_of(installed);
}

}  // namespace ringside::rl
