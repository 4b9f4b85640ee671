// Guards: completions of prompts with images that are drawn from another distribution than the
// model computes without a cache: positions behind an image, rows of another image, equal ids with
// other images, texts that begin again after they left the cache. Oracle: the decoder's own forward
// over the whole text, fp64.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/generate/generator.h"
#include "engine/generate/page_pool.h"
#include "engine/models/encode_images.h"
#include "tests/support/catch.h"
#include "tests/support/image_documents.h"
#include "tests/support/local_hybrid.h"
#include "tests/support/tiny_tower.h"

namespace ringside::engine {
namespace {

using test::DrawnImage;

constexpr int64_t kDrawn = 40;  // tokens of a completion

struct Prompts {
  std::vector<std::vector<int64_t>> ids;
  std::vector<std::vector<PromptImageRows>> images;
};

// Prompts without image, with one, with two that follow each other, and two of equal ids with other
// images. The placeholder's id, 9, is also a word of the first.
Prompts make_prompts(const Decoder& decoder) {
  const ImageInput input = test::drawn_images(*decoder.config().vision);
  Prompts prompts;
  const at::NoGradGuard no_grad;
  const auto add = [&](std::vector<int64_t> ids, const std::vector<DrawnImage>& images) {
    std::vector<PromptImageRows> encoded;
    for (const DrawnImage& image : images) {
      const int64_t tokens = image.height * image.width;
      std::fill_n(ids.begin() + image.begin, tokens, 9);
      const std::vector<std::shared_ptr<const ProcessedImage>> pixels{
          input.pixels({0, static_cast<uint64_t>(image.number)})};
      encoded.push_back({{image.begin, {1, 2 * image.height, 2 * image.width}},
                         test::drawn_hash(image.number),
                         encode_images(decoder, pixels, input.processor, {})});
    }
    prompts.ids.push_back(std::move(ids));
    prompts.images.push_back(std::move(encoded));
  };
  add({1, 2, 9, 3}, {});
  add({1, 2, 3, 0, 0, 0, 0, 4, 5}, {{3, 1, 2, 2}});
  add({1, 2, 0, 0, 0, 0, 0, 6}, {{2, 2, 1, 3}, {5, 3, 2, 1}});
  add({1, 0, 0, 7, 8, 2}, {{1, 5, 1, 2}});
  add({1, 0, 0, 7, 8, 2}, {{1, 6, 1, 2}});
  add({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5}, {{0, 4, 3, 4}});
  return prompts;
}

// Log-probs of a completion, of the whole text at once.
at::Tensor scored(const Decoder& decoder, const Prompts& prompts, std::size_t i,
                  const std::vector<int64_t>& completion) {
  std::vector<int64_t> ids = prompts.ids[i];
  const auto prompt = static_cast<int64_t>(ids.size());
  ids.insert(ids.end(), completion.begin(), completion.end());
  const auto tokens = static_cast<int64_t>(ids.size());
  std::vector<ImageSpan> spans;
  std::vector<int64_t> places;
  ImageRows images;
  std::vector<at::Tensor> rows;
  std::vector<std::vector<at::Tensor>> levels(decoder.config().vision->deepstack.size());
  for (const PromptImageRows& image : prompts.images[i]) {
    spans.push_back(image.span);
    for (int64_t row = 0; row < image.rows.rows_iE.size(0); ++row) {
      places.push_back(image.span.begin + row);
    }
    rows.push_back(image.rows.rows_iE);
    for (std::size_t level = 0; level < levels.size(); ++level) {
      levels[level].push_back(image.rows.deepstack_iE[level]);
    }
  }
  if (!rows.empty()) {
    images = {at::tensor(places, at::kLong), at::cat(rows), {}};
    for (const auto& level : levels) {
      images.deepstack_iE.push_back(at::cat(level));
    }
  }
  const TokenPositions positions = token_positions(tokens, spans, 2);
  const at::Tensor positions_3s =
      at::stack({at::tensor(positions.time, at::kLong), at::tensor(positions.height, at::kLong),
                 at::tensor(positions.width, at::kLong)});
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> lengths{tokens};
  std::unique_ptr<AttentionBackend> attention = std::make_unique<test::LocalAttention>(lengths);
  if (decoder.config().delta_net.shape.value_heads > 0) {
    attention = std::make_unique<test::LocalHybrid>(decoder.config(), lengths);
  }
  const at::Tensor hidden =
      decoder.forward(at::tensor(ids, at::kLong), positions_3s, *attention, nullptr, images);
  const int64_t drawn = tokens - prompt;
  return decoder
      .score(hidden.narrow(0, prompt - 1, drawn), at::tensor(completion, at::kLong),
             at::ones({drawn}, at::kDouble))
      .logprobs_n;
}

void check_completions(const Decoder& decoder, const GenerateOptions& options) {
  const Prompts prompts = make_prompts(decoder);
  GenerateOptions with_images = options;
  with_images.images = prompts.images;
  SamplingParams params;
  params.max_new_tokens = kDrawn;
  params.seed = 3;
  const auto completions = generate(decoder, prompts.ids, params, with_images);
  REQUIRE(completions.size() == prompts.ids.size());
  for (std::size_t i = 0; i < completions.size(); ++i) {
    INFO("prompt " << i);
    REQUIRE(completions[i].ids.size() == kDrawn);
    const at::Tensor expected = scored(decoder, prompts, i, completions[i].ids);
    const at::Tensor found = at::tensor(completions[i].logprobs, at::kFloat).to(at::kDouble);
    CHECK((found - expected).abs().max().item<double>() < 1e-6);  // log-probs come in fp32
  }
}

ModelConfig hybrid_config() {
  ModelConfig config = test::hybrid_config(false);
  config.vision = test::tower_config(VisionFamily::kQwen3Vl).vision;
  config.vision->deepstack = {};
  config.vision->rope = {{1, 1, 0}, true};
  return config;
}

std::vector<ModelConfig> models() {
  std::vector<ModelConfig> all{hybrid_config()};
  for (const VisionFamily family : test::kVisionFamilies) {
    all.push_back(test::tower_config(family));
  }
  return all;
}

TEST_CASE("completions of prompts with images have the log-probs of their whole texts") {
  for (const ModelConfig& config : models()) {
    check_completions(test::tower_decoder(config), {});
  }
}

TEST_CASE("images stay with their texts when few rows or few pages are left") {
  const Decoder decoder = test::tower_decoder(test::tower_config(VisionFamily::kQwen3Vl));
  check_completions(decoder, {.max_rows = 2});
  // Pages of three rows that grow to four pages each: those that began last leave the cache, and
  // begin again with their images.
  const int64_t bytes_of_token = 2 * 2 * 2 * 8 * 8;  // layers, keys and values, heads, dims, fp64
  check_completions(decoder, {.cache_bytes = 7 * kPageTokens * bytes_of_token});
}

TEST_CASE("equal ids with other images are other prompts") {
  const Decoder decoder = test::tower_decoder(test::tower_config(VisionFamily::kQwen2_5Vl));
  const Prompts prompts = make_prompts(decoder);
  SamplingParams params;
  params.max_new_tokens = 1;
  GenerateOptions options;
  options.images = prompts.images;
  const std::vector<uint64_t> seeds(prompts.ids.size(), 4);
  options.seeds = seeds;
  const auto completions = generate(decoder, prompts.ids, params, options);
  CHECK(completions[3].logprobs != completions[4].logprobs);
}

TEST_CASE("images that do not fit their prompts are refused") {
  const Decoder decoder = test::tower_decoder(test::tower_config(VisionFamily::kQwen2Vl));
  Prompts prompts = make_prompts(decoder);
  const auto run = [&](const Decoder& with) {
    GenerateOptions options;
    options.images = prompts.images;
    return generate(with, prompts.ids, {.max_new_tokens = 1}, options);
  };
  prompts.images.pop_back();
  CHECK_THROWS_WITH(run(decoder), "generate: 6 prompts, but 5 lists of images");
  prompts = make_prompts(decoder);
  prompts.images[1][0].span.begin = 7;
  CHECK_THROWS_AS(run(decoder), std::invalid_argument);
  prompts = make_prompts(decoder);
  prompts.images[1][0].rows.rows_iE = prompts.images[1][0].rows.rows_iE.narrow(0, 0, 3);
  CHECK_THROWS_WITH(run(decoder), Catch::Contains("an image of 4 tokens with 3 rows"));
  prompts = make_prompts(decoder);
  CHECK_THROWS_WITH(run(test::random_decoder(test::tiny_config(), at::kDouble, 3)),
                    "generate: prompt 1 has an image, and the model no vision tower");
}

}  // namespace
}  // namespace ringside::engine
