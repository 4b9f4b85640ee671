#include "engine/io/weight_files.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

#include "engine/io/fp8_tensors.h"
#include "engine/io/mxfp4_tensors.h"
#include "engine/io/nf4_tensors.h"
#include "engine/io/stacked_experts.h"
#include "engine/json/json_object.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

// What to do about weights that are there in another form.
std::string other_form(const fs::path& dir) {
  if (fs::exists(dir / "pytorch_model.bin") || fs::exists(dir / "pytorch_model.bin.index.json")) {
    return ", only pytorch_model.bin; convert it with transformers' "
           "save_pretrained(safe_serialization=True)";
  }
  if (fs::exists(dir / "adapter_config.json")) {
    return ", only an adapter (adapter_config.json); expected its base model, and the adapter in "
           "lora.path (ringside logprobs: --adapter)";
  }
  return "";
}

// The block of FP8 weights that config.json beside the weights names.
ScaleBlock stored_block(const fs::path& dir) {
  if (!fs::exists(dir / "config.json")) {
    return {};
  }
  const JsonObject config = JsonObject::read(dir / "config.json");
  auto quantised = config.object("quantization_config");
  if (const auto text = config.object("text_config"); text && !quantised) {
    quantised = text->object("quantization_config");
  }
  return quantised ? scale_block(*quantised) : ScaleBlock{};
}

// The one of these beginnings that the name has; "" without one.
std::string part_of(const std::vector<std::string>& parts, std::string_view name) {
  const auto found =
      std::ranges::find_if(parts, [&](const std::string& part) { return name.starts_with(part); });
  return found == parts.end() ? "" : *found;
}

// Beginnings of the names of layers that predict further tokens.
std::vector<std::string> further_parts(const ModelConfig& config) {
  const FurtherTokensConfig& further = config.on_disk.further;
  if (!further.part.empty()) {
    return {further.part};
  }
  std::vector<std::string> parts;
  for (int64_t i = 0; i < further.layers; ++i) {
    parts.push_back(layer_prefix(config, config.num_hidden_layers + i));
  }
  return parts;
}

}  // namespace

bool predicts_further(const ModelConfig& config, std::string_view name) {
  return !part_of(further_parts(config), name).empty();
}

std::string unused_part(const ModelConfig& config, std::string_view name) {
  const std::string further = part_of(further_parts(config), name);
  return further.empty() ? part_of(config.on_disk.parts_left_out, name) : further;
}

bool has_weight_files(const fs::path& dir) {
  return fs::exists(dir / kSingleWeightFile) || fs::exists(dir / kWeightIndexFile);
}

bool is_passed_over(const ModelConfig& config, std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") || !unused_part(config, name).empty();
}

void remove_weight_files(const fs::path& dir) {
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (name == kWeightIndexFile || (name.starts_with("model") && name.ends_with(".safetensors"))) {
      old.push_back(entry.path());
    }
  }
  for (const fs::path& path : old) {
    fs::remove(path);
  }
}

WeightFiles::WeightFiles(const fs::path& dir) : dir_(dir) {
  if (fs::exists(dir / kSingleWeightFile)) {
    add_file(dir / kSingleWeightFile);
  } else if (fs::exists(dir / kWeightIndexFile)) {
    add_shards(dir / kWeightIndexFile);
  } else {
    throw std::runtime_error(dir.string() + ": neither " + std::string(kSingleWeightFile) +
                             " nor " + std::string(kWeightIndexFile) + " is there" +
                             other_form(dir));
  }
  complete_names();
  hide_nf4_parts();
  hide_mxfp4_parts();
  fp8_block_ = stored_block(dir);
  hide_fp8_scales();
}

WeightFiles::WeightFiles(const fs::path& dir, const ModelConfig& config) : WeightFiles(dir) {
  for (const auto& [beginning, replacement] : config.on_disk.other_names) {
    rename(beginning, replacement);
  }
  split_stacks(config);
}

void WeightFiles::rename(const std::string& beginning, const std::string& replacement) {
  std::map<std::string, Place> renamed;
  for (auto it = places_.begin(); it != places_.end();) {
    const std::string name =
        it->first.starts_with(beginning) ? replacement + it->first.substr(beginning.size()) : "";
    if (name.empty() || contains(name)) {
      ++it;
    } else {
      renamed.emplace(name, it->second);
      it = places_.erase(it);
    }
  }
  places_.merge(renamed);
}

