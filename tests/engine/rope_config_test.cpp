// A rope block that is misread turns queries and keys otherwise without an error: every rope type,
// in both spellings, must be read, or refused by the field.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/architectures/architecture.h"
#include "engine/io/model_config_json.h"
#include "tests/engine/model_config_cases.h"
#include "tests/support/catch.h"

namespace ringside::engine {
namespace {

using Catch::Contains;
using nlohmann::json;

TEST_CASE("config: RoPE is read as transformers 4 and 5 write it") {
  const json llama3 = {{"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const auto check = [](const ModelConfig& config) {
    CHECK(config.rope_theta == 500000.0);
    CHECK(config.rope_scaling == RopeScaling(Llama3Rope{32.0, 1.0, 4.0, 8192}));
  };
  check(load(with(base("llama"), {{"rope_theta", 500000.0},
                                  {"rope_scaling", with(llama3, {{"rope_type", "llama3"}})}})));
  check(load(with(base("llama"), {{"rope_theta", 500000.0},
                                  {"rope_scaling", with(llama3, {{"type", "llama3"}})}})));
  check(load(with(base("llama"), {{"rope_parameters", with(llama3, {{"rope_type", "llama3"},
                                                                    {"rope_theta", 500000.0}})}})));
  const ModelConfig plain = load(
      with(base("qwen3"), {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}}));
  CHECK(plain.rope_theta == 1e6);
  CHECK(plain.rope_scaling == RopeScaling());
}

json rope_of(const std::string& type, const json& fields) {
  return {{"rope_parameters", with({{"rope_type", type}, {"rope_theta", 1e6}}, fields)}};
}

// head_dim 16.
json divisors(double first) { return {first, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0}; }

// Every rope type as config.json states it, and as it is read.
std::vector<std::pair<json, RopeScaling>> rope_types() {
  const std::vector<double> low = divisors(1.0), high = divisors(1.25);
  return {
      {rope_of("default", json::object()), RopeScaling()},
      {rope_of("linear", {{"factor", 4.0}}), LinearRope{4.0}},
      {rope_of("dynamic", {{"factor", 2}}), DynamicRope{2.0}},
      {rope_of("yarn", {{"factor", 4.0}, {"original_max_position_embeddings", 1024}}),
       YarnRope{4.0, 1024, {}, {}, {}, {}, {}, {}}},
      {rope_of("yarn", {{"factor", 4.0}}), YarnRope{4.0, 4096, {}, {}, {}, {}, {}, {}}},
      {rope_of("yarn", {{"factor", 4.0},
                        {"original_max_position_embeddings", 1024},
                        {"attention_factor", 1.25},
                        {"beta_fast", 16},
                        {"beta_slow", 2},
                        {"mscale", 0.7},
                        {"mscale_all_dim", 0.5},
                        {"truncate", false}}),
       YarnRope{4.0, 1024, 1.25, 16.0, 2.0, 0.7, 0.5, false}},
      {rope_of("longrope", {{"short_factor", divisors(1.0)},
                            {"long_factor", divisors(1.25)},
                            {"original_max_position_embeddings", 1024}}),
       LongRope{low, high, 1024, {}, {}}},
      {rope_of("longrope", {{"short_factor", divisors(1.0)},
                            {"long_factor", divisors(1.25)},
                            {"original_max_position_embeddings", 1024},
                            {"factor", 8.0},
                            {"attention_factor", 1.2}}),
       LongRope{low, high, 1024, 8.0, 1.2}},
  };
}

TEST_CASE("config: every rope type is read, and read again from what is written") {
  for (const auto& [written, expected] : rope_types()) {
    INFO(written.dump());
    const ModelConfig config = load(with(base("llama"), written));
    CHECK(config.rope_theta == 1e6);
    CHECK(config.rope_scaling == expected);
    const ModelConfig again = load(json::parse(model_config_json(config, "bfloat16")));
    CHECK(again.rope_theta == 1e6);
    CHECK(again.rope_scaling == expected);
  }
  // Outside the block it counts first, as in transformers.
  const json outside =
      with(rope_of("yarn", {{"factor", 4.0}, {"original_max_position_embeddings", 1024}}),
           {{"original_max_position_embeddings", 2048}});
  CHECK(load(with(base("llama"), outside)).rope_scaling ==
        RopeScaling(YarnRope{4.0, 2048, {}, {}, {}, {}, {}, {}}));
}

TEST_CASE("config: a wrong rope block is refused by the field") {
  const auto refused = [](const json& rope, const std::string& key) {
    INFO(rope.dump());
    CHECK_THROWS_WITH(load(with(base("llama"), rope)),
                      Contains("config.json") && Contains("'" + key + "'"));
  };
  refused(rope_of("su", json::object()), "rope_type");
  refused(rope_of("mrope", json::object()), "rope_type");
  refused(rope_of("default", {{"factor", 4.0}}), "factor");
  refused(rope_of("linear", json::object()), "factor");
  refused(rope_of("linear", {{"factor", 0.5}}), "factor");
  refused(rope_of("dynamic", {{"factor", 2.0}, {"alpha", 1000.0}}), "alpha");
  CHECK(load(with(base("llama"), rope_of("yarn", {{"factor", 4.0}, {"finetuned", true}})))
            .on_disk.fields_passed_over == std::vector<std::string>{"rope_parameters.finetuned"});
  refused(rope_of("yarn", {{"factor", 4.0}, {"attn_factor", 1.5}}), "attn_factor");
  refused(rope_of("yarn", {{"factor", 4.0}, {"attention_factor", -1.0}}), "attention_factor");
  refused(rope_of("yarn", {{"factor", 4.0}, {"beta_fast", 0.5}}), "beta_fast");
  refused(rope_of("yarn", {{"factor", 4.0}, {"rope_theta", 1.0}}), "rope_theta");
  refused(rope_of("yarn", {{"factor", "4"}}), "factor");
  json longrope = rope_of("longrope", {{"short_factor", divisors(1.0)},
                                       {"long_factor", divisors(1.0)},
                                       {"original_max_position_embeddings", 1024}});
  longrope["rope_parameters"]["long_factor"].push_back(7.0);
  refused(longrope, "long_factor");
  longrope["rope_parameters"]["long_factor"] = divisors(0.0);
  refused(longrope, "long_factor");
  longrope["rope_parameters"].erase("long_factor");
  refused(longrope, "long_factor");
}

TEST_CASE("config: the positions of a model and its longest exact document follow its rope type") {
  const auto lengths = [](const json& rope, int64_t max_document_tokens) {
    ModelConfig config = load(with(base("llama"), rope));
    config.max_document_tokens = max_document_tokens;
    return std::pair(num_positions(config), longest_exact_document(config));
  };
  CHECK(lengths(rope_of("default", json::object()), 0) == std::pair<int64_t, int64_t>(4096, 0));
  CHECK(lengths(rope_of("default", json::object()), 100) == std::pair<int64_t, int64_t>(100, 100));
  CHECK(lengths(rope_of("linear", {{"factor", 2.5}}), 0).first == 10240);
  // Qwen's model cards keep max_position_embeddings and add the block.
  CHECK(lengths(rope_of("yarn", {{"factor", 4.0}}), 0) == std::pair<int64_t, int64_t>(16384, 0));
  CHECK(lengths(rope_of("yarn", {{"factor", 4.0}, {"original_max_position_embeddings", 512}}), 0)
            .first == 4096);
  CHECK(lengths(rope_of("dynamic", {{"factor", 4.0}}), 0) ==
        std::pair<int64_t, int64_t>(4096, 4096));
  CHECK(lengths(rope_of("dynamic", {{"factor", 4.0}}), 9999).second == 4096);
}

}  // namespace
}  // namespace ringside::engine
