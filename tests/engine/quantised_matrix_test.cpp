// Guards 4- and 8-bit matrices: bytes that are not bitsandbytes', blocks that are zero, subnormal
// or short, and layers that compute with other values than the packed ones. The golden bytes are
// those of bitsandbytes 0.50.2.
#include "engine/params/quantised_matrix.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "engine/models/acting_values.h"
#include "engine/models/decoder.h"
#include "engine/nn/linear.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/local_attention.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

QuantisedMatrix nf4(const at::Tensor& values) {
  return QuantisedMatrix::of(values.view({1, -1}), QuantisedFormat::kNf4);
}

// The formula, element by element: the nearest of the 16 values of w / absmax.
std::vector<int> nearest_indices(const at::Tensor& values) {
  const at::Tensor table = nf4_values();
  std::vector<int> indices;
  for (int64_t begin = 0; begin < values.numel(); begin += kNf4Block) {
    const int64_t size = std::min(kNf4Block, values.numel() - begin);
    const at::Tensor block = values.narrow(0, begin, size);
    const float absmax = std::max(block.abs().max().item<float>(), 1e-38F);
    for (int64_t i = 0; i < size; ++i) {
      const float w = block[i].item<float>();
      const float scaled = size == kNf4Block ? w * (1.0F / absmax) : w / absmax;
      int index = 0;
      while (index < 15 &&
             scaled > (table[index].item<float>() + table[index + 1].item<float>()) / 2) {
        ++index;
      }
      indices.push_back(index);
    }
  }
  return indices;
}

TEST_CASE("nf4 has bitsandbytes' bytes and values for eight known weights") {
  const QuantisedMatrix packed = nf4(at::linspace(-2, 3, 8));
  const std::vector<int64_t> bytes{19, 88, 173, 239};
  CHECK(at::equal(packed.packed().to(at::kLong), at::tensor(bytes)));
  CHECK(packed.absmax().item<float>() == 3.0F);
  const at::Tensor expected = at::tensor({-2.0885785F, -1.1847525F, -0.5543203F, 0.2387409F,
                                          0.7383369F, 1.6878510F, 2.1688704F, 3.0F});
  CHECK(max_abs_diff(packed.unpack(at::kFloat).view({-1}), expected) < 1e-6);
}

TEST_CASE("nf4 bytes equal the formula on random, zero, subnormal and short blocks") {
  at::manual_seed(3);
  const at::Tensor random = at::randn({200});
  const std::vector<at::Tensor> cases{random,
                                      random.slice(0, 0, 1),
                                      random.slice(0, 0, 65),
                                      random.slice(0, 0, 64),
                                      at::zeros({64}),
                                      at::zeros({3}),
                                      at::cat({at::zeros({64}), random}),
                                      random * 1e-39,
                                      random * 1e-38,
                                      random.slice(0, 0, 65) * 1e-40,
                                      random * 1e30};
  for (std::size_t c = 0; c < cases.size(); ++c) {
    CAPTURE(c);
    const QuantisedMatrix packed = nf4(cases[c]);
    const std::vector<int> expected = nearest_indices(cases[c]);
    CHECK(packed.packed().numel() == (cases[c].numel() + 1) / 2);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const int byte = packed.packed()[static_cast<int64_t>(i / 2)].item<int>();
      CHECK((i % 2 == 0 ? byte >> 4 : byte & 15) == expected[i]);
    }
    const at::Tensor values = packed.unpack(at::kFloat).view({-1});
    REQUIRE(at::isfinite(values).all().item<bool>());
    // Packing is idempotent: what a checkpoint holds unpacked packs to the same bytes.
    // Below the smallest magnitude that bitsandbytes divides by, nothing reaches the last value.
    if (cases[c].abs().max().item<float>() > 1e-38F || cases[c].eq(0).all().item<bool>()) {
      CHECK(at::equal(nf4(values).packed(), packed.packed()));
    }
  }
  CHECK(at::equal(nf4(at::zeros({64})).unpack(at::kFloat), at::zeros({1, 64})));
}

