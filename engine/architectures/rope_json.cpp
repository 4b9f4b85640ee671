#include "engine/architectures/rope_json.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/architectures/unread_fields.h"

namespace ringside::engine {
namespace {

constexpr const char* kOriginal = "original_max_position_embeddings";

std::string text_of(double value) { return nlohmann::json(value).dump(); }

// Fields of any type, beside the type's own.
bool is_common_field(const std::string& key) {
  return key == "rope_type" || key == "type" || key == "rope_theta" ||
         key == "partial_rotary_factor" ||
         // Positions of images; for text alone this is plain RoPE.
         key == "mrope_section" || key == "mrope_interleaved";
}

// transformers ignores such a field with a warning; vLLM gives some of them a meaning.
void refuse_other_fields(const JsonObject& rope, const std::string& type,
                         const std::vector<std::string>& fields) {
  for (const auto& [key, value] : rope.json().items()) {
    if (value.is_object() && !value.empty()) {
      rope.fail(key, "is an object: RoPE that differs between layers is not supported");
    }
    if (is_common_field(key) || std::find(fields.begin(), fields.end(), key) != fields.end()) {
      continue;
    }
    if (turns_nothing_on(value) || key == "finetuned") {  // of NousResearch's YaRN models
      rope.pass_over(key);
      continue;
    }
    std::string expected;
    for (const std::string& field : fields) {
      expected += (expected.empty() ? "" : ", ") + field;
    }
    rope.refuse(key, "is no field of rope_type " + type + "; expected " +
                         (fields.empty() ? "rope_theta alone" : "only " + expected));
  }
}

double number_at_least(const JsonObject& rope, double least, const char* key) {
  const double value = rope.require(rope.number(key), key);
  if (!(value >= least) || !std::isfinite(value)) {
    rope.fail(key, "is " + text_of(value) + ", expected at least " + text_of(least));
  }
  return value;
}

std::optional<double> positive(const JsonObject& rope, const char* key) {
  const auto value = rope.number(key);
  if (value && !(*value > 0 && std::isfinite(*value))) {
    rope.fail(key, "is " + text_of(*value) + ", expected more than 0");
  }
  return value;
}

// Reads the fields of one rope_type.
class Reader {
 public:
  Reader(const JsonObject& json, const JsonObject& rope, const ModelConfig& config)
      : json_(json), rope_(rope), config_(config) {}

  RopeScaling read() const {
    const std::string type = rope_type();
    if (type == "default") {
      refuse_other_fields(rope_, type, {});
      return {};
    }
    if (type == "linear") {
      refuse_other_fields(rope_, type, {"factor"});
      return LinearRope{number_at_least(rope_, 1, "factor")};
    }
    if (type == "dynamic") {
      refuse_other_fields(rope_, type, {"factor"});
      return DynamicRope{number_at_least(rope_, 1, "factor")};
    }
    if (type == "llama3") {
      return llama3();
    }
    if (type == "yarn") {
      return yarn();
    }
    if (type == "longrope") {
      return longrope();
    }
    rope_.refuse("rope_type",
                 "is '" + type + "', expected default, linear, dynamic, llama3, yarn or longrope");
    return {};
  }

 private:
  std::string rope_type() const {
    // "type" is the key's name before transformers 4.43.
    const std::string type =
        rope_.text("rope_type").value_or(rope_.text("type").value_or("default"));
    if (type == "mrope" && rope_.has("mrope_section")) {
      return "default";  // Qwen2.5-VL's name for three positions a token, which text has equal
    }
    if (type == "su" && rope_.has("short_factor")) {
      return "longrope";  // Phi-3's first name for it
    }
    return type;
  }

  // transformers: the field outside counts first, and max_position_embeddings if there is none.
  int64_t original_length() const {
    if (json_.has(kOriginal)) {
      return json_.require_at_least(1, kOriginal);
    }
    return rope_.has(kOriginal) ? rope_.require_at_least(1, kOriginal)
                                : config_.max_position_embeddings;
  }

  Llama3Rope llama3() const {
    refuse_other_fields(rope_, "llama3",
                        {"factor", "low_freq_factor", "high_freq_factor", kOriginal});
    Llama3Rope scaling;
    scaling.factor = number_at_least(rope_, 1, "factor");
    scaling.low_freq_factor = rope_.require(rope_.number("low_freq_factor"), "low_freq_factor");
    scaling.high_freq_factor = rope_.require(rope_.number("high_freq_factor"), "high_freq_factor");
    scaling.original_max_position_embeddings = original_length();
    if (!(scaling.low_freq_factor > 0 && scaling.high_freq_factor > scaling.low_freq_factor)) {
      rope_.fail("high_freq_factor", "is " + text_of(scaling.high_freq_factor) +
                                         ", expected more than low_freq_factor = " +
                                         text_of(scaling.low_freq_factor) + " > 0");
    }
    return scaling;
  }

