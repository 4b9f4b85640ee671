// A parameter that is missing, doubled, of another shape or simply never read leaves a model half
// random; saving over an older checkpoint must not leave shards behind that a loader would mix in.
// Bits against transformers: hf_roundtrip.py.
#include "engine/io/hf_directory.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/io/safetensors.h"
#include "engine/io/weight_files.h"
#include "engine/io/weight_stream.h"
#include "tests/engine/saved_tensors.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using test::load_changed;
using test::random_decoder;
using test::read_tensors;
using test::small_config;
using test::TemporaryDirectory;

void check_equal(const Decoder& a, const Decoder& b) {
  const auto a_units = a.units(), b_units = b.units();
  REQUIRE(a_units.size() == b_units.size());
  for (std::size_t u = 0; u < a_units.size(); ++u) {
    CHECK(a_units[u]->flat().equal(b_units[u]->flat()));
  }
}

TEST_CASE("hf_directory: what is saved is loaded, whole and in shards, in single and double") {
  for (const bool tied : {true, false}) {
    for (const int64_t max_shard_bytes : {int64_t{1} << 30, int64_t{500}, int64_t{1}}) {
      for (const auto dtype : {at::kFloat, at::kDouble}) {
        const TemporaryDirectory dir;
        const Decoder decoder = random_decoder(tied, dtype);
        save_decoder(decoder, dir.path(), dtype, {max_shard_bytes, {}});
        CHECK(fs::exists(dir.path() / "model.safetensors.index.json") == (max_shard_bytes < 1000));
        check_equal(load_decoder(dir.path(), dtype), decoder);
      }
    }
  }
}

TEST_CASE("hf_directory: bfloat16 storage rounds once and no more") {
  const TemporaryDirectory first, second;
  save_decoder(random_decoder(true), first.path(), at::kBFloat16);
  const Decoder loaded = load_decoder(first.path(), at::kBFloat16);
  CHECK(loaded.units()[0]->flat().equal(
      random_decoder(true).units()[0]->flat().to(at::kBFloat16).to(at::kFloat)));
  save_decoder(loaded, second.path(), at::kBFloat16);
  CHECK(test::read_file(first.path() / "model.safetensors") ==
        test::read_file(second.path() / "model.safetensors"));
}

TEST_CASE("hf_directory: saving again with fewer files leaves none of the old ones") {
  const TemporaryDirectory dir;
  save_decoder(random_decoder(true), dir.path(), at::kFloat, {500, {}});
  save_decoder(random_decoder(true), dir.path(), at::kFloat);
  for (const fs::directory_entry& entry : fs::directory_iterator(dir.path())) {
    const std::string name = entry.path().filename().string();
    CHECK(
        (name == "model.safetensors" || name == "config.json" || name == "generation_config.json"));
  }
}

TEST_CASE("hf_directory: weights that come tensor by tensor must all come, and no more") {
  const TemporaryDirectory dir;
  std::vector<SafetensorsEntry> entries;
  for (const char* name : {"a", "b", "c"}) {
    entries.push_back({name, at::kFloat, {10}});
  }
  WeightStream stream(dir.path(), entries, /*max_shard_bytes=*/80);
  for (int i = 0; i < 3; ++i) {
    CHECK_THROWS_WITH(stream.close(), Contains("was not written"));
    stream.write(at::full({10}, i, at::kFloat));
  }
  CHECK_THROWS_WITH(stream.write(at::zeros({10})), Contains("written already"));
  stream.close();
  const WeightFiles files(dir.path());
  CHECK(files.names() == std::vector<std::string>{"a", "b", "c"});
  CHECK(files.read("c")[0].item<float>() == 2);
  CHECK_THROWS_AS(WeightStream(dir.path(), entries, 0), c10::Error);
  CHECK_THROWS_WITH(WeightStream(dir.path(), {}, 80), Contains("no tensors to write"));
}

