// A head that is silently left at zero, or trunk weights that are not all read, train a critic from
// nothing; a saved one that differs by a bit is not the one that was trained.
#include "engine/models/value_model.h"

#include <nlohmann/json.hpp>

#include "engine/io/hf_directory.h"
#include "engine/io/safetensors.h"
#include "engine/io/value_model_files.h"
#include "engine/io/weight_files.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/local_attention.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using test::TemporaryDirectory;

const int64_t kHidden = test::tiny_config().hidden_size;

ModelConfig small_config(bool tied) {
  ModelConfig config = test::tiny_config();
  config.tie_word_embeddings = tied;
  return config;
}

Decoder random_decoder(bool tied, at::ScalarType dtype = at::kFloat) {
  return test::random_decoder(small_config(tied), dtype, /*seed=*/5, /*std=*/0.3);
}

// Every parameter set, the head too, so that what a load leaves out shows.
ValueModel random_value_model(uint64_t seed, at::ScalarType dtype = at::kFloat) {
  ValueModel model(small_config(true), dtype);
  model.trunk().init_random(seed, 0.3);
  model.head().flat().detach().copy_(
      at::cos(at::arange(kHidden + 1, at::kDouble) + static_cast<double>(seed)));
  return model;
}

bool same_parameters(const ValueModel& a, const ValueModel& b) {
  const auto left = a.units(), right = b.units();
  for (std::size_t u = 0; u < left.size(); ++u) {
    if (!at::equal(left[u]->flat(), right[u]->flat())) {
      return false;
    }
  }
  return true;
}

bool same_trunk(const ValueModel& model, const Decoder& decoder) {
  const auto left = model.trunk().units();
  const auto right = decoder.units();
  for (std::size_t u = 0; u < left.size();
       ++u) {  // an untied head is the decoder's last and has no counterpart
    if (!at::equal(left[u]->flat(), right[u]->flat())) {
      return false;
    }
  }
  return true;
}

// A language model's directory with further tensors in its file.
void write_directory(const fs::path& dir, const Decoder& decoder,
                     const std::vector<TensorToWrite>& more, const std::string& without = "") {
  save_decoder(decoder, dir, at::kFloat);
  std::vector<TensorToWrite> tensors = more;
  {
    const SafetensorsFile file(dir / "model.safetensors");
    for (std::size_t i = 0; i < file.entries().size(); ++i) {
      if (file.entries()[i].name != without) {
        tensors.push_back(
            {file.entries()[i].name, file.tensor(i).clone(), file.entries()[i].dtype});
      }
    }
  }
  write_safetensors(dir / "model.safetensors", tensors);
}

TEST_CASE("value model: a value is the hidden state times the head, in master precision") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const ValueModel model = random_value_model(1, dtype);
  const at::Tensor hidden_nE =
      at::sin(at::arange(5 * kHidden, at::kDouble)).view({5, kHidden}).to(dtype);
  const at::Tensor values_n = model.values(hidden_nE);
  CHECK(values_n.scalar_type() == (dtype == at::kDouble ? at::kDouble : at::kFloat));
  const at::Tensor w_E = model.head().view(0)[0].to(at::kDouble);
  const at::Tensor expected =
      at::mv(hidden_nE.to(at::kDouble), w_E) + model.head().view(1).to(at::kDouble);
  CHECK(test::max_abs_diff(values_n.detach(), expected) < (dtype == at::kDouble ? 1e-14 : 1e-6));
  CHECK_THROWS_WITH(model.values(hidden_nE.narrow(1, 0, 4)),
                    Contains("hidden states must be [n, 16]"));
}

TEST_CASE("value model: starts at zero; a rank without entries has a gradient path") {
  ValueModel model(small_config(false), at::kDouble);
  model.trunk().init_random(3, 0.3);
  const at::Tensor ids_s = at::tensor({1, 2, 3, 4}, at::kLong);
  test::LocalAttention attention({4});
  const at::Tensor hidden_sE = model.trunk().forward(ids_s, at::arange(4, at::kLong), attention);
  CHECK(at::equal(model.values(hidden_sE), at::zeros({4}, at::kDouble)));
  model.values(hidden_sE.narrow(0, 0, 0)).sum().backward();
  CHECK(model.head().flat().grad().defined());
  CHECK(model.trunk().units().front()->flat().grad().defined());
}

TEST_CASE("value model: no unit is an LM head, and the value head is the last") {
  ValueModel model(small_config(false), at::kFloat);
  std::vector<std::string> names;
  for (const ParamUnit* unit : model.units()) {
    names.push_back(unit->name());
  }
  CHECK(names ==
        std::vector<std::string>{"embedding", "layers.0", "layers.1", "final_norm", "value_head"});
}