void WeightFiles::split_stacks(const ModelConfig& config) {
  if (config.on_disk.stacks == ExpertStacks::kNone) {
    return;
  }
  for (const std::string& name : names()) {
    const bool in_further = config.on_disk.predicts_further && predicts_further(config, name);
    if ((name.starts_with(config.on_disk.trunk) || in_further) &&
        (name.ends_with(std::string(".") + kStackedGateUp) ||
         name.ends_with(std::string(".") + kStackedDown))) {
      split_stack(name, config);
    }
  }
}

void WeightFiles::split_stack(const std::string& name, const ModelConfig& config) {
  const Place place = places_.at(name);
  const StackedExperts stacked(config);
  const bool down = name.ends_with(kStackedDown);
  const std::vector<int64_t>& shape = entry(place).shape;
  const std::vector<int64_t> expected = down ? stacked.down_shape() : stacked.gate_up_shape();
  const bool other = shape != expected &&
                     shape == (down ? stacked.other_down_shape() : stacked.other_gate_up_shape());
  if (shape != expected && !other) {
    throw std::runtime_error(describe(name) + " has shape " + c10::str(at::IntArrayRef(shape)) +
                             ", the configuration asks for " + c10::str(at::IntArrayRef(expected)));
  }
  const std::string experts = name.substr(0, name.rfind('.') + 1);
  const int64_t size = config.experts.intermediate_size;
  for (int64_t x = 0; x < config.experts.count; ++x) {
    const std::string of_expert = experts + std::to_string(x) + ".";
    const auto add = [&](const char* matrix, int64_t begin, int64_t rows) {
      places_[of_expert + matrix] = {place.file, place.entry,
                                     Slice{x, begin, rows, stacked.inputs_first() != other}};
    };
    if (down) {
      add("down_proj.weight", 0, config.hidden_size);
    } else {
      add("gate_proj.weight", 0, size);
      add("up_proj.weight", size, size);
    }
  }
  places_.erase(name);
}

at::Tensor WeightFiles::tensor(const Place& place) const {
  const at::Tensor whole = files_[place.file].tensor(place.entry);
  if (!place.slice) {
    return whole;
  }
  const at::Tensor of_expert = whole.select(0, place.slice->expert);
  return (place.slice->inputs_first ? of_expert.t() : of_expert)
      .narrow(0, place.slice->begin, place.slice->rows)
      .contiguous();
}

WeightFiles WeightFiles::of_file(const fs::path& file) {
  WeightFiles files;
  files.dir_ = file;
  files.add_file(file);
  return files;
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> result;
  for (const auto& [name, place] : places_) {
    result.push_back(name);
  }
  return result;
}

std::string WeightFiles::describe(const std::string& name) const {
  return files_[places_.at(name).file].path().string() + ": tensor '" + name + "'";
}

at::Tensor WeightFiles::read_part(const std::string& name) const {
  const auto part = nf4_parts_.find(name);
  if (part == nf4_parts_.end() && !contains(name)) {
    throw std::runtime_error("tensor '" + name + "' is missing");
  }
  return tensor(part != nf4_parts_.end() ? part->second : places_.at(name));
}

at::Tensor WeightFiles::read(const std::string& name) const {
  const Place place = places_.at(name);
  if (is_mxfp4(name)) {
    const std::vector<int64_t> shape = shape_of(name);
    return read_range(name, 0, c10::multiply_integers(shape)).view(shape);
  }
  if (is_fp8(name)) {
    return unpack_fp8(tensor(place), tensor(fp8_scales_.at(name)), fp8_block_of(name), 0,
                      c10::multiply_integers(shape_of(name)))
        .view(shape_of(name));
  }
  if (!is_nf4(name)) {
    return tensor(place);
  }
  try {
    return read_nf4(name, [this](const std::string& part) { return read_part(part); });
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(describe(name) + " is stored as nf4: " + error.what());
  }
}

