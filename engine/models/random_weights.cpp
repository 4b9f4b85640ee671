#include "engine/models/random_weights.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "engine/models/decoder_units.h"

namespace ringside::engine {
namespace {

// Elements that are drawn at once. Of 16 or more elements ATen's normal() makes each 16 from 16
// draws, in order; so the values are those of one draw of all, as long as no piece is shorter.
constexpr int64_t kDrawn = int64_t{1} << 20;

bool is_drawn(const ParamSpec& spec) {
  return spec.shape.size() > 1 && !spec.name.ends_with("bias");
}

// slice: this rank's of the `numel` values; nullopt: none is. Drawn in fp64, so that decoders of
// either master dtype start from the same model.
void draw_normal(int64_t numel, const std::optional<NamedSlice>& slice, double std,
                 at::Generator& generator) {
  for (int64_t begin = 0, end = 0; begin < numel; begin = end) {
    end = numel - begin < 2 * kDrawn ? numel : begin + kDrawn;
    const at::Tensor drawn = at::normal(0.0, std, {end - begin}, generator, at::kDouble);
    const int64_t first = slice ? std::max(begin, slice->begin) : end;
    const int64_t last = slice ? std::min(end, slice->end()) : end;
    if (first < last) {  // else other ranks have it
      slice->values.narrow(0, first - slice->begin, last - first)
          .copy_(drawn.narrow(0, first - begin, last - first));
    }
  }
}

}  // namespace

RandomWeights::RandomWeights(const ModelConfig& config, uint64_t seed, double std)
    : seed_(seed),
      generator_(at::make_generator<at::CPUGeneratorImpl>(seed)),
      std_(std),
      norms_plus_one_(config.norms_plus_one),
      specs_(decoder_specs(config)) {}

void RandomWeights::skip_to(const std::string& name) {
  const auto found = std::ranges::find(specs_, name, &ParamSpec::name);
  TORCH_CHECK(found != specs_.end(), "random weights: ", name, " is no parameter of the model");
  const auto place = static_cast<std::size_t>(found - specs_.begin());
  if (place < next_) {  // the second copy of a tied embedding
    generator_ = at::make_generator<at::CPUGeneratorImpl>(seed_);
    next_ = 0;
  }
  for (; next_ < place; ++next_) {
    if (is_drawn(specs_[next_])) {
      draw_normal(specs_[next_].numel(), std::nullopt, std_, generator_);
    }
  }
}

void RandomWeights::operator()(const ParamUnit& unit) {
  const at::NoGradGuard no_grad;
  if (next_ == specs_.size() || specs_[next_].name != unit.specs().front().name) {
    skip_to(unit.specs().front().name);
  }
  next_ += unit.specs().size();
  for (std::size_t i = 0; i < unit.specs().size(); ++i) {
    const ParamSpec& spec = unit.specs()[i];
    if (is_drawn(spec)) {
      draw_normal(spec.numel(), unit.storage().slice_of(unit.flat().detach(), i), std_, generator_);
      continue;
    }
    // A norm multiplies by 1.
    const bool plain = !norms_plus_one_ || spec.name.ends_with("linear_attn.norm.weight");
    const bool zero = !plain || !spec.name.ends_with("norm.weight");
    assign(unit.storage(), i, at::full(spec.shape, zero ? 0.0 : 1.0, at::kDouble));
  }
}

}  // namespace ringside::engine
