#include "engine/io/model_config_json.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/io/json_object.h"
#include "engine/io/rope_json.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

struct ArchitectureNames {
  Architecture architecture;
  const char* model_type;
  const char* class_name;
};
constexpr ArchitectureNames kArchitectures[] = {
    {Architecture::kQwen3, "qwen3", "Qwen3ForCausalLM"},
    {Architecture::kQwen2, "qwen2", "Qwen2ForCausalLM"},
    {Architecture::kLlama, "llama", "LlamaForCausalLM"},
};

// Qwen3Config's class default, which transformers uses when the key is missing.
constexpr int64_t kQwen3HeadDim = 128;

Architecture read_architecture(const JsonObject& json) {
  const std::string type = json.require(json.text("model_type"), "model_type");
  for (const ArchitectureNames& names : kArchitectures) {
    if (type == names.model_type) {
      return names.architecture;
    }
  }
  json.fail("model_type", "is '" + type + "', expected qwen3, qwen2 or llama");
}

// Refuses options that change the computation and that the decoder does not support.
void refuse_unsupported(const JsonObject& json) {
  const std::string act = json.text("hidden_act").value_or("silu");
  if (act != "silu") {
    json.fail("hidden_act", "is '" + act + "', expected silu");
  }
  if (json.boolean("use_sliding_window").value_or(false)) {
    json.fail("use_sliding_window", "is true, but every layer attends to its whole document here");
  }
  for (const std::string& type : json.texts("layer_types")) {
    if (type != "full_attention") {
      json.fail("layer_types", "holds '" + type + "', expected full_attention only");
    }
  }
  if (const auto quantised = json.object("quantization_config")) {
    const std::string method = quantised->text("quant_method").value_or("");
    const std::string type = quantised->text("bnb_4bit_quant_type").value_or("");
    if (method != "bitsandbytes" || type != "nf4") {
      json.fail("quantization_config",
                "is " + quantised->json().dump() + ", expected none, or bitsandbytes' nf4");
    }
  }
}

void read_shape(const JsonObject& json, ModelConfig& c) {
  c.vocab_size = json.require_at_least(1, "vocab_size");
  c.hidden_size = json.require_at_least(1, "hidden_size");
  c.intermediate_size = json.require_at_least(1, "intermediate_size");
  c.num_hidden_layers = json.require_at_least(1, "num_hidden_layers");
  c.num_attention_heads = json.require_at_least(1, "num_attention_heads");
  c.max_position_embeddings = json.require_at_least(1, "max_position_embeddings");
  // When missing, Llama has one per query head; the Qwen classes have their own default.
  c.num_key_value_heads = c.architecture == Architecture::kLlama && !json.has("num_key_value_heads")
                              ? c.num_attention_heads
                              : json.require_at_least(1, "num_key_value_heads");
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    json.fail("num_attention_heads", "is " + std::to_string(c.num_attention_heads) +
                                         ", expected a multiple of num_key_value_heads = " +
                                         std::to_string(c.num_key_value_heads));
  }
  if (json.has("head_dim")) {
    c.head_dim = json.require_at_least(1, "head_dim");
  } else if (c.architecture == Architecture::kQwen3) {
    c.head_dim = kQwen3HeadDim;
  } else if (c.hidden_size % c.num_attention_heads == 0) {
    c.head_dim = c.hidden_size / c.num_attention_heads;
  } else {
    json.fail("head_dim", "is missing, and hidden_size = " + std::to_string(c.hidden_size) +
                              " is no multiple of num_attention_heads = " +
                              std::to_string(c.num_attention_heads));
  }
  if (c.head_dim % 2 != 0) {
    json.fail("head_dim", "is " + std::to_string(c.head_dim) +
                              ", expected an even number: RoPE turns pairs of components");
  }
  c.rms_norm_eps = json.number("rms_norm_eps").value_or(c.rms_norm_eps);
  if (!(c.rms_norm_eps > 0)) {
    json.fail("rms_norm_eps", "is " + std::to_string(c.rms_norm_eps) + ", expected more than 0");
  }
}