TEST_CASE("hf_directory: the text part of a multimodal model is read and saved under its names") {
  ModelConfig config = test::hybrid_config(/*experts=*/false);
  config.on_disk.multimodal_json =
      R"({"model_type": "qwen3_5", "text_config": {}, "vision_config": {"depth": 2}})";
  config.on_disk.trunk = "model.language_model.";
  const Decoder decoder = test::random_decoder(config, at::kFloat, 5);
  const TemporaryDirectory hub, saved;
  save_decoder(decoder, hub.path(), at::kFloat);
  const fs::path file = hub.path() / "model.safetensors";
  std::vector<TensorToWrite> tensors = read_tensors(file);
  for (const TensorToWrite& tensor : tensors) {
    CHECK((tensor.name == "lm_head.weight" || tensor.name.starts_with("model.language_model.")));
  }
  for (const char* name :
       {"model.visual.blocks.0.norm1.weight", "model.visual.pos_embed.weight", "mtp.norm.weight"}) {
    tensors.push_back({name, at::ones({3}), at::kFloat});
  }
  write_safetensors(file, tensors);
  const ModelConfig read = load_model_config(hub.path());
  CHECK(check_weight_headers(hub.path(), read).empty());
  CHECK(unused_tensors(hub.path(), read) ==
        std::map<std::string, int64_t>{{"model.visual.", 2}, {"mtp.", 1}});
  const Decoder loaded = load_decoder(hub.path(), at::kFloat);
  check_equal(loaded, decoder);
  save_decoder(loaded, saved.path(), at::kFloat);
  check_equal(load_decoder(saved.path(), at::kFloat), decoder);
  CHECK(WeightFiles(saved.path()).names().size() + 3 == WeightFiles(hub.path()).names().size());
  CHECK(nlohmann::json::parse(
            test::read_file(saved.path() / "config.json"))["vision_config"]["depth"] == 2);
  // Names alone decide: without a text_config there is no vision tower beside the model.
  config.on_disk = {};
  save_decoder(test::random_decoder(config, at::kFloat, 5), saved.path(), at::kFloat);
  tensors = read_tensors(saved.path() / "model.safetensors");
  tensors.push_back({"model.visual.pos_embed.weight", at::ones({3}), at::kFloat});
  write_safetensors(saved.path() / "model.safetensors", tensors);
  CHECK_THROWS_WITH(load_decoder(saved.path(), at::kFloat),
                    Contains("'model.visual.pos_embed.weight' belongs to no parameter"));
}

TEST_CASE("hf_directory: experts of a layer in two tensors are read and saved as such") {
  for (const ExpertStacks stacks : {ExpertStacks::kOutputsFirst, ExpertStacks::kInputsFirst}) {
    const bool inputs_first = stacks == ExpertStacks::kInputsFirst;
    CAPTURE(inputs_first);
    ModelConfig config = test::hybrid_config(/*experts=*/true);
    config.on_disk.stacks = stacks;
    const Decoder decoder = test::random_decoder(config, at::kFloat, 5);
    const TemporaryDirectory dir;
    save_decoder(decoder, dir.path(), at::kFloat);
    const WeightFiles stored(dir.path());
    const std::string experts = "model.layers.1.mlp.experts.";
    CHECK(stored.read(experts + "gate_up_proj").sizes() ==
          (inputs_first ? at::IntArrayRef{5, 16, 24} : at::IntArrayRef{5, 24, 16}));
    CHECK(stored.read(experts + "down_proj").sizes() ==
          (inputs_first ? at::IntArrayRef{5, 12, 16} : at::IntArrayRef{5, 16, 12}));
    CHECK_FALSE(stored.contains(experts + "0.gate_proj.weight"));
    CHECK(check_weight_headers(dir.path(), config).empty());
    Decoder loaded(config, at::kFloat);
    load_weights(dir.path(), loaded);
    check_equal(loaded, decoder);
    // The third expert's up projection, by the definition of the stack.
    const WeightFiles split(dir.path(), config);
    const at::Tensor stack = stored.read(experts + "gate_up_proj")[3];
    CHECK(split.read(experts + "3.up_proj.weight")
              .equal((inputs_first ? stack.t() : stack).narrow(0, 12, 12)));
    // The other way round, as a program may have saved it.
    std::vector<TensorToWrite> tensors = read_tensors(dir.path() / "model.safetensors");
    for (TensorToWrite& tensor : tensors) {
      if (tensor.name.starts_with(experts)) {
        tensor.tensor = tensor.tensor.transpose(1, 2).contiguous();
      }
    }
    write_safetensors(dir.path() / "model.safetensors", tensors);
    load_weights(dir.path(), loaded);
    check_equal(loaded, decoder);
    config.experts.count = 4;
    CHECK_THROWS_WITH(WeightFiles(dir.path(), config),
                      Contains("_proj' has shape [5") && Contains("asks for [4"));
  }
}

