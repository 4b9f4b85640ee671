// Guards the rollouts' log-probs (the trainer's ratio rests on them), the cache's alignment of
// unequal prompts, and that a completion depends on its seed alone, not on its neighbours in the
// batch.
#include "engine/generate/generation.h"
#include "engine/generate/generator.h"
#include "engine/generate/paged_cache.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/local_attention.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

using Prompts = std::vector<std::vector<int64_t>>;
using test::LocalAttention;
using test::max_abs_diff;

Decoder make_decoder(at::ScalarType dtype = at::kFloat) {
  ModelConfig config = test::tiny_config(13);
  config.max_position_embeddings = 200;
  return test::random_decoder(config, dtype, 9, 0.35);
}

// Latent attention in all layers, experts in the second.
Decoder latent_decoder(at::ScalarType dtype = at::kFloat) {
  ModelConfig config = test::latent_config(13);
  config.max_position_embeddings = 200;
  Decoder decoder = test::random_decoder(config, dtype, 9, 0.35);
  const at::NoGradGuard no_grad;
  at::manual_seed(2);
  decoder.units().back()->flat().normal_(0, 0.3);  // the router's correction
  return decoder;
}

// The models, by whether they have latent attention.
Decoder make_decoder(at::ScalarType dtype, bool latent) {
  return latent ? latent_decoder(dtype) : make_decoder(dtype);
}

const Prompts kPrompts{{1, 2, 3}, {4}, {5, 6, 7, 8, 9, 1, 2}, {1, 2, 3}, {10, 11}};

std::vector<int64_t> joined(const std::vector<int64_t>& prompt, const Completion& completion) {
  std::vector<int64_t> all = prompt;
  all.insert(all.end(), completion.ids.begin(), completion.ids.end());
  return all;
}

// Hidden states of a whole sequence, computed without a cache.
at::Tensor hidden_of(const Decoder& decoder, const std::vector<int64_t>& ids) {
  const int64_t n = static_cast<int64_t>(ids.size());
  LocalAttention attention({n});
  const at::NoGradGuard no_grad;
  return decoder.forward(at::tensor(ids, at::kLong), at::arange(n, at::kLong), attention);
}

TEST_CASE("log-probs equal the decoder's own score of the finished sequence") {
  for (const auto& [dtype, latent] : std::initializer_list<std::pair<at::ScalarType, bool>>{
           {at::kFloat, false}, {at::kDouble, false}, {at::kDouble, true}}) {
    const Decoder decoder = make_decoder(dtype, latent);
    for (const double temperature : {1.0, 0.7}) {
      const SamplingParams params{
          .temperature = temperature, .max_new_tokens = 90, .stop_ids = {0}, .seed = 4};
      const auto completions = generate(decoder, kPrompts, params);
      for (std::size_t i = 0; i < kPrompts.size(); ++i) {
        CAPTURE(dtype, latent, temperature, i);
        const std::vector<int64_t> all = joined(kPrompts[i], completions[i]);
        const int64_t n = static_cast<int64_t>(completions[i].ids.size());
        const at::Tensor hidden = hidden_of(decoder, all);
        const at::Tensor expected =
            decoder
                .score(hidden.narrow(0, kPrompts[i].size() - 1, n),
                       at::tensor(completions[i].ids, at::kLong), at::full({n}, temperature))
                .logprobs_n;
        CHECK(max_abs_diff(at::tensor(completions[i].logprobs), expected) < 1e-5);
      }
    }
  }
}

