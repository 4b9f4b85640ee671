#include "engine/models/random_weights.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/models/decoder_units.h"

namespace ringside::engine {
namespace {

// Elements that are drawn at once. Of 16 or more elements ATen's normal() makes each 16 from 16
// draws, in order; so the values are those of one draw of all, as long as no piece is shorter.
constexpr int64_t kDrawn = int64_t{1} << 20;

bool is_drawn(const ParamSpec& spec) {
  return spec.shape.size() > 1 && !spec.name.ends_with("bias");
}

// What the names of a layer's parameters begin with; empty for those of no layer.
std::string_view layer_part(std::string_view name) {
  const std::size_t number = name.find("layers.");
  return number == std::string_view::npos ? std::string_view()
                                          : name.substr(0, name.find('.', number + 7));
}

// Drawn in fp64, so that decoders of either master dtype start from the same model. slices: this
// rank's of the values.
void draw_normal(const ParamSpec& spec, const std::vector<NamedSlice>& slices, double std,
                 at::Generator& generator) {
  const int64_t numel = spec.numel();
  for (int64_t begin = 0, end = 0; begin < numel; begin = end) {
    end = numel - begin < 2 * kDrawn ? numel : begin + kDrawn;
    const NamedSlice drawn{spec.name, spec.shape, begin,
                           at::normal(0.0, std, {end - begin}, generator, at::kDouble)};
    for (const NamedSlice& slice : slices) {
      copy_shared(drawn, slice);
    }
  }
}

}  // namespace

RandomWeights::RandomWeights(const ModelConfig& config, uint64_t seed, double std)
    : seed_(seed),
      generator_(at::make_generator<at::CPUGeneratorImpl>(seed)),
      std_(std),
      norms_plus_one_(config.norms_plus_one),
      tower_(config.on_disk.tower),
      specs_(decoder_specs(config)) {}

void RandomWeights::skip_to(const std::string& name, bool keeps_skipped) {
  const auto found = std::ranges::find(specs_, name, &ParamSpec::name);
  TORCH_CHECK(found != specs_.end(), "random weights: ", name, " is no parameter of the model");
  const auto place = static_cast<std::size_t>(found - specs_.begin());
  if (place < next_) {  // the second copy of a tied embedding
    generator_ = at::make_generator<at::CPUGeneratorImpl>(seed_);
    next_ = 0;
  }
  for (; next_ < place; ++next_) {
    if (is_drawn(specs_[next_])) {
      if (keeps_skipped && layer_part(specs_[next_].name) == layer_part(name)) {
        skipped_.insert_or_assign(specs_[next_].name, generator_.clone());
      }
      draw_normal(specs_[next_], {}, std_, generator_);
    }
  }
}

at::Generator& RandomWeights::generator_at(const std::string& name, bool keeps_skipped) {
  if (const auto skipped = skipped_.find(name); skipped != skipped_.end()) {
    passed_ = std::move(skipped->second);
    skipped_.erase(skipped);
    return passed_;
  }
  if (next_ == specs_.size() || specs_[next_].name != name) {
    skip_to(name, keeps_skipped);
  }
  ++next_;
  return generator_;
}

void RandomWeights::operator()(const ParamUnit& unit) {
  const at::NoGradGuard no_grad;
  const bool is_cut = unit.layout().num_parts() > 1;
  for (std::size_t i = 0; i < unit.specs().size(); ++i) {
    const ParamSpec& spec = unit.specs()[i];
    if (is_drawn(spec)) {
      draw_normal(spec, unit.storage().slices_of(unit.flat().detach(), i), std_,
                  generator_at(spec.name, is_cut));
      continue;
    }
    // A norm multiplies by 1.
    const bool of_tower = spec.name.starts_with(tower_);
    const bool plain =
        of_tower || !norms_plus_one_ || spec.name.ends_with("linear_attn.norm.weight");
    const bool is_norm = spec.name.ends_with(of_tower ? ".weight" : "norm.weight");
    const bool zero = !plain || !is_norm;
    assign(unit.storage(), i, at::full(spec.shape, zero ? 0.0 : 1.0, at::kDouble));
  }
}

}  // namespace ringside::engine