TEST_CASE("value model: a language model's directory gives the trunk and a zero head") {
  for (const bool tied : {true, false}) {
    for (const int64_t max_shard_bytes : {int64_t{1} << 30, int64_t{500}}) {
      const TemporaryDirectory dir;
      const Decoder decoder = random_decoder(tied);
      save_decoder(decoder, dir.path(), at::kFloat, {max_shard_bytes, {}});
      ValueModel model = random_value_model(2);
      load_value_weights(dir.path(), model);
      CHECK(same_trunk(model, decoder));
      CHECK(at::equal(model.head().flat(), at::zeros({kHidden + 1})));
    }
  }
}

TEST_CASE(
    "value model: the head is found under each of its names, with and without a bias, without an "
    "LM head") {
  const at::Tensor weight = at::sin(at::arange(kHidden, at::kFloat)).view({1, kHidden});
  for (const std::string name : {"score", "v_head.summary", "value_head"}) {
    for (const bool bias : {true, false}) {
      CAPTURE(name, bias);
      const TemporaryDirectory dir;
      std::vector<TensorToWrite> head;
      head.push_back({name + ".weight", weight, at::kFloat});
      if (bias) {
        head.push_back({name + ".bias", at::full({1}, 0.25), at::kFloat});
      }
      const Decoder decoder = random_decoder(false);
      write_directory(dir.path(), decoder, head, "lm_head.weight");
      ValueModel model = random_value_model(2);
      load_value_weights(dir.path(), model);
      CHECK(same_trunk(model, decoder));
      CHECK(at::equal(model.head().view(0), weight));
      CHECK(model.head().view(1).item<float>() == (bias ? 0.25F : 0.0F));
    }
  }
}

TEST_CASE("value model: layers that the configuration leaves out are passed over") {
  const TemporaryDirectory dir;
  const std::string layer = "model.layers." + std::to_string(small_config(true).num_hidden_layers);
  write_directory(dir.path(), random_decoder(true),
                  {{layer + ".enorm.weight", at::ones({kHidden}), at::kFloat}});
  ModelConfig config = small_config(true);
  ValueModel refused(config, at::kFloat);
  CHECK_THROWS_WITH(load_value_weights(dir.path(), refused), Contains("belongs to no parameter"));
  config.on_disk.further.layers = 1;
  ValueModel model(config, at::kFloat);
  load_value_weights(dir.path(), model);
  CHECK(same_trunk(model, random_decoder(true)));
}

TEST_CASE("value model: a directory that does not fit is refused by name") {
  const auto load = [](const std::vector<TensorToWrite>& more, const std::string& without = "") {
    const TemporaryDirectory dir;
    write_directory(dir.path(), random_decoder(true), more, without);
    ValueModel model = random_value_model(2);
    load_value_weights(dir.path(), model);
  };
  const at::Tensor weight = at::ones({1, kHidden});
  CHECK_NOTHROW(
      load({{"model.layers.0.self_attn.rotary_emb.inv_freq", at::ones({2}), at::kFloat}}));
  CHECK_THROWS_WITH(
      load({{"score.weight", weight, at::kFloat}, {"value_head.weight", weight, at::kFloat}}),
      Contains("'value_head.weight' belongs to no parameter"));
  CHECK_THROWS_WITH(
      load({{"score.weight", at::ones({2, kHidden}), at::kFloat}}),
      Contains("'score.weight' has shape [2, 16], the configuration asks for [1, 16]"));
  CHECK_THROWS_WITH(load({{"score.weight", weight.to(at::kLong), at::kLong}}),
                    Contains("'score.weight' has dtype Long"));
  CHECK_THROWS_WITH(load({{"extra.weight", weight, at::kFloat}}),
                    Contains("'extra.weight' belongs to no parameter"));
  CHECK_THROWS_WITH(load({}, "model.norm.weight"),
                    Contains("'model.norm.weight' is in none of the weight files"));
  const TemporaryDirectory empty;
  ValueModel model = random_value_model(2);
  CHECK_THROWS_WITH(load_value_weights(empty.path(), model), Contains("model.safetensors"));
}

TEST_CASE("value model: what is saved is loaded to the bit, as a token classifier's directory") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const TemporaryDirectory dir;
  save_decoder(random_decoder(true), dir.path(), at::kFloat,
               {500, {}});  // an older model in shards
  const ValueModel model = random_value_model(1, dtype);
  const bool sharded = GENERATE(false, true);
  export_weights(model, value_model_files(dir.path(), sharded ? 500 : int64_t{1} << 30));
  CHECK(fs::exists(dir.path() / kWeightIndexFile) == sharded);
  ValueModel loaded(load_model_config(dir.path()), dtype);
  load_value_weights(dir.path(), loaded);
  CHECK(same_parameters(model, loaded));
  const auto config = nlohmann::json::parse(test::read_file(dir.path() / "config.json"));
  CHECK(config["architectures"] == nlohmann::json{"Qwen3ForTokenClassification"});
  CHECK(config["id2label"].size() == 1);
  CHECK(config["dtype"] == (dtype == at::kDouble ? "float64" : "float32"));
}

}  // namespace
}  // namespace ringside::engine
