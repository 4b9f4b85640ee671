#include "rl/setup/optimizer_options.h"

namespace ringside::rl {
namespace {

engine::MuonOptions muon_options(const MuonConfig& config) {
  const bool matches = config.scale == MuonScale::kMatchAdamW;
  return {config.momentum, config.nesterov, config.newton_schulz_steps,
          matches ? engine::DirectionScale::kMatchAdamW : engine::DirectionScale::kSpectral};
}

}  // namespace

engine::AdamWOptions adamw_options(const OptimizerConfig& config) {
  engine::AdamWOptions options;
  options.beta1 = config.beta1;
  options.beta2 = config.beta2;
  options.eps = config.eps;
  options.weight_decay = config.weight_decay;
  options.decays_vectors = config.weight_decay_of == WeightDecayOf::kAll;
  if (config.kind == OptimizerKind::kMuon) {
    options.muon = muon_options(config.muon);
  }
  return options;
}

}  // namespace ringside::rl
