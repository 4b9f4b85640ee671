#include "engine/io/weight_files.h"

#include <ATen/ATen.h>

#include <set>
#include <stdexcept>

#include "engine/io/nf4_tensors.h"
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

}  // namespace

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
  hide_nf4_parts();
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
  const Place place = part != nf4_parts_.end() ? part->second : places_.at(name);
  return files_[place.file].tensor(place.entry);
}

at::Tensor WeightFiles::read(const std::string& name) const {
  const Place place = places_.at(name);
  if (!is_nf4(name)) {
    return files_[place.file].tensor(place.entry);
  }
  try {
    return read_nf4(name, [this](const std::string& part) { return read_part(part); });
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(describe(name) + " is stored as nf4: " + error.what());
  }
}

bool WeightFiles::is_nf4(const std::string& name) const {
  return nf4_parts_.contains(nf4_state_name(name));
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

const SafetensorsEntry& WeightFiles::entry(const std::string& name) const {
  const Place place = places_.at(name);
  return files_[place.file].entries()[place.entry];
}

std::string WeightFiles::header_problem(const std::string& name, at::IntArrayRef shape) const {
  const SafetensorsEntry& stored = entry(name);
  if (is_nf4(name)) {
    try {
      const std::vector<int64_t> packed = nf4_shape(read_part(nf4_state_name(name)));
      return shape == at::IntArrayRef(packed)
                 ? ""
                 : describe(name) + " has shape " + c10::str(at::IntArrayRef(packed)) +
                       " before packing, the configuration asks for " + c10::str(shape);
    } catch (const std::runtime_error& error) {
      return describe(name) + " is stored as nf4: " + error.what();
    }
  }
  if (at::IntArrayRef(stored.shape) != shape) {
    return describe(name) + " has shape " + c10::str(at::IntArrayRef(stored.shape)) +
           ", the configuration asks for " + c10::str(shape);
  }
  if (!at::isFloatingType(stored.dtype)) {
    return describe(name) + " has dtype " + c10::toString(stored.dtype) +
           ", expected a floating-point one";
  }
  return "";
}

void WeightFiles::fill(const ParamUnit& unit, std::size_t i, const std::string& name) {
  if (!contains(name)) {
    throw std::runtime_error(dir_.string() + ": tensor '" + name +
                             "' is in none of the weight files");
  }
  if (const std::string wrong = header_problem(name, unit.specs().at(i).shape); !wrong.empty()) {
    throw std::runtime_error(wrong);
  }
  if (const auto slice = unit.slice_of(unit.flat().detach(), i)) {  // else other ranks have it
    const at::Tensor stored = read(name).view({-1});
    slice->values.copy_(stored.narrow(0, slice->begin, slice->values.numel()));
    if (!at::isfinite(slice->values).all().item<bool>()) {
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
