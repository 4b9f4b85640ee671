// Guards: gradients of a tower's parameters; images that reach each other; a frozen tower that
// keeps a gradient; recomputation, sharding or bf16 that changes what a tower computes.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <memory>
#include <string>

#include "engine/params/sharding.h"
#include "tests/support/assertion_lock.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/grad_check.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_parallel.h"
#include "tests/support/tiny_tower.h"

namespace ringside::engine {
namespace {

using test::kVisionFamilies;
using test::max_abs_diff;
using test::random_patches;
using test::tower_config;
using test::tower_decoder;
using Grids = std::vector<PatchGrid>;

const Grids kGrids{{1, 4, 6}, {1, 2, 2}};

const VisionTower& tower_of(const Decoder& decoder) { return *decoder.parameters().tower(); }

at::Tensor loss_of(const EncodedImages& images) {
  const auto weighed = [](const at::Tensor& rows) {
    return (rows * at::arange(1, rows.numel() + 1, at::kDouble).cos().view_as(rows)).sum();
  };
  at::Tensor loss = weighed(images.rows_iE);
  for (const at::Tensor& rows : images.deepstack_iE) {
    loss = loss + 0.5 * weighed(rows);
  }
  return loss;
}

// Of each unit of the tower whose gradient has come.
std::map<std::string, at::Tensor> gradients(const Decoder& decoder, const at::Tensor& patches,
                                            const Grids& grids,
                                            const ActivationOptions& activations = {}) {
  for (const auto& unit : tower_of(decoder).units()) {
    unit->zero_grad();
  }
  loss_of(tower_of(decoder).encode(patches, grids, activations)).backward();
  std::map<std::string, at::Tensor> found;
  for (const auto& unit : tower_of(decoder).units()) {
    if (unit->flat().grad().defined()) {
      found[unit->name()] = unit->flat().grad().clone();
    }
  }
  return found;
}

TEST_CASE("gradients of a tower's parameters equal finite differences") {
  for (const VisionFamily family : kVisionFamilies) {
    const Decoder decoder = tower_decoder(tower_config(family));
    const at::Tensor patches = random_patches(*decoder.config().vision, kGrids);
    const auto found = gradients(decoder, patches, kGrids);
    const auto loss = [&] {
      const at::NoGradGuard no_grad;
      return loss_of(tower_of(decoder).encode(patches, kGrids)).item<double>();
    };
    REQUIRE(found.size() == tower_of(decoder).units().size());
    for (const auto& unit : tower_of(decoder).units()) {
      for (std::size_t p = 0; p < unit->specs().size(); ++p) {
        const at::Tensor values = unit->view(p);
        const at::Tensor grad = unit->layout().view_of(found.at(unit->name()), p);
        for (const int64_t i : {int64_t{0}, values.numel() / 2, values.numel() - 1}) {
          INFO(unit->specs()[p].name << " element " << i);
          CHECK(grad.view({-1})[i].item<double>() ==
                Approx(test::finite_difference(loss, values, i)).margin(1e-7).epsilon(1e-6));
        }
      }
    }
  }
}

TEST_CASE("images of one pass are encoded as each is alone") {
  for (const VisionFamily family : kVisionFamilies) {
    const Decoder decoder = tower_decoder(tower_config(family));
    const Grids grids{{1, 2, 4}, {1, 6, 4}, {1, 2, 4}, {2, 4, 2}};
    const at::Tensor patches = random_patches(*decoder.config().vision, grids);
    const at::NoGradGuard no_grad;
    const EncodedImages together = tower_of(decoder).encode(patches, grids);
    int64_t patch = 0, row = 0;
    for (const PatchGrid& grid : grids) {
      const Grids one{grid};
      const EncodedImages alone =
          tower_of(decoder).encode(patches.narrow(0, patch, grid.patches()), one);
      const int64_t tokens = grid.tokens(2);
      REQUIRE(alone.rows_iE.size(0) == tokens);
      CHECK(max_abs_diff(alone.rows_iE, together.rows_iE.narrow(0, row, tokens)) < 1e-13);
      for (std::size_t k = 0; k < alone.deepstack_iE.size(); ++k) {
        CHECK(max_abs_diff(alone.deepstack_iE[k], together.deepstack_iE[k].narrow(0, row, tokens)) <
              1e-13);
      }
      patch += grid.patches();
      row += tokens;
    }
  }
}

TEST_CASE("without images a tower gives no rows and gradients of zero") {
  for (const VisionFamily family : kVisionFamilies) {
    const Decoder decoder = tower_decoder(tower_config(family));
    const at::Tensor patches = random_patches(*decoder.config().vision, {});
    const EncodedImages images = tower_of(decoder).encode(patches, {});
    CHECK(images.rows_iE.sizes() == at::IntArrayRef({0, decoder.config().hidden_size}));
    CHECK(images.deepstack_iE.size() == decoder.config().vision->deepstack.size());
    const auto found = gradients(decoder, patches, {});
    CHECK(found.size() == tower_of(decoder).units().size());
    for (const auto& [name, grad] : found) {
      INFO(name);
      CHECK(grad.equal(at::zeros_like(grad)));
    }
  }
}

TEST_CASE("a frozen tower keeps nothing for a backward and is not trained") {
  for (const VisionFamily family : kVisionFamilies) {
    const Decoder frozen =
        tower_decoder(tower_config(family), at::kDouble, VisionTraining::kNothing);
    const Decoder trained = tower_decoder(tower_config(family));
    const at::Tensor patches = random_patches(*frozen.config().vision, kGrids);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      const EncodedImages images =
          tower_of(frozen).encode(patches, kGrids, {.recompute = recompute});
      CHECK_FALSE(images.rows_iE.requires_grad());
      for (const at::Tensor& rows : images.deepstack_iE) {
        CHECK_FALSE(rows.requires_grad());
      }
      CHECK(images.rows_iE.equal(tower_of(trained).encode(patches, kGrids).rows_iE.detach()));
    }
    const std::size_t of_tower = tower_of(frozen).units().size();
    CHECK(frozen.units().size() == trained.units().size());
    CHECK(frozen.trained_units().size() == frozen.units().size() - of_tower);
    CHECK(trained.trained_units().size() == trained.units().size());
  }
}

TEST_CASE("trained mergers have the gradients that they have in a trained tower, others none") {
  for (const VisionFamily family : kVisionFamilies) {
    const Decoder all = tower_decoder(tower_config(family));
    const Decoder mergers =
        tower_decoder(tower_config(family), at::kDouble, VisionTraining::kMergers);
    const at::Tensor patches = random_patches(*all.config().vision, kGrids);
    const auto expected = gradients(all, patches, kGrids);
    const auto found = gradients(mergers, patches, kGrids, {.recompute = Recompute::kFull});
    CHECK(found.size() == 1 + all.config().vision->deepstack.size());
    for (const auto& [name, grad] : found) {
      INFO(name);
      CHECK(grad.equal(expected.at(name)));
    }
  }
}

TEST_CASE("recomputed blocks have the same gradients to the bit") {
  for (const VisionFamily family : kVisionFamilies) {
    const Decoder decoder = tower_decoder(tower_config(family));
    const at::Tensor patches = random_patches(*decoder.config().vision, kGrids);
    const auto expected = gradients(decoder, patches, kGrids);
    for (const Recompute recompute : {Recompute::kFull, Recompute::kSelective}) {
      const auto found = gradients(decoder, patches, kGrids, {.recompute = recompute});
      CHECK(found.size() == expected.size());
      for (const auto& [name, grad] : found) {
        INFO(name);
        CHECK(grad.equal(expected.at(name)));
      }
    }
  }
}

TEST_CASE("a tower in bf16 departs from fp64 by rounding, and its gradients are fp32") {
  for (const VisionFamily family : kVisionFamilies) {
    const ModelConfig config = tower_config(family);
    ComputeContext context(at::kBFloat16);
    context.master = at::kFloat;
    Decoder narrow(config, context,
                   {.frozen = false, .projections = {}, .vision = VisionTraining::kAll});
    const Decoder exact = tower_decoder(config);
    narrow.copy_parameters_from(exact);
    const at::Tensor patches = random_patches(*config.vision, kGrids, at::kBFloat16);
    const EncodedImages found = tower_of(narrow).encode(patches, kGrids);
    const EncodedImages expected = tower_of(exact).encode(patches.to(at::kDouble), kGrids);
    CHECK(found.rows_iE.scalar_type() == at::kBFloat16);
    const double size = expected.rows_iE.detach().abs().max().item<double>();
    CHECK(max_abs_diff(found.rows_iE.detach(), expected.rows_iE.detach()) < 0.05 * size);
    loss_of(found).backward();
    for (const auto& unit : tower_of(narrow).units()) {
      CHECK(unit->grad().scalar_type() == at::kFloat);
      CHECK(unit->grad().abs().max().item<double>() > 0);
    }
  }
}

TEST_CASE("a sharded tower has the rows and gradients of a whole one, with images on some ranks") {
  // As the ranks: products of other numbers of threads may have other bits.
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (const VisionFamily family : kVisionFamilies) {
    const ModelConfig config = tower_config(family);
    const Decoder whole = tower_decoder(config);
    const at::Tensor patches = random_patches(*config.vision, kGrids);
    const EncodedImages expected = tower_of(whole).encode(patches, kGrids);
    const auto expected_grads = gradients(whole, patches, kGrids);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      test::run_ranks_in_memory({.dp_shard = 2}, [&](const sp::Mesh& mesh,
                                                     const sp::ProcessGroups& groups) {
        ComputeContext context(at::kDouble);
        context.sharding = std::make_shared<const Sharding>(
            Sharding{groups.tensors(sp::axes::fsdp(sp::CpFsdpMode::kAll)),
                     groups.tensors(sp::axes::without_fsdp(sp::CpFsdpMode::kAll)), 3});
        std::size_t next = 0;
        const Decoder decoder(config, context,
                              {.frozen = false, .projections = {}, .vision = VisionTraining::kAll},
                              [&](ParamUnit& unit) {
                                const ParamUnit& from = *whole.units()[next++];
                                for (std::size_t i = 0; i < unit.specs().size(); ++i) {
                                  assign(unit.storage(), i, from.view(i));
                                }
                              });
        std::map<std::string, at::Tensor> found;
        for (const auto& unit : tower_of(decoder).units()) {
          unit->gathered().on_gradient([&found, name = unit->name()](at::Tensor grad, bool) {
            found[name] = std::move(grad);
          });
        }
        const bool has_images = mesh.rank() == 1;
        const Grids grids = has_images ? kGrids : Grids{};
        const EncodedImages images = tower_of(decoder).encode(
            has_images ? patches : patches.narrow(0, 0, 0), grids, {.recompute = recompute});
        loss_of(images).backward();
        const auto lock = test::assertion_lock();
        CHECK(found.size() == expected_grads.size());
        for (const auto& [name, grad] : found) {
          INFO(name << " on rank " << mesh.rank());
          CHECK(grad.equal(has_images ? expected_grads.at(name) : at::zeros_like(grad)));
        }
        if (has_images) {
          CHECK(images.rows_iE.detach().equal(expected.rows_iE.detach()));
        }
      });
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("a tower is whole on each tensor-parallel rank, and exported as of one rank") {
  const ModelConfig config = tower_config(VisionFamily::kQwen3Vl);
  Decoder whole(config, ComputeContext(at::kDouble));
  whole.init_random(3, 0.4);
  const at::Tensor patches = random_patches(*config.vision, kGrids);
  const EncodedImages expected = tower_of(whole).encode(patches, kGrids);
  for (const int64_t zero_stage : {0, 3}) {
    test::run_ranks_in_memory(
        {.tensor = 2},
        [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
          Decoder decoder(config, test::tensor_context(groups, at::kDouble, zero_stage));
          decoder.init_random(3, 0.4);
          // Each rank has images of its own.
          const at::NoGradGuard no_grad;
          const bool is_first = mesh.rank() == 0;
          const Grids one{kGrids[is_first ? 0 : 1]};
          const EncodedImages images = tower_of(decoder).encode(
              is_first ? patches.narrow(0, 0, 24) : patches.narrow(0, 24, 4), one);
          std::vector<ParamSpec> specs;
          for (const ExportPlan& plan : decoder.parameters().export_plans()) {
            specs.insert(specs.end(), plan.layout.specs().begin(), plan.layout.specs().end());
          }
          const auto lock = test::assertion_lock();
          CHECK(max_abs_diff(images.rows_iE, is_first ? expected.rows_iE.narrow(0, 0, 6)
                                                      : expected.rows_iE.narrow(0, 6, 1)) < 1e-13);
          CHECK((specs == decoder_specs(config)));
        },
        test::tensor_axes());
  }
}

TEST_CASE("a tower refuses patches that do not fit their grids") {
  const Decoder decoder = tower_decoder(tower_config(VisionFamily::kQwen3Vl));
  const VisionTower& tower = tower_of(decoder);
  const at::Tensor patches = random_patches(*decoder.config().vision, kGrids);
  CHECK_THROWS_AS(tower.encode(patches.narrow(0, 0, 27), kGrids), c10::Error);
  CHECK_THROWS_AS(tower.encode(patches.narrow(1, 0, 11), kGrids), c10::Error);
  CHECK_THROWS_AS(tower.encode(patches.to(at::kFloat), kGrids), c10::Error);
  const Grids odd{{1, 3, 2}};
  CHECK_THROWS_AS(tower.encode(patches.narrow(0, 0, 6), odd), std::invalid_argument);
}

TEST_CASE("towers of impossible shapes are refused") {
  const auto refuses = [](VisionFamily family, const std::function<void(VisionConfig&)>& change) {
    ModelConfig config = tower_config(family);
    change(*config.vision);
    CHECK_THROWS_AS(Decoder(config, ComputeContext(at::kDouble)), c10::Error);
  };
  refuses(VisionFamily::kQwen3Vl, [](VisionConfig& c) { c.heads = 3; });
  refuses(VisionFamily::kQwen3Vl, [](VisionConfig& c) { c.positions = 8; });
  refuses(VisionFamily::kQwen3Vl, [](VisionConfig& c) { c.deepstack = {1, 0}; });
  refuses(VisionFamily::kQwen3Vl, [](VisionConfig& c) { c.deepstack = {2}; });
  refuses(VisionFamily::kQwen2Vl, [](VisionConfig& c) { c.positions = 9; });
  refuses(VisionFamily::kQwen2_5Vl, [](VisionConfig& c) { c.window = 3; });
  refuses(VisionFamily::kQwen2_5Vl, [](VisionConfig& c) { c.depth = 0; });
}

}  // namespace
}  // namespace ringside::engine
