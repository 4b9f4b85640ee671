// Weights in the packed forms that people publish (nf4, FP8, MXFP4) must load to the values that
// these forms define; a part that is missing or does not fit must be named.
// Bits against transformers: hf_roundtrip.py.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/io/fp8_tensors.h"
#include "engine/io/hf_directory.h"
#include "engine/io/mxfp4_tensors.h"
#include "engine/io/nf4_tensors.h"
#include "engine/io/safetensors.h"
#include "engine/io/weight_files.h"
#include "engine/io/weight_stream.h"
#include "engine/models/acting_values.h"
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

// Replaces every projection by its nf4 form.
void pack_projections(std::vector<TensorToWrite>& tensors) {
  std::vector<TensorToWrite> packed;
  for (const TensorToWrite& tensor : tensors) {
    if (tensor.name.ends_with("_proj.weight")) {
      const auto matrix = QuantisedMatrix::of(tensor.tensor, QuantisedFormat::kNf4);
      for (TensorToWrite& part : nf4_tensors(tensor.name, matrix, at::kFloat)) {
        packed.push_back(std::move(part));
      }
    } else {
      packed.push_back(tensor);
    }
  }
  tensors = packed;
}

TEST_CASE(
    "a directory in bitsandbytes' nf4 form loads to the unpacked values, and packs to its bytes") {
  const TemporaryDirectory dir;
  const Decoder original = random_decoder(false);
  save_decoder(original, dir.path(), at::kFloat);
  const fs::path file = dir.path() / "model.safetensors";
  std::vector<TensorToWrite> tensors = read_tensors(file);
  pack_projections(tensors);
  write_safetensors(file, tensors);
  CHECK(check_weight_headers(dir.path(), small_config(false)).empty());
  const Decoder loaded = load_decoder(dir.path(), at::kFloat);
  const WeightStorage nf4{.projections = QuantisedFormat::kNf4};
  const Decoder quantised = test::stored_as(random_decoder(false), nf4);
  for (std::size_t u = 0; u < quantised.units().size(); ++u) {
    CHECK(at::equal(effective_values(loaded, u), effective_values(quantised, u)));
  }
  CHECK(
      at::equal(effective_values(test::stored_as(loaded, nf4), 1), effective_values(quantised, 1)));
}

at::Tensor bytes_of(const std::string& text) {
  return at::tensor(
      at::ArrayRef<uint8_t>(reinterpret_cast<const uint8_t*>(text.data()), text.size()), at::kByte);
}

TEST_CASE("nf4 tensors with quantised magnitudes are unpacked as bitsandbytes does") {
  // Two blocks whose magnitudes are map[byte] x 0.5 + 2: 2.25 and 1.5.
  at::Tensor map = at::zeros({256});
  map[7] = 0.5;
  map[9] = -1.0;
  std::map<std::string, at::Tensor> parts{
      {"w", at::full({64, 1}, 0xF0, at::kByte)},  // 1 and -1 in turn
      {"w.absmax", at::tensor({7, 9}, at::kByte)},
      {"w.quant_map", nf4_values()},
      {"w.nested_absmax", at::full({1}, 0.5)},
      {"w.nested_quant_map", map},
      {nf4_state_name("w"),
       bytes_of(R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [2, 64],
                    "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 2.0})")}};
  const auto read = [&](const std::string& name) { return parts.at(name); };
  const at::Tensor values = read_nf4("w", read);
  CHECK(values.sizes() == at::IntArrayRef({2, 64}));
  CHECK(values[0][0].item<float>() == 2.25F);
  CHECK(values[0][63].item<float>() == -2.25F);
  CHECK(values[1][1].item<float>() == -1.5F);
  parts["w.quant_map"] = nf4_values() * 2;
  CHECK_THROWS_WITH(read_nf4("w", read), Contains("does not hold the values of nf4"));
  parts["w.quant_map"] = nf4_values();
  parts["w.absmax"] = at::zeros({3}, at::kByte);
  CHECK_THROWS_WITH(read_nf4("w", read), Contains("'w.absmax' has 3 elements, expected 2"));
}