TEST_CASE("recorded sets are what top_p and top_k leave, and log-probs are over them", "[kept]") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const Decoder decoder = make_decoder(dtype);
    const SamplingParams params{.temperature = 0.8, .top_p = 0.7, .top_k = 9, .max_new_tokens = 40};
    // Rows that leave the cache and come back keep what was recorded.
    const auto completions =
        generate(decoder, kPrompts, params, {.record_kept = true, .cache_bytes = 1 << 15});
    std::size_t smallest = 99, largest = 0;
    for (std::size_t i = 0; i < kPrompts.size(); ++i) {
      CAPTURE(dtype, i);
      const Completion& one = completions[i];
      const auto n = static_cast<int64_t>(one.ids.size());
      REQUIRE(one.kept.size() == one.ids.size());
      const at::Tensor hidden = hidden_of(decoder, joined(kPrompts[i], one))
                                    .narrow(0, static_cast<int64_t>(kPrompts[i].size()) - 1, n);
      const at::Tensor logprobs = sampling_logprobs(test::logits_of(decoder, hidden), params);
      KeptSets kept{{0}, {}, {}};
      std::vector<int32_t> entries, words;
      for (int64_t t = 0; t < n; ++t) {
        const at::Tensor expected = logprobs[t].isfinite().nonzero().flatten();
        REQUIRE(expected.equal(at::tensor(one.kept[t], at::kLong)));
        entries.insert(entries.end(), one.kept[t].size(), static_cast<int32_t>(t));
        words.insert(words.end(), one.kept[t].begin(), one.kept[t].end());
        kept.begin.push_back(static_cast<int64_t>(words.size()));
        smallest = std::min(smallest, one.kept[t].size());
        largest = std::max(largest, one.kept[t].size());
      }
      kept.entry_m = at::tensor(entries, at::kInt);
      kept.word_m = at::tensor(words, at::kInt);
      const TokenScores scores =
          decoder.score(hidden, at::tensor(one.ids, at::kLong), at::full({n}, 0.8), {}, kept);
      CHECK(max_abs_diff(at::tensor(one.logprobs), scores.logprobs_n) < 1e-5);
    }
    CHECK(smallest < largest);
    CHECK(generate(decoder, kPrompts, params).front().kept.empty());
    CHECK(generate(decoder, kPrompts, {.max_new_tokens = 3}, {.record_kept = true})
              .front()
              .kept.empty());
  }
}

TEST_CASE("recorded routes are those of the finished sequence, without its last token",
          "[routes]") {
  ModelConfig config = test::tiny_config(13);
  config.experts = {.count = 5, .per_token = 2, .intermediate_size = 12, .normalise_weights = true};
  config.blocks = {{.channel_mixer = ChannelMixerKind::kMlp},
                   {.channel_mixer = ChannelMixerKind::kExperts}};
  const Decoder decoder = test::random_decoder(config, at::kDouble, 9, 0.35);
  const auto check = [&](const std::vector<Completion>& completions) {
    for (std::size_t i = 0; i < kPrompts.size(); ++i) {
      CAPTURE(i);
      std::vector<int64_t> all = joined(kPrompts[i], completions[i]);
      all.pop_back();
      const auto n = static_cast<int64_t>(all.size());
      LocalAttention attention({n});
      const at::NoGradGuard no_grad;
      ExpertNotes routes{.records = true};
      decoder.forward(at::tensor(all, at::kLong), at::arange(n, at::kLong), attention, &routes);
      REQUIRE(completions[i].routes_sLK.sizes() == at::IntArrayRef({n, 1, 2}));
      // Another order of sums may swap two experts of a token.
      CHECK(std::get<0>(completions[i].routes_sLK.sort(2))
                .equal(std::get<0>(routes.recorded_sLK().sort(2))));
    }
  };
  SamplingParams params{.max_new_tokens = 40, .stop_ids = {0}, .seed = 4};
  check(generate(decoder, kPrompts, params, {.record_routes = true}));
  int calls = 0;
  check(generate(decoder, kPrompts, params,
                 {.should_stop = [&] { return ++calls == 6; }, .record_routes = true}));
  CHECK_FALSE(generate(decoder, kPrompts, params).front().routes_sLK.defined());
}