at::Tensor WeightFiles::read_range(const std::string& name, int64_t begin, int64_t end) const {
  if (is_fp8(name)) {
    return unpack_fp8(tensor(places_.at(name)), tensor(fp8_scales_.at(name)), fp8_block_of(name),
                      begin, end);
  }
  return is_mxfp4(name)
             ? unpack_mxfp4(tensor(places_.at(name)), tensor(mxfp4_scales_.at(name)), begin, end)
             : read(name).view({-1}).narrow(0, begin, end - begin);
}

bool WeightFiles::is_nf4(const std::string& name) const {
  return nf4_parts_.contains(nf4_state_name(name));
}

void WeightFiles::complete_names() {
  if (!contains("embed_tokens.weight")) {
    return;
  }
  std::map<std::string, Place> complete;
  for (const auto& [name, place] : places_) {
    complete.emplace(name.starts_with("lm_head.") ? name : "model." + name, place);
  }
  places_ = std::move(complete);
}

void WeightFiles::hide_nf4_parts() {
  for (auto it = places_.begin(); it != places_.end();) {
    const std::string owner = nf4_owner(it->first);
    const bool is_part = !owner.empty() && places_.contains(owner) &&
                         (places_.contains(nf4_state_name(owner)) || is_nf4(owner));
    if (is_part) {
      nf4_parts_.insert(*it);
      it = places_.erase(it);
    } else {
      ++it;
    }
  }
}

void WeightFiles::hide_mxfp4_parts() {
  std::map<std::string, Place> unpacked;
  for (const auto& [name, blocks] : places_) {
    const std::string owner = mxfp4_owner(name);
    if (owner.empty() || contains(owner) || entry(blocks).dtype != at::kByte) {
      continue;
    }
    const auto scales = places_.find(mxfp4_scales_name(owner));
    if (scales == places_.end()) {
      throw std::runtime_error(describe(name) + " is stored as MXFP4: tensor '" +
                               mxfp4_scales_name(owner) + "' is missing");
    }
    unpacked.emplace(owner, blocks);
    mxfp4_scales_.emplace(owner, scales->second);
  }
  for (const auto& [name, scales] : mxfp4_scales_) {
    places_.erase(entry(unpacked.at(name)).name);
    places_.erase(entry(scales).name);
  }
  places_.merge(unpacked);
}

void WeightFiles::hide_fp8_scales() {
  std::vector<std::string> names_of_scales;
  for (const auto& [name, place] : places_) {
    for (const std::string_view suffix : kFp8ScaleSuffixes) {
      const auto scales = places_.find(name + std::string(suffix));
      if (entry(place).dtype == at::kFloat8_e4m3fn && scales != places_.end()) {
        fp8_scales_.emplace(name, scales->second);
        names_of_scales.push_back(scales->first);
        break;
      }
    }
  }
  for (const std::string& name : names_of_scales) {
    places_.erase(name);
  }
  if (!fp8_scales_.empty()) {
    std::erase_if(places_, [](const auto& entry) { return is_activation_scale(entry.first); });
  }
}

ScaleBlock WeightFiles::fp8_block_of(const std::string& name) const {
  return fp8_block(entry(places_.at(name)), entry(fp8_scales_.at(name)), fp8_block_);
}

SafetensorsEntry WeightFiles::header(const std::string& name, at::ScalarType unpacked) const {
  const bool is_packed = is_fp8(name) || is_nf4(name) || is_mxfp4(name);
  return {name, is_packed ? unpacked : entry(places_.at(name)).dtype, shape_of(name)};
}

const SafetensorsEntry& WeightFiles::entry(const Place& place) const {
  return files_[place.file].entries()[place.entry];
}

std::vector<int64_t> WeightFiles::shape_of(const std::string& name) const {
  if (const Place& place = places_.at(name); place.slice) {
    const std::vector<int64_t>& stack = entry(place).shape;
    return {place.slice->rows, place.slice->inputs_first ? stack[1] : stack[2]};
  }
  const char* form = is_nf4(name) ? "nf4" : is_fp8(name) ? "FP8" : "MXFP4";
  try {
    if (is_fp8(name)) {
      fp8_block_of(name);  // throws where the parts do not fit
    }
    return is_nf4(name)     ? nf4_shape(read_part(nf4_state_name(name)))
           : is_mxfp4(name) ? mxfp4_shape(entry(places_.at(name)), entry(mxfp4_scales_.at(name)))
                            : entry(places_.at(name)).shape;
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(describe(name) + " is stored as " + form + ": " + error.what());
  }
}