TEST_CASE("nf4 tensors of another shape or without a part are refused by name") {
  const auto load = [](const std::function<void(std::vector<TensorToWrite>&)>& change) {
    load_changed(false, [&](std::vector<TensorToWrite>& tensors) {
      pack_projections(tensors);
      change(tensors);
    });
  };
  const auto remove = [](const std::string& suffix) {
    return [suffix](std::vector<TensorToWrite>& tensors) {
      std::erase_if(tensors, [&](const TensorToWrite& t) {
        return t.name.ends_with("layers.0.self_attn.q_proj.weight" + suffix);
      });
    };
  };
  CHECK_NOTHROW(load([](auto&) {}));
  CHECK_THROWS_WITH(load(remove(".absmax")), Contains("q_proj.weight.absmax' is missing"));
  CHECK_THROWS_WITH(load(remove(".quant_state.bitsandbytes__nf4")), Contains("has shape"));
  CHECK_THROWS_WITH(load([](std::vector<TensorToWrite>& tensors) {
                      for (TensorToWrite& t : tensors) {
                        if (t.name.ends_with("q_proj.weight.quant_state.bitsandbytes__nf4")) {
                          t.tensor = bytes_of("    ");
                        }
                      }
                    }),
                    Contains("no description of nf4"));
}

TEST_CASE("fp8: every element is its code times the scale of its block, any range a part of it") {
  at::manual_seed(4);
  const at::Tensor matrix = at::randn({300, 7}).to(at::kFloat8_e4m3fn);
  const at::Tensor scales = at::rand({(300 + 15) / 16, 3});
  const ScaleBlock block{16, 3};  // the last blocks are partial
  const at::Tensor whole = unpack_fp8(matrix, scales, block, 0, 2100);
  for (int64_t i = 0; i < 300; ++i) {
    for (int64_t j = 0; j < 7; ++j) {
      REQUIRE(whole[i * 7 + j].item<float>() ==
              matrix[i][j].item<float>() * scales[i / 16][j / 3].item<float>());
    }
  }
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {3, 4}, {6, 8}, {5, 2100}, {1792, 1793}, {1790, 1795}, {2099, 2100}, {8, 8}}) {
    CHECK(unpack_fp8(matrix, scales, block, begin, end).equal(whole.narrow(0, begin, end - begin)));
  }
}

// Loads a model one of whose matrices [O, I] is in FP8 with these scales, after quantization_config
// is written.
void load_fp8(const std::optional<at::Tensor>& scales, const nlohmann::json& quantised,
              bool of_matrix = true) {
  const ModelConfig config = test::tiny_config();
  const TemporaryDirectory dir;
  save_decoder(test::random_decoder(config, at::kFloat, 2), dir.path(), at::kFloat);
  const std::string name = of_matrix ? "model.layers.0.mlp.up_proj.weight" : "model.norm.weight";
  std::vector<TensorToWrite> tensors = read_tensors(dir.path() / "model.safetensors");
  const auto found = std::ranges::find(tensors, name, &TensorToWrite::name);
  REQUIRE(found != tensors.end());
  *found = {name, found->tensor.to(at::kFloat8_e4m3fn), at::kFloat8_e4m3fn};
  if (scales) {
    tensors.push_back({name + "_scale_inv", *scales, scales->scalar_type()});
  }
  std::ranges::stable_sort(tensors, std::greater<>(),
                           [](const TensorToWrite& t) { return c10::elementSize(t.dtype); });
  write_safetensors(dir.path() / "model.safetensors", tensors);
  auto json = nlohmann::json::parse(std::ifstream(dir.path() / "config.json"));
  json["quantization_config"] = quantised;
  test::write_file(dir.path() / "config.json", json.dump());
  load_decoder(dir.path(), at::kFloat);
}