  YarnRope yarn() const {
    refuse_other_fields(rope_, "yarn",
                        {"factor", kOriginal, "attention_factor", "beta_fast", "beta_slow",
                         "mscale", "mscale_all_dim", "truncate"});
    YarnRope yarn;
    yarn.factor = number_at_least(rope_, 1, "factor");
    yarn.original_max_position_embeddings = original_length();
    yarn.attention_factor = positive(rope_, "attention_factor");
    yarn.beta_fast = positive(rope_, "beta_fast");
    yarn.beta_slow = positive(rope_, "beta_slow");
    yarn.mscale = rope_.number("mscale");
    yarn.mscale_all_dim = rope_.number("mscale_all_dim");
    yarn.truncate = rope_.boolean("truncate");
    if (yarn.beta_fast.value_or(32.0) < yarn.beta_slow.value_or(1.0)) {
      rope_.fail("beta_fast",
                 "is " + text_of(yarn.beta_fast.value_or(32.0)) +
                     ", expected at least beta_slow = " + text_of(yarn.beta_slow.value_or(1.0)));
    }
    if (!(config_.rope_theta > 1)) {
      rope_.fail("rope_theta",
                 "is " + text_of(config_.rope_theta) + ", expected more than 1 for rope_type yarn");
    }
    return yarn;
  }

  LongRope longrope() const {
    refuse_other_fields(rope_, "longrope",
                        {"short_factor", "long_factor", kOriginal, "factor", "attention_factor"});
    LongRope scaling;
    scaling.short_factor = divisors("short_factor");
    scaling.long_factor = divisors("long_factor");
    scaling.original_max_position_embeddings = original_length();
    if (rope_.has("factor")) {
      scaling.factor = number_at_least(rope_, 1, "factor");
    }
    scaling.attention_factor = positive(rope_, "attention_factor");
    if (scaling.original_max_position_embeddings < 2) {
      rope_.fail(kOriginal, "is 1, expected at least 2 for rope_type longrope");
    }
    return scaling;
  }

  std::vector<double> divisors(const char* key) const {
    std::vector<double> values = rope_.numbers(key);
    const int64_t pairs = config_.rope().head_dim / 2;
    if (static_cast<int64_t>(values.size()) != pairs) {
      rope_.fail(key, "has " + std::to_string(values.size()) + " numbers, expected " +
                          std::to_string(pairs) + ", one for two components that RoPE turns");
    }
    for (const double value : values) {
      if (!(value > 0) || !std::isfinite(value)) {
        rope_.fail(key, "holds " + text_of(value) + ", expected numbers above 0");
      }
    }
    return values;
  }

  const JsonObject& json_;
  const JsonObject& rope_;
  const ModelConfig& config_;
};

void refuse_partial_rotation(const JsonObject& json, const ModelConfig& config) {
  if (config.attention.rotary_dim == 0 &&
      json.number("partial_rotary_factor").value_or(1.0) != 1.0) {
    json.refuse("partial_rotary_factor", "is not 1, but RoPE turns whole heads here");
  }
}

void check_theta(const JsonObject& json, const char* key, double theta) {
  if (!(theta > 0) || !std::isfinite(theta)) {
    json.fail(key, "is " + text_of(theta) + ", expected more than 0");
  }
}

void read_rope_object(const JsonObject& json, const JsonObject& rope, ModelConfig& config) {
  config.rope_theta = rope.number("rope_theta").value_or(config.rope_theta);
  refuse_partial_rotation(rope, config);
  config.rope_scaling = Reader(json, rope, config).read();
}

// parameters: the object of transformers 5.
void read_rope_with(const JsonObject& json, const std::optional<JsonObject>& parameters,
                    ModelConfig& config) {
  config.rope_theta = json.number("rope_theta").value_or(config.rope_theta);
  refuse_partial_rotation(json, config);
  auto rope = json.object("rope_scaling");
  if (!rope || rope->json().empty()) {
    rope = parameters;
  }
  json.has(kOriginal);  // says nothing for other rope types
  if (rope) {
    read_rope_object(json, *rope, config);
  }
  check_theta(json, "rope_theta", config.rope_theta);
}

// Writes the fields of one rope_type.
struct Writer {
  using Json = nlohmann::ordered_json;

  template <class T>
  static void add(Json& json, const char* key, const std::optional<T>& value) {
    if (value) {
      json[key] = *value;
    }
  }

