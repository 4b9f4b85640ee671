#include "engine/architectures/quantisation_fields.h"

#include <nlohmann/json.hpp>
#include <vector>

namespace ringside::engine {
namespace {

constexpr const char* kUnquantised = "train the unquantised model that it was made from";

// What to do about weights of a method that is not read.
std::string advice(const std::string& method) {
  if (method == "bitsandbytes") {
    return "convert it with transformers: from_pretrained(DIR).dequantize(), then save_pretrained";
  }
  if (method == "compressed-tensors") {
    return "convert it with transformers: from_pretrained(DIR, quantization_config="
           "CompressedTensorsConfig(run_compressed=False)), then save_pretrained";
  }
  if (method == "mxfp4") {
    return "convert it with transformers: from_pretrained(DIR, quantization_config="
           "Mxfp4Config(dequantize=True)), then save_pretrained";
  }
  return kUnquantised;  // awq, gptq, modelopt: the lost digits do not come back
}

// Two names of one format.
bool is_e4m3(const std::string& name) { return name == "e4m3" || name == "float8_e4m3fn"; }

bool is_float8(const JsonObject& weights) {
  return weights.integer("num_bits") == 8 && weights.text("type").value_or("") == "float";
}

// "weights" of each group of compressed-tensors.
std::vector<JsonObject> group_weights(const JsonObject& quantised) {
  std::vector<JsonObject> all;
  const auto groups = quantised.object("config_groups");
  if (!groups) {
    return all;
  }
  for (const auto& [name, group] : groups->json().items()) {
    const JsonObject fields = groups->require(groups->object(name), name);
    all.push_back(fields.require(fields.object("weights"), "weights"));
  }
  return all;
}

bool is_float8_compressed(const JsonObject& quantised) {
  const std::string format = quantised.text("format").value_or("float-quantized");
  const std::vector<JsonObject> groups = group_weights(quantised);
  bool all = !groups.empty() && (format == "float-quantized" || format == "naive-quantized");
  for (const JsonObject& weights : groups) {
    all = all && is_float8(weights);
  }
  return all;
}

ScaleBlock block_of(const JsonObject& json, const char* key) {
  const std::vector<int64_t> sizes = json.integers(key);
  if (sizes.empty()) {
    return {};
  }
  if (sizes.size() != 2 || sizes[0] < 1 || sizes[1] < 1) {
    json.fail(key, "is " + json.json().at(key).dump() + ", expected [rows, columns]");
  }
  return {sizes[0], sizes[1]};
}

}  // namespace

std::string quantisation_problem(const JsonObject& quantised, bool mxfp4) {
  const std::string method = quantised.text("quant_method").value_or("");
  const std::string type = quantised.text("bnb_4bit_quant_type").value_or("");
  if ((method == "bitsandbytes" && type == "nf4") || (method == "mxfp4" && mxfp4) ||
      (method == "fp8" && is_e4m3(quantised.text("fmt").value_or("e4m3"))) ||
      (method == "compressed-tensors" && is_float8_compressed(quantised))) {
    return "";
  }
  std::string shown = quantised.json().dump();
  constexpr std::size_t kShown = 200;
  if (shown.size() > kShown) {
    shown = shown.substr(0, kShown) + "...";
  }
  return "is " + shown + ", expected none, bitsandbytes' nf4, fp8, compressed-tensors in 8-bit " +
         "floats" + (mxfp4 ? ", or mxfp4; " : "; ") + advice(method);
}

ScaleBlock scale_block(const JsonObject& quantised) {
  if (quantised.text("quant_method").value_or("") != "compressed-tensors") {
    return block_of(quantised, "weight_block_size");
  }
  ScaleBlock block;
  for (const JsonObject& weights : group_weights(quantised)) {
    ScaleBlock one = block_of(weights, "block_structure");
    if (const auto group = weights.integer("group_size"); group && *group > 0) {
      one = {1, *group};
    }
    const bool same = one.rows == block.rows && one.columns == block.columns;
    if (block.rows > 0 && !same) {
      quantised.fail("config_groups", "has groups with different blocks");
    }
    block = one;
  }
  return block;
}

}  // namespace ringside::engine