TEST_CASE("quantised matrices take the predicted memory and err by their step at most") {
  at::manual_seed(4);
  const at::Tensor matrix = at::randn({96, 128});
  const QuantisedMatrix four = QuantisedMatrix::of(matrix, QuantisedFormat::kNf4);
  CHECK(four.bytes() * 8 == matrix.numel() * 9 / 2);  // 4.5 bits a weight
  const QuantisedMatrix eight = QuantisedMatrix::of(matrix, QuantisedFormat::kInt8);
  CHECK(eight.bytes() == matrix.numel() + 96 * 4);
  const at::Tensor step = matrix.abs().amax(1, /*keepdim=*/true) / 127;
  const at::Tensor error = (eight.unpack(at::kFloat) - matrix).abs();
  CHECK((error / step).max().item<double>() < 0.5 + 1e-4);
  CHECK((four.unpack(at::kFloat) - matrix).abs().max().item<double>() <
        0.5 * (1.0 - 0.6961) * matrix.abs().max().item<double>() + 1e-3);
  CHECK(at::equal(QuantisedMatrix::of(at::zeros({2, 4}), QuantisedFormat::kInt8).unpack(at::kFloat),
                  at::zeros({2, 4})));
  CHECK(at::equal(four.unpack(at::kBFloat16), four.unpack(at::kFloat).to(at::kBFloat16)));
  CHECK_THROWS_WITH(QuantisedMatrix::of(at::zeros({4}), QuantisedFormat::kNf4),
                    Catch::Contains("floating-point matrix"));
}

TEST_CASE("nf4 packs random weights to the bytes that bitsandbytes packs them to") {
  struct Golden {
    int64_t count;
    double factor;
    int64_t byte_sum;  // of each byte times its place, counted from 1
    double absmax_sum;
  };
  at::manual_seed(0);  // torch.randn's values in Python too
  for (const Golden& golden :
       {Golden{65, 1.0, 72371, 2.8948471546173096}, Golden{1000, 1.0, 15601531, 44.9484965801239},
        Golden{200, 1e-39, 614848, 1.7412187195681024e-38},
        Golden{130, 0.02, 277210, 0.14598087221384048}}) {
    CAPTURE(golden.count);
    const QuantisedMatrix packed = nf4(at::randn({golden.count}) * golden.factor);
    const at::Tensor bytes = packed.packed().to(at::kLong);
    const at::Tensor place = at::arange(1, bytes.numel() + 1, at::kLong);
    CHECK((bytes * place).sum().item<int64_t>() == golden.byte_sum);
    CHECK(packed.absmax().to(at::kDouble).sum().item<double>() ==
          Approx(golden.absmax_sum).epsilon(1e-7).margin(0));
  }
}

ModelConfig odd_config(bool biased) {
  ModelConfig config = test::tiny_config(11);
  config.hidden_size = 12;  // no projection is a whole number of blocks
  config.intermediate_size = 10;
  config.head_dim = 4;
  config.attention.qk_norm = !biased;
  config.attention.qkv_bias = config.attention.o_bias = config.mlp_bias = biased;
  return config;
}

// A model with quantised projections and adapters that are not zero, and the same computed from the
// unpacked values.
struct Quantised {
  Decoder packed, plain;
};