  Json operator()(std::monostate) const { return {{"rope_type", "default"}}; }
  Json operator()(const LinearRope& s) const {
    return {{"rope_type", "linear"}, {"factor", s.factor}};
  }
  Json operator()(const DynamicRope& s) const {
    return {{"rope_type", "dynamic"}, {"factor", s.factor}};
  }
  Json operator()(const Llama3Rope& s) const {
    return {{"rope_type", "llama3"},
            {"factor", s.factor},
            {"low_freq_factor", s.low_freq_factor},
            {"high_freq_factor", s.high_freq_factor},
            {kOriginal, s.original_max_position_embeddings}};
  }
  Json operator()(const YarnRope& s) const {
    Json json = {{"rope_type", "yarn"},
                 {"factor", s.factor},
                 {kOriginal, s.original_max_position_embeddings}};
    add(json, "attention_factor", s.attention_factor);
    add(json, "beta_fast", s.beta_fast);
    add(json, "beta_slow", s.beta_slow);
    add(json, "mscale", s.mscale);
    add(json, "mscale_all_dim", s.mscale_all_dim);
    add(json, "truncate", s.truncate);
    return json;
  }
  Json operator()(const LongRope& s) const {
    Json json = {{"rope_type", "longrope"},
                 {"short_factor", s.short_factor},
                 {"long_factor", s.long_factor},
                 {kOriginal, s.original_max_position_embeddings}};
    add(json, "factor", s.factor);
    add(json, "attention_factor", s.attention_factor);
    return json;
  }
};

}  // namespace

void read_rope(const JsonObject& json, ModelConfig& config) {
  read_rope_with(json, json.object("rope_parameters"), config);
}

void read_partial_rope(const JsonObject& json, double missing, ModelConfig& config) {
  constexpr const char* kFraction = "partial_rotary_factor";
  const auto parameters = json.object("rope_parameters");
  const auto inside = parameters ? parameters->number(kFraction) : std::nullopt;
  const double fraction = inside.value_or(json.number(kFraction).value_or(missing));
  config.attention.rotary_dim =
      static_cast<int64_t>(static_cast<double>(config.head_dim) * fraction);
  if (!(fraction > 0 && fraction <= 1) || config.attention.rotary_dim < 2 ||
      config.attention.rotary_dim % 2 != 0) {
    json.fail(kFraction, "is " + text_of(fraction) + ", which turns " +
                             std::to_string(config.attention.rotary_dim) + " of " +
                             std::to_string(config.head_dim) +
                             " components; expected an even number of them, at least 2");
  }
  read_rope(json, config);
}

void read_global_and_local_rope(const JsonObject& json, ModelConfig& config) {
  config.local_rope_theta = json.number("rope_local_base_freq").value_or(config.local_rope_theta);
  const auto parameters = json.object("rope_parameters");
  if (const auto local = parameters ? parameters->object("sliding_attention") : std::nullopt) {
    ModelConfig of_local;
    of_local.head_dim = config.head_dim;
    of_local.rope_theta = config.local_rope_theta;
    read_rope_object(json, *local, of_local);
    if (of_local.rope_scaling != RopeScaling()) {
      local->fail("rope_type", "is not default: RoPE of windowed layers is not scaled here");
    }
    config.local_rope_theta = of_local.rope_theta;
  }
  check_theta(json, "rope_local_base_freq", config.local_rope_theta);
  read_rope_with(json, parameters ? parameters->object("full_attention") : std::nullopt, config);
}

void add_partial_rope(const ModelConfig& config, nlohmann::ordered_json& json) {
  const double fraction =
      static_cast<double>(config.attention.rotary_dim) / static_cast<double>(config.head_dim);
  json["partial_rotary_factor"] = fraction;
  json["rope_parameters"]["partial_rotary_factor"] = fraction;
  if (!json["rope_scaling"].is_null()) {
    json["rope_scaling"]["partial_rotary_factor"] = fraction;
  }
}

void add_rope(const ModelConfig& config, nlohmann::ordered_json& json) {
  const nlohmann::ordered_json scaling = std::visit(Writer{}, config.rope_scaling);
  const bool plain = std::holds_alternative<std::monostate>(config.rope_scaling);
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = plain ? nlohmann::ordered_json(nullptr) : scaling;
  json["rope_parameters"] = scaling;
  json["rope_parameters"]["rope_theta"] = config.rope_theta;
}

void add_global_and_local_rope(const ModelConfig& config, nlohmann::ordered_json& json) {
  add_rope(config, json);
  json["rope_local_base_freq"] = config.local_rope_theta;
  json["rope_parameters"] = {
      {"full_attention", json["rope_parameters"]},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", config.local_rope_theta}}}};
}

}  // namespace ringside::engine