TEST_CASE("fp8 tensors that do not fit are refused by name") {
  const nlohmann::json blocks = {{"quant_method", "fp8"}, {"weight_block_size", {16, 16}}};
  const ModelConfig config = test::tiny_config();
  const int64_t rows = config.intermediate_size, columns = config.hidden_size;
  const at::Tensor good = at::ones({(rows + 15) / 16, (columns + 15) / 16});
  CHECK_NOTHROW(load_fp8(good, blocks));
  CHECK_NOTHROW(load_fp8(at::ones({rows, 1}), blocks));
  CHECK_THROWS_WITH(load_fp8(std::nullopt, blocks),
                    Contains("up_proj.weight' is stored as FP8 without scales"));
  CHECK_THROWS_WITH(load_fp8(at::ones({7, 5}), blocks),
                    Contains("up_proj.weight' is stored as FP8") && Contains("16 x 16"));
  CHECK_THROWS_WITH(load_fp8(good, {{"quant_method", "fp8"}}), Contains("names no block"));
  CHECK_THROWS_WITH(load_fp8(at::ones({rows, 1}, at::kInt), blocks),
                    Contains("up_proj.weight_scale_inv") && Contains("floating-point"));
  CHECK_THROWS_WITH(load_fp8(at::ones({1}), blocks, /*of_matrix=*/false),
                    Contains("norm.weight") && Contains("a matrix"));
  CHECK_THROWS_WITH(load_fp8(good, {{"quant_method", "fp8"}, {"weight_block_size", {16}}}),
                    Contains("weight_block_size") && Contains("[rows, columns]"));
}

// Element [x, i, o] of the unpacked tensor by the definition: sign, exponent of bias 1, one bit of
// mantissa; the input's lower half of each byte comes first.
float mxfp4_element(const at::Tensor& blocks, const at::Tensor& scales, int64_t x, int64_t i,
                    int64_t o) {
  const int byte = blocks[x][o][i / 32][i % 32 / 2].item<uint8_t>();
  const int code = i % 2 == 0 ? byte & 15 : byte >> 4;
  const int exponent = code >> 1 & 3, mantissa = code & 1;
  const double size =
      exponent == 0 ? 0.5 * mantissa : std::ldexp(1.0 + 0.5 * mantissa, exponent - 1);
  const int scale = scales[x][o][i / 32].item<uint8_t>() - 127;
  return static_cast<float>(std::ldexp((code & 8) != 0 ? -size : size, scale));
}

at::Tensor random_bytes(const std::vector<int64_t>& shape, int64_t low, int64_t high) {
  return at::randint(low, high, shape, at::kLong).to(at::kByte);
}

TEST_CASE("mxfp4: every element is that of the definition, and any range is a part of the whole") {
  at::manual_seed(4);
  const at::Tensor blocks = random_bytes({3, 5, 2, 16}, 0, 256);
  const at::Tensor scales = random_bytes({3, 5, 2}, 100, 150);
  const at::Tensor whole = unpack_mxfp4(blocks, scales, 0, 3 * 64 * 5).view({3, 64, 5});
  for (int64_t x = 0; x < 3; ++x) {
    for (int64_t i = 0; i < 64; ++i) {
      for (int64_t o = 0; o < 5; ++o) {
        REQUIRE(whole[x][i][o].item<float>() == mxfp4_element(blocks, scales, x, i, o));
      }
    }
  }
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {7, 700}, {320, 640}, {959, 960}}) {
    CHECK(unpack_mxfp4(blocks, scales, begin, end)
              .equal(whole.view({-1}).narrow(0, begin, end - begin)));
  }
}