TEST_CASE("greedy decoding equals the argmax of a full recompute") {
  const bool latent = GENERATE(false, true);
  CAPTURE(latent);
  const Decoder decoder = make_decoder(at::kFloat, latent);
  const auto completions = generate(decoder, kPrompts, {.temperature = 0, .max_new_tokens = 20});
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    const std::vector<int64_t> all = joined(kPrompts[i], completions[i]);
    const at::Tensor next = test::logits_of(decoder, hidden_of(decoder, all)).argmax(-1);
    for (std::size_t t = kPrompts[i].size(); t < all.size(); ++t) {
      CHECK(next[static_cast<int64_t>(t) - 1].item<int64_t>() == all[t]);
    }
  }
}

// What a cache of two prompts receives and returns, layer by layer.
class SizesSeen final : public AttentionBackend {
 public:
  explicit SizesSeen(PagedCache& cache) : cache_(cache) {}
  bool attends_latents() const override { return cache_.attends_latents(); }
  at::Tensor attend(const AttentionSpec& spec, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                    const at::Tensor& v_sKD) override {
    numbers_per_token += k_sKD.numel() / k_sKD.size(0);
    numbers_per_token += v_sKD.is_same(k_sKD) ? 0 : v_sKD.numel() / v_sKD.size(0);
    return cache_.attend(spec, q_sHD, k_sKD, v_sKD);
  }
  int64_t numbers_per_token = 0;  // of all layers

 private:
  PagedCache& cache_;
};

TEST_CASE("latent attention keeps one latent and one rotated key a token") {
  const Decoder decoder = latent_decoder();
  PagedCache cache(decoder.config(), decoder.context());
  cache.begin_prompts({4});
  SizesSeen seen(cache);
  const at::NoGradGuard no_grad;
  decoder.forward(decoder.materialize(), at::arange(4, at::kLong), at::arange(4, at::kLong), seen);
  const LatentAttentionConfig& latent = decoder.config().latent;
  CHECK(seen.numbers_per_token ==
        decoder.config().num_hidden_layers * (latent.kv_rank + latent.rope_dim));
}

// Attention of the last row of q over all rows of k and v that its window reaches, in fp64.
// Shapes: q [n, H, D], k and v [n, K, D]; returns [H, D].
at::Tensor exact_last_row(const AttentionSpec& spec, const at::Tensor& q_nHD,
                          const at::Tensor& k_nKD, const at::Tensor& v_nKD) {
  const int64_t n = q_nHD.size(0), group = q_nHD.size(1) / k_nKD.size(1);
  const int64_t first = spec.window > 0 ? std::max<int64_t>(0, n - spec.window) : 0;
  const auto heads = [&](const at::Tensor& x) {
    return x.narrow(0, first, n - first).to(at::kDouble).repeat_interleave(group, 1);
  };
  at::Tensor scores_Hn =
      at::einsum("hd,nhd->hn", {q_nHD[n - 1].to(at::kDouble), heads(k_nKD)}) * spec.softmax_scale;
  if (spec.sinks_H.defined()) {
    scores_Hn = at::cat({scores_Hn, spec.sinks_H.to(at::kDouble).unsqueeze(1)}, 1);
  }
  const at::Tensor probs_Hn = at::softmax(scores_Hn, 1).narrow(1, 0, n - first);
  return at::einsum("hn,nhd->hd", {probs_Hn, heads(v_nKD)});
}

