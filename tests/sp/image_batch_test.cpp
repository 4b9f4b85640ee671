// Guards: images that are mixed up where ids are equal, an image of a shared prompt that is encoded
// or sent more than once, rows on the wrong token after packing and sharding, positions counted
// after the cut instead of before. Oracle: each document by itself, token by token; the plans of
// all ranks, followed by hand.
#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "sp/batch/collator.h"
#include "tests/support/catch.h"

using namespace ringside;

namespace {

constexpr int64_t kPlaceholder = 3;

struct Span {
  int64_t begin;
  uint64_t image;
};

// Images of 2 x (number % 3 + 1) merged patches.
sp::DocumentImage image_of(uint64_t number) {
  const auto width = static_cast<int64_t>(number % 3) + 1;
  return {{number, ~number}, {1, 4, 2 * width}, 2 * width};
}

void put(std::vector<uint8_t>& bytes, const auto& value) {
  const auto* begin = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof(value));
}

// A document of these ids with images at their places. The three positions of token i are 100 i,
// 100 i + image and 100 i + row, which no rule of positions would make.
sp::Document with_images(std::vector<int64_t> ids, const std::vector<Span>& spans) {
  sp::Document document;
  document.fields = {{sp::kPositionsField, sp::FieldType::kInt32, 3},
                     {sp::kImageField, sp::FieldType::kInt64, 2},
                     {sp::kImageRowField, sp::FieldType::kInt32, 1}};
  std::vector<std::pair<uint64_t, int32_t>> row_of(ids.size(), {0, -1});
  for (const Span& span : spans) {
    document.images.push_back(image_of(span.image));
    for (int32_t row = 0; row < document.images.back().tokens; ++row) {
      row_of[span.begin + row] = {span.image, row};
      ids[span.begin + row] = kPlaceholder;
    }
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto [image, row] = row_of[i];
    const auto at = static_cast<int32_t>(100 * i);
    put(document.fields[0].bytes, std::array{at, at + static_cast<int32_t>(image), at + row});
    put(document.fields[1].bytes, row < 0 ? sp::ImageId{} : image_of(image).id);
    put(document.fields[2].bytes, row);
  }
  document.ids = std::move(ids);
  return document;
}

std::vector<int64_t> counted(int64_t from, int64_t tokens) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) {
    ids.push_back(from + i);
  }
  return ids;
}