// Loads a GPT-OSS whose stacks are in MXFP4, after `change` of its tensors.
Decoder load_mxfp4(const std::function<void(std::vector<TensorToWrite>&)>& change) {
  ModelConfig config = test::stacked_config();
  config.hidden_size = config.experts.intermediate_size = config.intermediate_size = 32;
  const TemporaryDirectory dir;
  save_decoder(test::random_decoder(config, at::kFloat, 2), dir.path(), at::kFloat);
  at::manual_seed(4);
  std::vector<TensorToWrite> packed;
  for (const TensorToWrite& tensor : read_tensors(dir.path() / "model.safetensors")) {
    if (!tensor.name.ends_with("gate_up_proj") && !tensor.name.ends_with("down_proj")) {
      packed.push_back(tensor);
      continue;
    }
    const std::vector<int64_t> shape{tensor.tensor.size(0), tensor.tensor.size(2), 1};
    packed.push_back(
        {tensor.name + "_blocks", random_bytes({shape[0], shape[1], 1, 16}, 0, 256), at::kByte});
    packed.push_back({tensor.name + "_scales", random_bytes(shape, 120, 126), at::kByte});
  }
  change(packed);
  std::ranges::stable_sort(packed, std::greater<>(),
                           [](const TensorToWrite& t) { return c10::elementSize(t.dtype); });
  write_safetensors(dir.path() / "model.safetensors", packed);
  const std::vector<std::string> problems = check_weight_headers(dir.path(), config);
  if (!problems.empty()) {
    CHECK_THROWS_WITH(load_decoder(dir.path(), at::kFloat), Contains(problems[0]));
    throw std::runtime_error(problems[0]);
  }
  return load_decoder(dir.path(), at::kFloat);
}

TEST_CASE("a GPT-OSS in MXFP4 loads to the unpacked values") {
  at::Tensor expected;
  const Decoder loaded = load_mxfp4([&](std::vector<TensorToWrite>& tensors) {
    const auto find = [&](const std::string& name) {
      return std::ranges::find(tensors, "model.layers.1.mlp.experts.down_proj" + name,
                               &TensorToWrite::name)
          ->tensor;
    };
    expected = unpack_mxfp4(find("_blocks"), find("_scales"), 0, 5 * 32 * 32).view({5, 32, 32});
  });
  bool found = false;
  for (const ParamUnit* unit : loaded.units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      if (unit->specs()[i].name == "model.layers.1.mlp.experts.down_proj") {
        CHECK(unit->view(i).equal(expected));
        found = true;
      }
    }
  }
  CHECK(found);
}

TEST_CASE("mxfp4 tensors that do not fit are refused by name") {
  const auto changed = [](const std::string& suffix, const at::Tensor& tensor) {
    return [suffix, tensor](std::vector<TensorToWrite>& tensors) {
      for (TensorToWrite& t : tensors) {
        if (t.name == "model.layers.0.mlp.experts.down_proj" + suffix) {
          t.tensor = tensor;
          t.dtype = tensor.scalar_type();
        }
      }
    };
  };
  const auto bytes = [](const std::vector<int64_t>& shape) { return at::zeros(shape, at::kByte); };
  CHECK_THROWS_WITH(load_mxfp4(changed("_scales", bytes({5, 32, 2}))),
                    Contains("down_proj_scales' has shape [5, 32, 2]") &&
                        Contains("Byte of [5, 32, 1], one for each block"));
  CHECK_THROWS_WITH(load_mxfp4(changed("_scales", at::zeros({5, 32, 1}))),
                    Contains("down_proj_scales") && Contains("dtype Float"));
  CHECK_THROWS_WITH(load_mxfp4(changed("_blocks", bytes({5, 32, 1, 8}))),
                    Contains("down_proj_blocks' has shape [5, 32, 1, 8]") &&
                        Contains("[experts, outputs, blocks, 16]"));
  CHECK_THROWS_WITH(
      load_mxfp4([&](auto& tensors) {
        changed("_blocks", bytes({5, 32, 2, 16}))(tensors);
        changed("_scales", bytes({5, 32, 2}))(tensors);
      }),
      Contains("has shape [5, 64, 32] before packing, the configuration asks for [5, 32, 32]"));
  CHECK_THROWS_WITH(
      load_mxfp4([](std::vector<TensorToWrite>& tensors) {
        std::erase_if(tensors, [](const TensorToWrite& t) {
          return t.name == "model.layers.0.mlp.experts.down_proj_scales";
        });
      }),
      Contains("down_proj_blocks' is stored as MXFP4") && Contains("down_proj_scales' is missing"));
  CHECK_THROWS_WITH(load_mxfp4(changed("_scales", at::full({5, 32, 1}, 255, at::kByte))),
                    Contains("not finite"));
}

}  // namespace
}  // namespace ringside::engine