TEST_CASE("in bf16 attention over the cache is the exact one, rounded once") {
  ModelConfig config = test::stacked_config();  // windows in turns, sinks
  const bool sinks = GENERATE(false, true);
  CAPTURE(sinks);
  at::manual_seed(3);
  const std::vector<int64_t> lengths{9, 14};
  const int64_t steps = 12, heads = config.num_attention_heads;
  const int64_t kv_heads = config.num_key_value_heads, d = config.head_dim;
  const auto random = [](std::vector<int64_t> shape) {
    return (at::randn(shape) * 3).to(at::kBFloat16);  // scores of up to 50
  };
  PagedCache cache(config, ComputeContext(at::kBFloat16));
  cache.begin_prompts(lengths);
  struct Layer {
    AttentionSpec spec;
    std::vector<at::Tensor> q, k, v;  // of each sequence, all its tokens
  };
  std::vector<Layer> layers(2);
  int64_t rounded_otherwise = 0, compared = 0;
  const auto compare = [&](const at::Tensor& found_HD, const Layer& layer, std::size_t b) {
    const at::Tensor exact = exact_last_row(layer.spec, layer.q[b], layer.k[b], layer.v[b]);
    rounded_otherwise += found_HD.ne(exact.to(at::kBFloat16)).sum().item<int64_t>();
    compared += found_HD.numel();
  };
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Layer& layer = layers[i];
    layer.spec = {static_cast<int64_t>(i), config.window(static_cast<int64_t>(i)),
                  1 / std::sqrt(static_cast<double>(d)), sinks ? at::randn({heads}) : at::Tensor()};
    for (const int64_t n : lengths) {
      layer.q.push_back(random({n, heads, d}));
      layer.k.push_back(random({n, kv_heads, d}));
      layer.v.push_back(random({n, kv_heads, d}));
    }
    const at::Tensor out =
        cache.attend(layer.spec, at::cat(layer.q), at::cat(layer.k), at::cat(layer.v));
    compare(out[lengths[0] - 1], layer, 0);
    compare(out[lengths[0] + lengths[1] - 1], layer, 1);
  }
  cache.add_rows(cache.take_prompts());
  for (int64_t step = 0; step < steps; ++step) {
    cache.begin_step();
    for (Layer& layer : layers) {
      const at::Tensor q = random({2, heads, d}), k = random({2, kv_heads, d});
      const at::Tensor v = random({2, kv_heads, d});
      const at::Tensor out = cache.attend(layer.spec, q, k, v);
      for (std::size_t b = 0; b < 2; ++b) {
        const auto row = static_cast<int64_t>(b);
        layer.q[b] = at::cat({layer.q[b], q.narrow(0, row, 1)});
        layer.k[b] = at::cat({layer.k[b], k.narrow(0, row, 1)});
        layer.v[b] = at::cat({layer.v[b], v.narrow(0, row, 1)});
        compare(out[row], layer, b);
      }
    }
  }
  CAPTURE(rounded_otherwise, compared);
  CHECK(rounded_otherwise * 100 < compared);
}

TEST_CASE("a completion depends on its seed, not on who shares the batch") {
  const Decoder decoder = make_decoder(at::kDouble);
  const SamplingParams params{.max_new_tokens = 30, .stop_ids = {0, 1}};
  const std::vector<uint64_t> seeds{11, 12, 13, 14, 15};
  const auto together = generate(decoder, kPrompts, params, {.seeds = seeds});
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    const auto alone =
        generate(decoder, {kPrompts[i]}, params, {.seeds = std::span(seeds).subspan(i, 1)});
    CHECK(alone[0].ids == together[i].ids);
    CHECK(alone[0].finish == together[i].finish);
    CHECK(max_abs_diff(at::tensor(alone[0].logprobs), at::tensor(together[i].logprobs)) < 1e-6);
  }
  CHECK(together[0].ids != together[3].ids);  // the same prompt under another seed
  CHECK(generate(decoder, kPrompts, params, {.seeds = seeds})[2].ids == together[2].ids);
}