std::vector<int64_t> joined(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

sp::CollatorOptions options_of(sp::Placement placement = sp::Placement::kDocumentAware) {
  sp::CollatorOptions options{{4, 4, 8}, 1000, {}};
  options.sequence.placement = placement;
  return options;
}

// The only micro-batch of each sp rank.
std::vector<sp::MicroBatch> on_ranks(const std::vector<sp::Document>& documents, int64_t ring,
                                     int64_t ulysses, const sp::CollatorOptions& options) {
  std::vector<sp::MicroBatch> batches;
  for (int64_t rank = 0; rank < ring * ulysses; ++rank) {
    auto of_rank = sp::collate(documents, sp::Mesh({1, ring, ulysses}, rank), options);
    REQUIRE(of_rank.size() == 1);
    batches.push_back(std::move(of_rank.front()));
  }
  return batches;
}

// (image, row) that arrives at each token of each rank by the plans, (0, -1) where none does.
std::vector<std::vector<std::pair<uint64_t, int64_t>>> delivered(
    const std::vector<sp::MicroBatch>& batches) {
  std::vector<std::vector<std::pair<uint64_t, int64_t>>> at;
  std::vector<std::vector<std::vector<std::pair<uint64_t, int64_t>>>> sent;
  for (const sp::MicroBatch& batch : batches) {
    at.emplace_back(batch.ids_s.numel(), std::pair<uint64_t, int64_t>{0, -1});
    std::vector<std::pair<uint64_t, int64_t>> encoded;
    for (const int64_t image : batch.image_plan->own_images()) {
      for (int64_t row = 0; row < batch.images[image].tokens; ++row) {
        encoded.emplace_back(batch.images[image].id.high, row);
      }
    }
    std::size_t next = 0;
    auto& to_ranks = sent.emplace_back();
    for (const int64_t rows : batch.image_plan->rows_to[batch.image_plan->rank]) {
      auto& message = to_ranks.emplace_back();
      for (int64_t i = 0; i < rows; ++i) {
        message.push_back(encoded.at(batch.image_plan->send_rows.at(next++)));
      }
    }
  }
  for (std::size_t to = 0; to < batches.size(); ++to) {
    std::size_t next = 0;
    for (const auto& from : sent) {
      for (const auto& row : from[to]) {
        auto& place = at[to].at(batches[to].image_plan->place_rows.at(next++));
        REQUIRE(place.second == -1);
        place = row;
      }
    }
  }
  return at;
}

int64_t rows_sent(const sp::MicroBatch& batch) {
  int64_t rows = 0;
  for (const auto& from : batch.image_plan->rows_to) {
    for (const int64_t to : from) {
      rows += to;
    }
  }
  return rows;
}

TEST_CASE("the images of a shared prompt are there once; other images share no token") {
  const auto prompt = counted(100, 40);
  const auto completion = [&](int64_t n, uint64_t image) {
    return with_images(joined(prompt, counted(1000 * n, 5)), {{20, image}, {30, 8}});
  };
  // Documents 0, 1: a group. Document 2: the same ids with another image at token 20.
  const std::vector<sp::Document> documents{completion(1, 5), completion(2, 5), completion(3, 2)};
  REQUIRE(documents[0].ids[20] == documents[2].ids[20]);
  const auto batches = on_ranks(documents, 2, 1, options_of());
  CHECK(batches[0].saving.unique_tokens == 40 + 3 * 5 + 20);
  auto images = batches[0].images;
  std::ranges::sort(images, {}, &sp::DocumentImage::id);
  CHECK((images == std::vector{image_of(2), image_of(5), image_of(8)}));
  CHECK((batches[1].images == batches[0].images));
  // Image 8 stands after each of the other two.
  CHECK(rows_sent(batches[0]) == 6 + 6 + 2 * 6);
  auto options = options_of();
  options.sequence.shared_prefix = false;
  CHECK(rows_sent(on_ranks(documents, 2, 1, options)[0]) == 3 * 6 + 3 * 6);
}

TEST_CASE("after packing and sharding every token has its image's row and its positions") {
  std::mt19937 rng(9);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  for (int round = 0; round < 60; ++round) {
    std::vector<sp::Document> documents;
    for (int64_t d = 0; d < draw(1, 5); ++d) {
      std::vector<Span> spans;
      int64_t begin = draw(0, 9);
      for (int64_t n = 0; n < draw(0, 3); ++n) {
        spans.push_back({begin, static_cast<uint64_t>(draw(1, 4))});
        begin += image_of(spans.back().image).tokens + draw(0, 1) * draw(0, 20);
      }
      documents.push_back(with_images(counted(1000 * (d + 1), begin + draw(1, 30)), spans));
      documents.push_back(documents.back());
      documents.back().ids.back() = 7;
    }
    const std::pair<int64_t, int64_t> sizes =
        std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 1}, {1, 2}, {2, 2}, {3, 1}}[round % 5];
    auto options = options_of(std::array{sp::Placement::kDocumentAware, sp::Placement::kZigzag,
                                         sp::Placement::kContiguous}[round % 3]);
    options.sequence.async_ulysses = round % 2 == 0;
    const auto batches = on_ranks(documents, sizes.first, sizes.second, options);
    bool any = false;
    for (const sp::Document& document : documents) {
      any = any || !document.images.empty();
    }
    CAPTURE(round);
    for (const sp::MicroBatch& batch : batches) {
      REQUIRE((batch.image_plan != nullptr) == any);
      REQUIRE(batch.fields.empty());
    }
    const auto arrived = any ? delivered(batches) : decltype(delivered(batches))(batches.size());
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      const sp::MicroBatch& batch = batches[rank];
      const int64_t tokens = batch.ids_s.numel();
      REQUIRE(batch.positions_3s.sizes() == at::IntArrayRef({3, tokens}));
      REQUIRE(batch.positions_3s.scalar_type() == at::kLong);
      for (int64_t s = 0; s < tokens; ++s) {
        const auto number = [&](int64_t c) { return batch.positions_3s[c][s].item<int64_t>(); };
        const int64_t place = batch.positions_s[s].item<int64_t>();
        REQUIRE(number(0) == 100 * place);
        const bool is_image = batch.ids_s[s].item<int64_t>() == kPlaceholder;
        REQUIRE((number(2) - number(0) >= 0) == is_image);
        if (any) {
          REQUIRE(arrived[rank][s].second == number(2) - number(0));
          REQUIRE(static_cast<int64_t>(arrived[rank][s].first) == number(1) - number(0));
        }
      }
    }
    for (int64_t r = 0; r < sizes.first && options.sequence.async_ulysses; ++r) {
      std::vector<at::Tensor> parts;
      for (int64_t u = 0; u < sizes.second; ++u) {
        parts.push_back(batches[r * sizes.second + u].positions_3s);
      }
      REQUIRE(at::equal(batches[r * sizes.second].share_positions_3S, at::cat(parts, 1)));
    }
  }
}