TEST_CASE("hf_directory: names that transformers has in memory stand for published ones") {
  ModelConfig config = small_config(/*tied=*/false);
  const Decoder decoder = test::random_decoder(config, at::kFloat, 5);
  const TemporaryDirectory dir;
  save_decoder(decoder, dir.path(), at::kFloat);
  std::vector<TensorToWrite> tensors = read_tensors(dir.path() / "model.safetensors");
  for (TensorToWrite& tensor : tensors) {
    if (tensor.name.starts_with("model.")) {
      tensor.name.insert(6, "language_model.");
    }
  }
  tensors.push_back({"model.vision_tower.a", at::ones({2}), at::kFloat});
  write_safetensors(dir.path() / "model.safetensors", tensors);
  config.on_disk.trunk = "language_model.model.";
  config.on_disk.head = "language_model.lm_head.weight";
  config.on_disk.other_names = {{"model.language_model.", config.on_disk.trunk},
                                {"lm_head.weight", config.on_disk.head}};
  config.on_disk.parts_left_out = {"model.vision_tower."};
  CHECK(check_weight_headers(dir.path(), config).empty());
  Decoder loaded(config, at::kFloat);
  load_weights(dir.path(), loaded);
  check_equal(loaded, decoder);
  CHECK(loaded.units().back()->specs().front().name == "language_model.lm_head.weight");
}

TEST_CASE("hf_directory: tokenizer files are copied, other files are not") {
  const TemporaryDirectory source, target;
  test::write_file(source.path() / "tokenizer.json", "t");
  test::write_file(source.path() / "merges.txt", "m");
  test::write_file(source.path() / "pytorch_model.bin", "p");
  save_decoder(random_decoder(true), target.path(), at::kFloat, {1 << 30, source.path()});
  CHECK(test::read_file(target.path() / "tokenizer.json") == "t");
  CHECK(test::read_file(target.path() / "merges.txt") == "m");
  CHECK_FALSE(fs::exists(target.path() / "pytorch_model.bin"));
}

TEST_CASE("hf_directory: a tensor that is missing, unexpected or of another kind is named") {
  using Tensors = std::vector<TensorToWrite>;
  const auto find = [](Tensors& tensors, const std::string& name) -> TensorToWrite& {
    for (TensorToWrite& t : tensors) {
      if (t.name == name) {
        return t;
      }
    }
    throw std::logic_error(name);
  };
  const std::string norm = "model.layers.1.self_attn.q_norm.weight";
  CHECK_THROWS_WITH(load_changed(true, [&](Tensors& t) { find(t, norm).name = "other"; }),
                    Contains(norm) && Contains("none of the weight files"));
  CHECK_THROWS_WITH(load_changed(true,
                                 [&](Tensors& t) {
                                   t.push_back({"extra", at::ones({1}), at::kFloat});
                                 }),
                    Contains("model.safetensors") && Contains("'extra' belongs to no parameter"));
  CHECK_THROWS_WITH(load_changed(true, [&](Tensors& t) { find(t, norm).tensor = at::ones({5}); }),
                    Contains(norm) && Contains("[5]") && Contains("[8]"));
  CHECK_THROWS_WITH(load_changed(true, [&](Tensors& t) { find(t, norm).dtype = at::kLong; }),
                    Contains(norm) && Contains("Long"));
}