void read_biases(const JsonObject& json, ModelConfig& c) {
  const bool attention_bias = json.boolean("attention_bias").value_or(false);
  const bool mlp_bias = json.boolean("mlp_bias").value_or(false);
  c.qk_norm = c.architecture == Architecture::kQwen3;
  if (c.architecture == Architecture::kQwen2) {
    // Qwen2 always has QKV biases, never an output bias, and no attention_bias key.
    c.qkv_bias = true;
  } else {
    c.qkv_bias = attention_bias;
    c.o_bias = attention_bias;
  }
  // Only Llama's configuration has mlp_bias; transformers ignores it elsewhere.
  c.mlp_bias = c.architecture == Architecture::kLlama && mlp_bias;
}

void read_special_ids(const JsonObject& json, const fs::path& generation_file, ModelConfig& c) {
  c.bos_token_id = json.integer("bos_token_id");
  c.pad_token_id = json.integer("pad_token_id");
  c.eos_token_ids = json.integers("eos_token_id");
  if (fs::exists(generation_file)) {
    auto ids = JsonObject::read(generation_file).integers("eos_token_id");
    if (!ids.empty()) {
      c.eos_token_ids = std::move(ids);
    }
  }
  for (const int64_t id : c.eos_token_ids) {
    if (id < 0 || id >= c.vocab_size) {
      json.fail("eos_token_id",
                "is " + std::to_string(id) + ", expected 0 to " + std::to_string(c.vocab_size - 1));
    }
  }
}

nlohmann::ordered_json eos_json(const ModelConfig& config) {
  if (config.eos_token_ids.empty()) {
    return nullptr;
  }
  if (config.eos_token_ids.size() == 1) {
    return config.eos_token_ids.front();
  }
  return config.eos_token_ids;
}

nlohmann::ordered_json id_json(const std::optional<int64_t>& id) {
  return id ? nlohmann::ordered_json(*id) : nlohmann::ordered_json(nullptr);
}

}  // namespace

ModelConfig load_model_config(const fs::path& dir_or_file) {
  const fs::path file = fs::is_directory(dir_or_file) ? dir_or_file / "config.json" : dir_or_file;
  const JsonObject json = JsonObject::read(file);
  ModelConfig config;
  config.architecture = read_architecture(json);
  refuse_unsupported(json);
  read_shape(json, config);
  read_biases(json, config);
  read_rope(json, config);
  config.tie_word_embeddings = json.boolean("tie_word_embeddings").value_or(false);
  read_special_ids(json, file.parent_path() / "generation_config.json", config);
  return config;
}

std::string model_config_json(const ModelConfig& config, const std::string& dtype) {
  const ArchitectureNames& names = kArchitectures[static_cast<std::size_t>(config.architecture)];
  nlohmann::ordered_json json = {
      {"architectures", {names.class_name}},
      {"model_type", names.model_type},
      {"dtype", dtype},
      {"torch_dtype", dtype},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"hidden_act", "silu"},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rms_norm_eps", config.rms_norm_eps},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"bos_token_id", id_json(config.bos_token_id)},
      {"eos_token_id", eos_json(config)},
      {"pad_token_id", id_json(config.pad_token_id)},
      {"attention_dropout", 0.0},
      {"use_cache", true},
  };
  if (config.architecture == Architecture::kLlama) {
    json["mlp_bias"] = config.mlp_bias;
  } else {
    json["use_sliding_window"] = false;
    json["sliding_window"] = nullptr;
  }
  if (config.architecture != Architecture::kQwen2) {
    json["attention_bias"] = config.qkv_bias;
  }
  add_rope(config, json);
  return json.dump(2) + "\n";
}

std::string generation_config_json(const ModelConfig& config) {
  const nlohmann::ordered_json json = {{"_from_model_config", true},
                                       {"bos_token_id", id_json(config.bos_token_id)},
                                       {"eos_token_id", eos_json(config)},
                                       {"pad_token_id", id_json(config.pad_token_id)}};
  return json.dump(2) + "\n";
}

}  // namespace ringside::engine