TEST_CASE("completions take turns for few rows and little cache, and are the same") {
  const bool latent = GENERATE(false, true);
  CAPTURE(latent);
  const Decoder decoder = make_decoder(at::kDouble, latent);
  Prompts prompts = kPrompts;
  prompts.insert(prompts.end(), 3, {1, 2, 3});  // five completions of one prompt
  prompts.push_back(std::vector<int64_t>(35, 4));
  const SamplingParams params{.max_new_tokens = 40, .stop_ids = {0}, .seed = 3};
  const auto expected = generate(decoder, prompts, params);
  const auto check = [&](const GenerateOptions& options) {
    const auto found = generate(decoder, prompts, params, options);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      CAPTURE(options.max_rows, options.cache_bytes, i);
      CHECK(found[i].ids == expected[i].ids);
      CHECK(found[i].finish == expected[i].finish);
      CHECK(max_abs_diff(at::tensor(found[i].logprobs), at::tensor(expected[i].logprobs)) < 1e-6);
    }
  };
  for (const int64_t rows : {1, 2, 5}) {
    check({.max_rows = rows});
  }
  // Room for the longest completion alone, and for it and half as much.
  PagedCache cache(decoder.config(), decoder.context());
  const int64_t alone = cache.row_bytes(35 + 40) + cache.row_bytes(1);
  for (const int64_t bytes : {alone, alone * 3 / 2}) {
    check({.cache_bytes = bytes});
  }
  const auto most_bytes = [&](const GenerateOptions& options) {
    const at::NoGradGuard no_grad;
    Generation generation(decoder, prompts, params, options);
    int64_t most = 0;
    while (!generation.is_done()) {
      generation.step();
      most = std::max(most, generation.cache_bytes());
    }
    return most;
  };
  CHECK(most_bytes({}) > alone * 3 / 2);
  CHECK(most_bytes({.cache_bytes = alone * 3 / 2}) <= alone * 3 / 2);
  CHECK(most_bytes({.cache_bytes = alone}) <= alone);
  CHECK_THROWS_WITH(generate(decoder, prompts, params, {.cache_bytes = alone - 1}),
                    Catch::Contains("keys and values of prompt 8 with its completion take"));
}

TEST_CASE("a completion that left the cache brings the routes of all its tokens", "[routes]") {
  ModelConfig config = test::tiny_config(13);
  config.experts = {.count = 5, .per_token = 2, .intermediate_size = 12, .normalise_weights = true};
  config.blocks = {{.channel_mixer = ChannelMixerKind::kMlp},
                   {.channel_mixer = ChannelMixerKind::kExperts}};
  const Decoder decoder = test::random_decoder(config, at::kDouble, 9, 0.35);
  const SamplingParams params{.max_new_tokens = 40, .seed = 4};
  const auto expected = generate(decoder, kPrompts, params, {.record_routes = true});
  PagedCache cache(decoder.config(), decoder.context());
  const auto found =
      generate(decoder, kPrompts, params,
               {.record_routes = true, .cache_bytes = 2 * cache.row_bytes(7 + 40 + 16)});
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    CAPTURE(i);
    CHECK(found[i].ids == expected[i].ids);
    CHECK(std::get<0>(found[i].routes_sLK.sort(2))
              .equal(std::get<0>(expected[i].routes_sLK.sort(2))));
  }
}

TEST_CASE("rows behind one prompt share its pages until they write") {
  const Decoder decoder = make_decoder(at::kDouble);
  const DecoderWeights weights = decoder.materialize();
  const at::NoGradGuard no_grad;
  PagedCache cache(decoder.config(), decoder.context());
  const int64_t page = cache.row_bytes(1);
  cache.begin_prompts({40});
  decoder.forward(weights, at::arange(40, at::kLong).remainder(13), at::arange(40, at::kLong),
                  cache);
  {
    const std::vector<CachedPrompt> prompts = cache.take_prompts();
    cache.add_rows({prompts[0], prompts[0], prompts[0]});
    CHECK(cache.bytes() == 3 * page);
  }
  const auto step = [&](int64_t tokens_before) {
    cache.begin_step();
    decoder.forward(weights, at::tensor({1, 2, 3}, at::kLong),
                    at::full({3}, tokens_before, at::kLong), cache);
  };
  step(40);
  CHECK(cache.bytes() == (2 + 3) * page);  // the third page, half full, once for each row
  for (int64_t t = 41; t < 48; ++t) {
    step(t);
  }
  CHECK(cache.bytes() == (2 + 3) * page);
  CHECK(cache.step_bytes() == 3 * page);
  step(48);
  CHECK(cache.bytes() == (2 + 6) * page);
  cache.keep_rows({2});
  CHECK(cache.bytes() == (2 + 2) * page);
}