TEST_CASE("hf_directory: inv_freq and a tied head's second name are passed over") {
  using Tensors = std::vector<TensorToWrite>;
  CHECK_NOTHROW(load_changed(true, [](Tensors& t) {
    t.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", at::ones({2}), at::kFloat});
  }));
  const auto add_head = [](Tensors& tensors, double change) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].name == "model.embed_tokens.weight") {
        tensors.push_back({"lm_head.weight", tensors[i].tensor + change, at::kFloat});
        return;
      }
    }
  };
  CHECK_NOTHROW(load_changed(true, [&](Tensors& t) { add_head(t, 0.0); }));
  CHECK_THROWS_WITH(load_changed(true, [&](Tensors& t) { add_head(t, 1.0); }),
                    Contains("lm_head.weight") && Contains("tie_word_embeddings"));
}

TEST_CASE("hf_directory: an index that disagrees with its shards is an error") {
  const TemporaryDirectory dir;
  const Decoder decoder = random_decoder(false);
  save_decoder(decoder, dir.path(), at::kFloat, {500, {}});
  const fs::path index_path = dir.path() / "model.safetensors.index.json";
  const nlohmann::json index = nlohmann::json::parse(test::read_file(index_path));
  const auto load_with = [&](const std::string& name, const std::string& shard) {
    nlohmann::json changed = index;
    changed["weight_map"][name] = shard;
    test::write_file(index_path, changed.dump());
    load_decoder(dir.path(), at::kFloat);
  };
  const std::string first = index["weight_map"]["model.embed_tokens.weight"];
  CHECK_NOTHROW(load_with("model.embed_tokens.weight", first));
  CHECK_THROWS_WITH(load_with("model.norm.weight", first), Contains("'model.norm.weight'"));
  CHECK_THROWS_WITH(load_with("nothing", first), Contains("'nothing'"));
  CHECK_THROWS_WITH(load_with("model.norm.weight", "../x.safetensors"),
                    Contains("beside the index"));
  CHECK_THROWS_WITH(load_with("model.norm.weight", "gone.safetensors"), Contains("gone"));

  test::write_file(index_path, index.dump());
  fs::copy_file(dir.path() / first, dir.path() / "model-copy.safetensors");
  CHECK_THROWS_WITH(load_with("copy", "model-copy.safetensors"), Contains("is also in"));
}

TEST_CASE("hf_directory: a directory without weights says what it looked for") {
  const TemporaryDirectory dir;
  test::write_file(dir.path() / "config.json", model_config_json(small_config(true), "float32"));
  CHECK_THROWS_WITH(load_decoder(dir.path(), at::kFloat), Contains("model.safetensors"));
}

TEST_CASE("a model saved without its head has names that lack \"model.\"") {
  const TemporaryDirectory dir;
  const Decoder decoder = random_decoder(/*tied=*/true);
  save_decoder(decoder, dir.path(), at::kFloat);
  std::vector<TensorToWrite> tensors = read_tensors(dir.path() / "model.safetensors");
  for (TensorToWrite& tensor : tensors) {
    REQUIRE(tensor.name.starts_with("model."));
    tensor.name.erase(0, std::string("model.").size());
  }
  write_safetensors(dir.path() / "model.safetensors", tensors);
  CHECK(check_weight_headers(dir.path(), decoder.config()).empty());
  check_equal(load_decoder(dir.path(), at::kFloat), decoder);
}

}  // namespace
}  // namespace ringside::engine