std::vector<std::string> WeightFiles::header_problems(const std::vector<ParamSpec>& specs) const {
  std::vector<std::string> problems;
  for (const ParamSpec& spec : specs) {
    std::string problem = contains(spec.name) ? header_problem(spec.name, spec.shape)
                                              : dir_.string() + ": tensor '" + spec.name +
                                                    "' is in none of the weight files";
    if (!problem.empty()) {
      problems.push_back(std::move(problem));
    }
  }
  return problems;
}

std::string WeightFiles::header_problem(const std::string& name, at::IntArrayRef shape) const {
  const bool packed = is_nf4(name) || is_mxfp4(name);
  std::vector<int64_t> stored;
  try {
    stored = shape_of(name);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  if (at::IntArrayRef(stored) != shape) {
    return describe(name) + " has shape " + c10::str(at::IntArrayRef(stored)) +
           (packed ? " before packing" : "") + ", the configuration asks for " + c10::str(shape);
  }
  const at::ScalarType dtype = entry(places_.at(name)).dtype;
  if (!is_fp8(name) && at::isFloat8Type(dtype)) {
    return describe(name) + " is stored as FP8 without scales, expected '" + name +
           "_scale_inv' or '" + name + "_scale'";
  }
  if (!packed && !at::isFloatingType(dtype)) {
    return describe(name) + " has dtype " + c10::toString(dtype) +
           ", expected a floating-point one";
  }
  return "";
}

void WeightFiles::fill(const UnitStorage& unit, std::size_t i, const std::string& name) {
  if (!contains(name)) {
    throw std::runtime_error(dir_.string() + ": tensor '" + name +
                             "' is in none of the weight files");
  }
  if (const std::string wrong = header_problem(name, unit.layout().specs().at(i).shape);
      !wrong.empty()) {
    throw std::runtime_error(wrong);
  }
  for (const NamedSlice& slice : unit.slices_of(unit.flat().detach(), i)) {
    const sp::Range run = run_around(slice);
    copy_shared({slice.name, slice.shape, run.begin, read_range(name, run.begin, run.end)}, slice);
    // NaN and infinities are the largest or the smallest. Needs no memory, unlike at::isfinite().
    const auto [low, high] = at::aminmax(slice.values);
    if (!std::isfinite(low.item<double>()) || !std::isfinite(high.item<double>())) {
      throw std::runtime_error(
          describe(name) +
          " holds values that are not finite (NaN or infinite); these weights are broken");
    }
  }
  places_.erase(name);
}

void WeightFiles::add_file(const fs::path& path) {
  files_.emplace_back(path);
  const auto& entries = files_.back().entries();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (contains(entries[i].name)) {
      throw std::runtime_error(path.string() + ": tensor '" + entries[i].name + "' is also in " +
                               files_[places_.at(entries[i].name).file].path().string());
    }
    places_[entries[i].name] = {files_.size() - 1, i};
  }
}

void WeightFiles::add_shards(const fs::path& index_path) {
  const JsonObject index = JsonObject::read(index_path);
  const JsonObject map = index.require(index.object("weight_map"), "weight_map");
  std::map<std::string, std::string> file_of;
  std::set<std::string> shards;
  for (const auto& [name, value] : map.json().items()) {
    const std::string shard = map.require(map.text(name), name);
    if (fs::path(shard).filename() != shard) {
      map.fail(name, "is '" + shard + "', expected a file beside the index");
    }
    file_of[name] = shard;
    shards.insert(shard);
  }
  for (const std::string& shard : shards) {
    add_file(dir_ / shard);
  }
  for (const auto& [name, shard] : file_of) {
    if (!contains(name) || files_[places_.at(name).file].path().filename() != shard) {
      map.fail(name, "is '" + shard + "', which does not hold that tensor");
    }
  }
}

}  // namespace ringside::engine