TEST_CASE("stop ids end a completion and are its last token; the rest run to the limit") {
  const Decoder decoder = make_decoder();
  const Prompts prompts(40, {3, 4});
  const auto completions = generate(decoder, prompts, {.max_new_tokens = 12, .stop_ids = {2, 5}});
  int64_t stopped = 0;
  for (const Completion& completion : completions) {
    stopped += completion.finish == StopReason::kStop ? 1 : 0;
    CHECK(completion.ids.size() == completion.logprobs.size());
    for (std::size_t t = 0; t < completion.ids.size(); ++t) {
      const bool is_stop = completion.ids[t] == 2 || completion.ids[t] == 5;
      const bool is_last = t + 1 == completion.ids.size();
      CHECK(is_stop == (is_last && completion.finish == StopReason::kStop));
    }
    CHECK((completion.finish == StopReason::kStop || completion.ids.size() == 12));
  }
  CHECK(stopped > 0);
  CHECK(stopped < 40);
}

TEST_CASE("a completion of fewer tokens is the beginning of the one of more") {
  const Decoder decoder = make_decoder(at::kDouble);
  const std::vector<uint64_t> seeds{11, 12, 13, 14, 15};
  const std::vector<int64_t> lengths{1, 20, 3, 7, 20};
  const auto whole = generate(decoder, kPrompts, {.max_new_tokens = 20}, {.seeds = seeds});
  const auto cut = generate(decoder, kPrompts, {.max_new_tokens = 20},
                            {.seeds = seeds, .max_new_tokens = lengths, .max_rows = 2});
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    REQUIRE(std::ssize(cut[i].ids) == lengths[i]);
    CHECK(std::equal(cut[i].ids.begin(), cut[i].ids.end(), whole[i].ids.begin()));
    CHECK(cut[i].finish == StopReason::kLength);
  }
}

TEST_CASE("an interrupt keeps the tokens so far and what had finished") {
  const Decoder decoder = make_decoder();
  int asked = 0;
  const auto completions = generate(decoder, kPrompts, {.max_new_tokens = 50},
                                    {.should_stop = [&] { return asked++ == 3; }});
  for (const Completion& completion : completions) {
    CHECK(completion.finish == StopReason::kAborted);
    CHECK(completion.ids.size() == 3);
  }
}

TEST_CASE("an interrupted completion goes on as if nothing had happened") {
  const Decoder decoder = make_decoder(at::kDouble);
  const std::vector<uint64_t> seeds{11, 12, 13, 14, 15};
  const SamplingParams params{.max_new_tokens = 20};
  const auto whole = generate(decoder, kPrompts, params, {.seeds = seeds});
  int asked = 0;
  GenerateOptions options{.seeds = seeds, .should_stop = [&] { return asked++ == 3; }};
  options.max_rows = 4;  // the last completion has not begun
  const auto begun = generate(decoder, kPrompts, params, options);
  CHECK(begun[0].ids.size() == 3);
  CHECK(begun[4].ids.empty());
  const auto resumed = generate(decoder, kPrompts, params, {.seeds = seeds, .begun = begun});
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    CHECK(resumed[i].ids == whole[i].ids);
    CHECK(resumed[i].finish == StopReason::kLength);
    for (std::size_t t = 0; t < whole[i].ids.size(); ++t) {
      CHECK(resumed[i].logprobs[t] == Approx(whole[i].logprobs[t]).margin(1e-6));
    }
  }
}