Quantised quantised_model(bool biased, QuantisedFormat format, at::ScalarType dtype) {
  Decoder drawn = test::random_decoder(odd_config(biased), dtype, 3, 0.4);
  const at::NoGradGuard no_grad;
  for (ParamUnit* unit : drawn.units()) {  // away from the norms' and biases' neutral values
    at::manual_seed(5);
    unit->flat().add_(at::randn(unit->flat().sizes()).to(unit->flat().scalar_type()) * 0.1);
  }
  Quantised models{test::stored_as(drawn, {.projections = format}),
                   Decoder(odd_config(biased), dtype)};
  for (std::size_t u = 0; u < models.plain.units().size(); ++u) {
    models.plain.units()[u]->flat().copy_(effective_values(models.packed, u));
  }
  for (Decoder* decoder : {&models.packed, &models.plain}) {
    Adapters& adapters = decoder->add_adapters({2, 4.0, {"q_proj", "v_proj", "down_proj"}});
    at::manual_seed(6);
    adapters.unit().flat().copy_(at::randn(adapters.unit().flat().sizes()) * 0.3);
  }
  return models;
}

struct QuantisedPass {
  at::Tensor hidden, gradient;
};

QuantisedPass run(Decoder& decoder) {
  test::LocalAttention attention({5, 3});
  at::manual_seed(11);
  const at::Tensor ids = at::randint(11, {8}, at::kLong);
  const at::Tensor hidden = decoder.forward(ids, test::packed_positions({5, 3}), attention);
  decoder.adapters()->unit().zero_grad();
  (hidden * at::arange(8 * 12, at::kFloat).view({8, 12}).cos().to(hidden.scalar_type()))
      .sum()
      .backward();
  return {hidden.detach(), decoder.adapters()->unit().grad().clone()};
}

TEST_CASE("a quantised model computes with its unpacked values, forward and backward") {
  for (const QuantisedFormat format : {QuantisedFormat::kNf4, QuantisedFormat::kInt8}) {
    for (const bool biased : {false, true}) {
      for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
        CAPTURE(static_cast<int>(format), biased, dtype);
        Quantised models = quantised_model(biased, format, dtype);
        const QuantisedPass packed = run(models.packed), plain = run(models.plain);
        CHECK(at::equal(packed.hidden, plain.hidden));
        CHECK(max_abs_diff(packed.gradient, plain.gradient) < 1e-12);
        models.packed.set_activation_options({Recompute::kFull});
        CHECK(max_abs_diff(run(models.packed).gradient, plain.gradient) < 1e-12);
        // Merged for export: the adapters on top of the unpacked values.
        for (std::size_t u = 0; u < models.plain.units().size(); ++u) {
          if (dtype == at::kDouble) {
            CHECK(at::equal(effective_values(models.packed, u), effective_values(models.plain, u)));
          }
        }
        const auto base = models.packed.without_adapters();
        CHECK_FALSE(engine::has_plain_weights(*base));
        CHECK(base->adapters() == nullptr);
      }
    }
  }
}

TEST_CASE("a matrix of several pieces is packed as its rows are") {
  // Rows of whole blocks, so that rows packed by themselves have the same blocks.
  at::manual_seed(9);
  const at::Tensor matrix = at::randn({1100, 2048});
  for (const QuantisedFormat format : {QuantisedFormat::kNf4, QuantisedFormat::kInt8}) {
    const QuantisedMatrix whole = QuantisedMatrix::of(matrix, format);
    std::vector<at::Tensor> packed, absmax;
    for (const at::Tensor& rows : matrix.split(100)) {
      const QuantisedMatrix part = QuantisedMatrix::of(rows, format);
      packed.push_back(part.packed());
      absmax.push_back(part.absmax());
    }
    CHECK(at::equal(whole.packed(), at::cat(packed)));
    CHECK(at::equal(whole.absmax(), at::cat(absmax)));
    CHECK(whole.bytes() == QuantisedMatrix::packed_bytes(1100, 2048, format));
  }
}

TEST_CASE("the values of a quantised layer are freed, and cannot be written") {
  const Decoder decoder =
      test::stored_as(test::random_decoder(odd_config(false), at::kFloat, 3, 0.4),
                      {.projections = QuantisedFormat::kNf4});
  CHECK(decoder.units()[1]->flat().is_meta());
  CHECK_THROWS_WITH(decoder.units()[1]->view(0), Catch::Contains("quantised"));
}

}  // namespace
}  // namespace ringside::engine
