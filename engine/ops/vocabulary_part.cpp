#include "engine/ops/vocabulary_part.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "engine/params/sharding.h"

namespace ringside::engine {

at::Tensor VocabularyPart::places_of(const at::Tensor& ids) const {
  if (ids.device().is_cpu() && ids.numel() > 0) {
    const auto least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>();
    TORCH_CHECK(least >= 0 && most < all_words, "vocabulary: ids from ", least, " to ", most,
                " of ", all_words, " words");
  }
  const at::Tensor places = ids - words.begin;
  return at::where(places.lt(0).logical_or_(places.ge(words.size())), -1, places);
}

void merge_scores(const PartialScores& scores, const at::Tensor& places_n,
                  const VocabularyPart& part) {
  const at::NoGradGuard data_only;
  const at::Tensor here_n = places_n.ge(0);
  const at::Tensor own_4n =
      at::stack({scores.lse_n, scores.entropy_n, scores.logprobs_n, here_n.to(scores.lse_n)});
  const std::vector<at::Tensor> of_ranks = part.ranks->all_gather(own_4n, kTensorTag).unbind(1);
  const at::Tensor &lse_Tn = of_ranks[0], &entropy_Tn = of_ranks[1], &logprob_Tn = of_ranks[2];
  const at::Tensor lse_n = at::logsumexp(lse_Tn, 0);
  const at::Tensor behind_Tn = lse_n.unsqueeze(0) - lse_Tn;  // infinite without words
  const at::Tensor weight_Tn = behind_Tn.neg().exp();
  const at::Tensor zero = at::zeros({}, lse_n.options());
  scores.entropy_n.copy_(
      at::where(weight_Tn.gt(0), weight_Tn * (entropy_Tn + behind_Tn), zero).sum(0));
  scores.logprobs_n.copy_(at::where(of_ranks[3].gt(0), logprob_Tn - behind_Tn, zero).sum(0));
  scores.lse_n.copy_(lse_n);
}

}  // namespace ringside::engine
