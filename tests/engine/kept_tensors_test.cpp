// A directory that loses the layers that predict further tokens leaves a server without its draft,
// and says nothing. Names against vLLM's loader: tests/oracle/vllm_further_tokens.py.
#include "engine/io/kept_tensors.h"

#include <nlohmann/json.hpp>

#include "engine/io/hf_directory.h"
#include "tests/engine/saved_tensors.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;

// A family's small model as config.json gives it, and the names of its further layer's tensors.
struct Family {
  ModelConfig config;
  std::vector<std::string> names;
  std::string announced;  // the field of config.json
};

std::vector<Family> families() {
  ModelConfig deepseek = test::latent_config();
  deepseek.on_disk.further = {1, "", {{"num_nextn_predict_layers", "1"}}};
  const std::string layer = layer_prefix(deepseek, deepseek.num_hidden_layers);
  ModelConfig qwen = test::hybrid_config(/*experts=*/false);
  qwen.on_disk.further = {1, "mtp.", {{"mtp_num_hidden_layers", "1"}}};
  return {{deepseek,
           {layer + "eh_proj.weight", layer + "mlp.gate.e_score_correction_bias",
            layer + "shared_head.head.weight"},
           "num_nextn_predict_layers"},
          {qwen,
           {"mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight", "mtp.norm.weight"},
           "mtp_num_hidden_layers"}};
}

// The directory of a model whose further layer is stored in bf16, and one tensor of it in fp32.
void write_published(const Family& family, const fs::path& dir) {
  save_decoder(test::random_decoder(family.config, at::kFloat, 5), dir, at::kBFloat16);
  std::vector<TensorToWrite> tensors = test::read_tensors(dir / "model.safetensors");
  for (std::size_t i = 0; i < family.names.size(); ++i) {
    tensors.push_back({family.names[i], at::randn({3, 4}), i == 1 ? at::kFloat : at::kBFloat16});
  }
  write_safetensors(dir / "model.safetensors", tensors);
  nlohmann::json json = nlohmann::json::parse(test::read_file(dir / "config.json"));
  json[family.announced] = 1;
  test::write_file(dir / "config.json", json.dump());
}

TEST_CASE("layers that predict further tokens are written again to the bit, and announced") {
  const at::ScalarType storage = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t max_shard_bytes = GENERATE(int64_t{1} << 30, int64_t{500});
  for (const Family& family : families()) {
    CAPTURE(family.announced);
    const TemporaryDirectory began, trained;
    write_published(family, began.path());
    const ModelConfig config = load_model_config(began.path());
    CHECK(config.on_disk.further == family.config.on_disk.further);
    Decoder decoder = load_decoder(began.path(), at::kFloat);
    decoder.init_random(11, 0.2);  // as training changes everything else
    save_decoder(decoder, trained.path(), storage, {max_shard_bytes, began.path()});
    const WeightFiles before(began.path()), after(trained.path());
    for (const std::string& name : family.names) {
      REQUIRE(after.contains(name));
      CHECK(after.read(name).scalar_type() == before.read(name).scalar_type());
      CHECK(after.read(name).equal(before.read(name)));
    }
    CHECK(after.names() == before.names());
    CHECK(load_model_config(trained.path()).on_disk.further == config.on_disk.further);
    load_decoder(trained.path(), at::kFloat);
  }
}

TEST_CASE("a trained layer that predicts a further token is saved; what it does not read is kept") {
  for (const Family& family : families()) {
    CAPTURE(family.announced);
    ModelConfig config = family.config;
    config.on_disk.predicts_further = true;
    const std::string copy = layer_prefix(config, further_layer(config)) + "embed_tokens.weight";
    const TemporaryDirectory began, trained;
    save_decoder(test::random_decoder(config, at::kFloat, 5), began.path(), at::kFloat);
    std::vector<TensorToWrite> tensors = test::read_tensors(began.path() / "model.safetensors");
    tensors.push_back({copy, at::randn({19, 16}), at::kFloat});
    write_safetensors(began.path() / "model.safetensors", tensors);
    CHECK(check_weight_headers(began.path(), config).empty());
    const Decoder decoder = test::random_decoder(config, at::kFloat, 7);
    save_decoder(decoder, trained.path(), at::kFloat, {1 << 30, began.path()});
    const WeightFiles before(began.path()), after(trained.path());
    CHECK(after.read(copy).equal(before.read(copy)));
    CHECK_FALSE(after.read(further_names(config).projection)
                    .equal(before.read(further_names(config).projection)));
    CHECK(after.names() == before.names());
    ModelConfig read = load_model_config(trained.path());
    CHECK(read.on_disk.further.layers == 1);
    read.on_disk.predicts_further = true;
    Decoder loaded(read, at::kFloat);
    load_weights(trained.path(), loaded);
    for (std::size_t u = 0; u < loaded.units().size(); ++u) {
      CHECK(loaded.units()[u]->flat().equal(decoder.units()[u]->flat()));
    }
    config.on_disk.predicts_further = false;
    CHECK(unused_tensors(trained.path(), config).size() == 1);
    // A model whose files lack the layer.
    const TemporaryDirectory without;
    save_decoder(test::random_decoder(config, at::kFloat, 5), without.path(), at::kFloat);
    CHECK_THROWS_WITH(load_weights(without.path(), loaded),
                      Catch::Contains("is in none of the weight files"));
  }
}

TEST_CASE("a directory without layers that predict further tokens does not announce them") {
  for (const Family& family : families()) {
    const TemporaryDirectory began, without, nowhere;
    write_published(family, began.path());
    const Decoder decoder = load_decoder(began.path(), at::kFloat);
    save_decoder(decoder, without.path(), at::kFloat);
    save_decoder(decoder, nowhere.path(), at::kFloat, {1 << 30, without.path()});
    for (const fs::path& dir : {without.path(), nowhere.path()}) {
      CHECK_FALSE(
          nlohmann::json::parse(test::read_file(dir / "config.json")).contains(family.announced));
      CHECK_FALSE(WeightFiles(dir).contains(family.names[0]));
    }
  }
}

}  // namespace
}  // namespace ringside::engine