TEST_CASE("top-k and top-p keep the smallest likely set, renormalised") {
  const at::Tensor probs = at::tensor({0.1, 0.4, 0.05, 0.25, 0.2}, at::kDouble);
  const at::Tensor logits = probs.log().unsqueeze(0);
  const auto cut = [&](SamplingParams params) {
    return sampling_logprobs(logits, params).exp().squeeze(0);
  };
  const auto expect = [](std::vector<double> kept) {
    const at::Tensor p = at::tensor(kept, at::kDouble);
    return p / p.sum();
  };
  CHECK(max_abs_diff(cut({.top_k = 2}), expect({0, 0.4, 0, 0.25, 0})) < 1e-12);
  CHECK(max_abs_diff(cut({.top_p = 0.6}), expect({0, 0.4, 0, 0.25, 0})) < 1e-12);
  CHECK(max_abs_diff(cut({.top_p = 0.7}), expect({0, 0.4, 0, 0.25, 0.2})) < 1e-12);
  CHECK(max_abs_diff(cut({.top_p = 1e-9}), expect({0, 1, 0, 0, 0})) < 1e-12);
  // 0.4 is 47 % of the three that top_k keeps: top_p counts after it.
  CHECK(max_abs_diff(cut({.top_p = 0.5, .top_k = 3}), expect({0, 0.4, 0, 0.25, 0})) < 1e-12);
  CHECK(max_abs_diff(cut({.temperature = 0.5}), expect({0.01, 0.16, 0.0025, 0.0625, 0.04})) <
        1e-12);
}

TEST_CASE("drawn tokens follow the distribution and stay inside the cut") {
  const int64_t n = 20000;
  const at::Tensor probs = at::tensor({0.1, 0.4, 0.05, 0.25, 0.2}, at::kDouble);
  std::vector<double> uniform;
  for (int64_t i = 0; i < n; ++i) {
    uniform.push_back(RandomStream{1, static_cast<uint64_t>(i)}.uniform(7));
  }
  const at::Tensor logits = probs.log().expand({n, 5});
  const SamplingParams params{.top_k = 4};
  const Draw draw = draw_tokens(logits, at::tensor(uniform, at::kDouble), params);
  const at::Tensor share = draw.ids_B.bincount({}, 5).to(at::kDouble) / n;
  const at::Tensor expected = sampling_logprobs(logits.narrow(0, 0, 1), params).exp().squeeze(0);
  CHECK(share[2].item<double>() == 0);
  CHECK(max_abs_diff(share, expected) < 0.015);  // four standard deviations of 20000 draws
  CHECK(max_abs_diff(draw.logprobs_B, expected.log().index_select(0, draw.ids_B)) < 1e-12);
}

TEST_CASE("a draw from a row is the one that the whole distribution gives") {
  at::manual_seed(11);
  const int64_t rows = 300, vocabulary = 1500;
  const at::Tensor logits = at::randn({rows, vocabulary}, at::kFloat) * 3;
  logits.select(0, 3).fill_(-std::numeric_limits<float>::infinity());
  logits[3][1499] = 1.0;  // one token alone
  std::vector<double> uniform;
  for (int64_t i = 0; i < rows; ++i) {
    uniform.push_back(RandomStream{2, static_cast<uint64_t>(i)}.uniform(1));
  }
  const at::Tensor points = at::tensor(uniform, at::kDouble);
  for (const SamplingParams& params :
       std::vector<SamplingParams>{{},
                                   {.temperature = 0},
                                   {.temperature = 0.6},
                                   {.top_k = 7},
                                   {.top_p = 0.8},
                                   {.temperature = 1.3, .top_p = 0.95, .top_k = 50},
                                   {.top_p = 1e-6},
                                   {.temperature = 0, .top_k = 3}}) {
    CAPTURE(params.temperature, params.top_p, params.top_k);
    const Draw found = draw_tokens(logits, points, params);
    const Draw exact = draw_tokens(logits.to(at::kDouble), points, params);
    // A point may lie within rounding of the border between two tokens.
    CHECK(found.ids_B.ne(exact.ids_B).sum().item<int64_t>() <= 1);
    const at::Tensor logprobs = sampling_logprobs(logits.to(at::kDouble), params)
                                    .gather(1, found.ids_B.unsqueeze(1))
                                    .squeeze(1);
    CHECK(max_abs_diff(found.logprobs_B, logprobs) < 2e-6);
  }
}