TEST_CASE("the dearest images of a micro-batch are encoded by different ranks") {
  // Of 4 x 6, 4 x 4 and twice 4 x 2 patches: 576, 256, 64 and 64 pairs. By tokens alone, 6, 4, 2
  // and 2, the last one would go to rank 0.
  const std::vector<sp::Document> documents{
      with_images(counted(100, 60), {{0, 2}, {10, 1}, {20, 3}, {30, 6}})};
  auto options = options_of();
  options.image_work = {0, 1, 0, 0};
  const auto batches = on_ranks(documents, 2, 1, options);
  CHECK(batches[0].image_plan->images_of == std::vector<std::vector<int64_t>>{{0}, {1, 2, 3}});
}

TEST_CASE("without images nothing is added, and beside images text has positions and no plan") {
  sp::Document text;
  text.ids = counted(100, 30);
  for (const auto& batch : on_ranks({text}, 2, 1, options_of())) {
    CHECK_FALSE(batch.positions_3s.defined());
    CHECK_FALSE(batch.share_positions_3S.defined());
    CHECK(batch.image_plan == nullptr);
    CHECK(batch.images.empty());
  }
  // A budget of one document: the first micro-batch has the image.
  auto options = options_of();
  options.tokens_per_micro_batch = 40;
  const std::vector<sp::Document> documents{with_images(counted(100, 40), {{3, 5}}),
                                            with_images(counted(500, 30), {})};
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto batches = sp::collate(documents, sp::Mesh({1, 2, 1}, rank), options);
    REQUIRE(batches.size() == 2);
    CHECK(batches[0].image_plan != nullptr);
    CHECK(batches[1].image_plan == nullptr);
    CHECK(batches[1].positions_3s.size(0) == 3);
    CHECK(batches[1].positions_3s.select(0, 0).equal(100 * batches[1].positions_s));
  }
}

TEST_CASE("tokens of images that their documents do not have are refused on every rank") {
  const auto refused = [](std::vector<sp::Document> documents, const std::string& why) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      CHECK_THROWS_WITH(sp::collate(documents, sp::Mesh({1, 2, 1}, rank), options_of()),
                        Catch::Contains(why));
    }
  };
  const sp::Document good = with_images(counted(100, 30), {{3, 5}});
  sp::Document bad = good;
  bad.images.clear();
  refused({bad}, "image 0000000000000005fffffffffffffffa, which is none of its document's 0");
  bad = good;
  bad.images[0].tokens = 4;
  refused({bad}, "row 4 of image 0000000000000005fffffffffffffffa, which has 4");
  bad = with_images(counted(500, 30), {{3, 5}});
  bad.images[0].grid = {1, 2, 12};
  refused({good, bad}, "with other grids or tokens");
  bad = good;
  const int32_t row = -2;
  std::memcpy(bad.fields[2].bytes.data() + 3 * sizeof(row), &row, sizeof(row));
  refused({bad}, "a token is row -2 of");
  bad = good;
  bad.fields.pop_back();
  refused({bad}, "no field image_row of 1 numbers of 4 bytes");
  bad = good;
  bad.fields[0].dtype = sp::FieldType::kFloat32;
  refused({bad}, "no field positions of 3 numbers");
}

}  // namespace