TEST_CASE("a begun completion needs room for a token and a log-prob of each") {
  const Decoder decoder = make_decoder();
  const auto refusal = [&](const std::vector<Completion>& begun) {
    return [&decoder, begun] {
      generate(decoder, {{1, 2}}, {.max_new_tokens = 2}, {.begun = begun});
    };
  };
  CHECK_THROWS_WITH(refusal({{{3, 4}, {-1, -1}}})(),
                    Catch::Contains("2 ids") && Catch::Contains("below 2"));
  CHECK_THROWS_WITH(refusal({{{3}, {}}})(), Catch::Contains("1 ids and 0 log-probs"));
  CHECK_THROWS_WITH(refusal({{}, {}})(), Catch::Contains("1 prompts, but 2 begun"));
}

TEST_CASE("bad requests are refused by name") {
  const Decoder decoder = make_decoder();
  const std::vector<uint64_t> one_seed{1};
  CHECK_THROWS_AS(generate(decoder, {{1}, {}}, {.max_new_tokens = 1}), std::invalid_argument);
  CHECK_THROWS_AS(generate(decoder, {{1}}, {.max_new_tokens = 0}), std::invalid_argument);
  CHECK_THROWS_AS(generate(decoder, {{1}}, {.max_new_tokens = 200}), std::invalid_argument);
  CHECK_THROWS_AS(generate(decoder, {{1}}, {.top_p = 0, .max_new_tokens = 1}),
                  std::invalid_argument);
  CHECK_THROWS_AS(generate(decoder, {{1}}, {.temperature = -1, .max_new_tokens = 1}),
                  std::invalid_argument);
  CHECK_THROWS_AS(generate(decoder, {{1}, {2}}, {.max_new_tokens = 1}, {.seeds = one_seed}),
                  std::invalid_argument);
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{1}, std::vector<int64_t>{1, 0}, std::vector<int64_t>{1, 3}}) {
    CHECK_THROWS_AS(
        generate(decoder, {{1}, {2}}, {.max_new_tokens = 2}, {.max_new_tokens = lengths}),
        std::invalid_argument);
  }
  for (const double temperature : {1.0, 0.0}) {
    CHECK_THROWS_AS(draw_tokens(at::full({1, 3}, NAN), at::zeros({1}, at::kDouble),
                                {.temperature = temperature}),
                    c10::Error);
  }
  CHECK(generate(decoder, {}, {.max_new_tokens = 1}).empty());
}

TEST_CASE(
    "tokens are reported one by one as they are drawn, also behind rows that left the cache") {
  const Decoder decoder = make_decoder();
  SamplingParams params;
  params.max_new_tokens = 12;
  params.stop_ids = {3};
  const PagedCache cache(decoder.config(), decoder.context());
  for (const int64_t cache_bytes : {int64_t{0}, 2 * cache.row_bytes(7 + 12)}) {
    GenerateOptions options;
    options.cache_bytes = cache_bytes;
    std::vector<Completion> reported(kPrompts.size());
    std::size_t steps = 0, most_at_once = 0, before = 0, total = 0;
    options.should_stop = [&] {
      ++steps;
      most_at_once = std::max(most_at_once, total - before);
      before = total;
      return false;
    };
    options.on_token = [&](std::size_t completion, const Completion& so_far) {
      Completion& all = reported[completion];
      CHECK(all.finish == StopReason::kAborted);  // nothing follows the last one
      all.ids.push_back(so_far.ids.back());
      all.logprobs.push_back(so_far.logprobs.back());
      all.finish = so_far.finish;
      CHECK(all.ids == so_far.ids);
      ++total;
    };
    const std::vector<Completion> completions = generate(decoder, kPrompts, params, options);
    for (std::size_t i = 0; i < completions.size(); ++i) {
      CHECK(reported[i].ids == completions[i].ids);
      CHECK(reported[i].logprobs == completions[i].logprobs);
      CHECK(reported[i].finish == completions[i].finish);
    }
    CHECK(steps > 1);
    CHECK(most_at_once <= 2 * kPrompts.size());  // a step, and the first tokens of those that begin
  }
}

}  // namespace
}  // namespace ringside::engine
