// Guards: rows of images that are lost, sent twice or put on another token, ranks that disagree on
// a message's length, images that pile up on one rank. Oracle: a slow rule that simulates the
// exchange row by row.
#include "sp/plan/image_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <tuple>

using namespace ringside::sp;

namespace {

using Rows = std::vector<ImageRow>;

std::vector<ImagePlan> plans_of(const std::vector<ImageShape>& images, const Rows& rows,
                                int64_t ranks) {
  std::vector<ImagePlan> plans;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    plans.push_back(plan_images(images, rows, ranks, rank));
  }
  return plans;
}

// A row of an image by name.
using Named = std::pair<int64_t, int64_t>;

// What each rank has encoded, one row after another.
std::vector<Named> encoded_by(const ImagePlan& plan, const std::vector<ImageShape>& images) {
  std::vector<Named> rows;
  for (const int64_t image : plan.own_images()) {
    for (int64_t row = 0; row < images[image].tokens; ++row) {
      rows.emplace_back(image, row);
    }
  }
  return rows;
}

// Sends messages row by row, as the plans of all ranks say, and compares what is at each token with
// `rows`: every one once, and nothing else.
void check_delivery(const std::vector<ImageShape>& images, const Rows& rows, int64_t ranks) {
  const auto plans = plans_of(images, rows, ranks);
  std::vector<std::vector<std::vector<Named>>> message(ranks,
                                                       std::vector<std::vector<Named>>(ranks));
  for (int64_t from = 0; from < ranks; ++from) {
    const ImagePlan& plan = plans[from];
    REQUIRE(plan.images_of == plans[0].images_of);
    REQUIRE(plan.rows_to == plans[0].rows_to);
    const auto encoded = encoded_by(plan, images);
    REQUIRE(plan.encoded_rows == std::ssize(encoded));
    auto next = plan.send_rows.begin();
    for (int64_t to = 0; to < ranks; ++to) {
      for (int64_t i = 0; i < plan.rows_to[from][to]; ++i) {
        REQUIRE(next != plan.send_rows.end());
        message[from][to].push_back(encoded.at(*next++));
      }
    }
    REQUIRE(next == plan.send_rows.end());
  }
  Rows arrived;
  for (int64_t to = 0; to < ranks; ++to) {
    const ImagePlan& plan = plans[to];
    std::size_t next = 0;
    for (int64_t from = 0; from < ranks; ++from) {
      REQUIRE(plan.received_rows()[from] == std::ssize(message[from][to]));
      for (const auto& [image, row] : message[from][to]) {
        arrived.push_back({to, plan.place_rows.at(next++), image, row});
      }
    }
    REQUIRE(next == plan.place_rows.size());
  }
  std::ranges::sort(arrived, {}, [](const ImageRow& r) { return std::pair(r.rank, r.token); });
  REQUIRE(arrived == rows);
}

// By the rule as it is written: again and again the dearest image that is left, to the rank that
// has least.
std::vector<std::vector<int64_t>> slow_division(const std::vector<ImageShape>& images,
                                                int64_t ranks) {
  std::vector<bool> given(images.size());
  std::vector<int64_t> cost(ranks);
  std::vector<std::vector<int64_t>> of_rank(ranks);
  for (std::size_t n = 0; n < images.size(); ++n) {
    int64_t dearest = -1;
    for (std::size_t i = 0; i < images.size(); ++i) {
      if (!given[i] && (dearest < 0 || images[i].cost > images[dearest].cost)) {
        dearest = static_cast<int64_t>(i);
      }
    }
    int64_t to = 0;
    for (int64_t rank = 1; rank < ranks; ++rank) {
      to = cost[rank] < cost[to] ? rank : to;
    }
    given[dearest] = true;
    cost[to] += images[dearest].cost;
    of_rank[to].push_back(dearest);
  }
  for (auto& own : of_rank) {
    std::ranges::sort(own);
  }
  return of_rank;
}

// All rows of these images one after another on tokens of ranks that hold `shard` tokens each.
Rows in_a_row(const std::vector<ImageShape>& images, int64_t shard, int64_t first = 0) {
  Rows rows;
  for (std::size_t i = 0; i < images.size(); ++i) {
    for (int64_t row = 0; row < images[i].tokens; ++row, ++first) {
      rows.push_back({first / shard, first % shard, static_cast<int64_t>(i), row});
    }
  }
  return rows;
}

TEST_CASE("the dearest image goes first, to the rank with the least, ties to the lower one") {
  const std::vector<ImageShape> images{{1, 2}, {1, 9}, {1, 4}, {1, 4}, {1, 3}};
  const ImagePlan plan = plan_images(images, {}, 3, 1);
  CHECK(plan.images_of == std::vector<std::vector<int64_t>>{{1}, {2, 4}, {0, 3}});
  CHECK(plan.own_images() == std::vector<int64_t>{2, 4});
  CHECK(plan.encoded_rows == 2);
}

TEST_CASE("a row goes to the rank of its token; what stays costs no bytes") {
  // Image 0 on rank 0, image 1 on rank 1. Image 1 is at the edge of both shards.
  const std::vector<ImageShape> images{{3, 9}, {4, 5}};
  const Rows rows = in_a_row(images, 5);
  check_delivery(images, rows, 2);
  const auto plans = plans_of(images, rows, 2);
  CHECK(plans[0].rows_to == std::vector<std::vector<int64_t>>{{3, 0}, {2, 2}});
  CHECK(plans[1].send_rows == std::vector<int64_t>{0, 1, 2, 3});
  CHECK(plans[0].place_rows == std::vector<int64_t>{0, 1, 2, 3, 4});
  CHECK(plans[1].place_rows == std::vector<int64_t>{0, 1});
  CHECK(plans[0].forward_bytes(8) == 0);
  CHECK(plans[0].backward_bytes(8) == 16);
  CHECK(plans[1].forward_bytes(8) == 16);
  CHECK(plans[1].backward_bytes(8) == 0);
}

TEST_CASE("an image larger than a shard goes to as many ranks as it takes") {
  const std::vector<ImageShape> images{{11, 1}};
  const Rows rows = in_a_row(images, 4, 2);
  check_delivery(images, rows, 4);
  CHECK(plans_of(images, rows, 4)[0].rows_to[0] == std::vector<int64_t>{2, 4, 4, 1});
}

TEST_CASE("an image in two documents is encoded once and sent for each of its tokens") {
  const std::vector<ImageShape> images{{2, 1}};
  // Twice on rank 1, once on rank 2.
  const Rows rows{{1, 0, 0, 0}, {1, 1, 0, 1}, {1, 7, 0, 0}, {1, 8, 0, 1}, {2, 3, 0, 1}};
  check_delivery(images, rows, 3);
  const auto plans = plans_of(images, rows, 3);
  CHECK(plans[0].send_rows == std::vector<int64_t>{0, 1, 0, 1, 1});
  CHECK(plans[0].forward_bytes(1) == 5);
  CHECK(plans[1].own_images().empty());
  CHECK(plans[1].encoded_rows == 0);
  CHECK(plans[1].place_rows == std::vector<int64_t>{0, 1, 7, 8});
}

TEST_CASE("without images every rank sends nothing") {
  check_delivery({}, {}, 3);
  CHECK(plan_images({}, {}, 3, 2).backward_bytes(100) == 0);
  CHECK(plan_images({}, {}, 3, 2).received_rows() == std::vector<int64_t>{0, 0, 0});
}

TEST_CASE("random plans deliver every row once, divide as the slow rule, and send what they say") {
  std::mt19937 rng(11);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  for (int round = 0; round < 400; ++round) {
    const int64_t ranks = draw(1, 6);
    std::vector<ImageShape> images(draw(0, 9));
    for (ImageShape& image : images) {
      image = {draw(0, 6), draw(0, 12)};
    }
    Rows rows;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t token = 0; token < draw(0, 25); ++token) {
        const int64_t image = images.empty() ? 0 : draw(0, std::ssize(images) - 1);
        if (!images.empty() && images[image].tokens > 0 && draw(0, 2) > 0) {
          rows.push_back({rank, token, image, draw(0, images[image].tokens - 1)});
        }
      }
    }
    check_delivery(images, rows, ranks);
    const auto plans = plans_of(images, rows, ranks);
    REQUIRE(plans[0].images_of == slow_division(images, ranks));
    std::vector<int64_t> cost, sent(ranks), received(ranks);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      cost.push_back(0);
      for (const int64_t image : plans[0].images_of[rank]) {
        cost.back() += images[image].cost;
        for (const ImageRow& row : rows) {
          sent[rank] += row.image == image && row.rank != rank ? 1 : 0;
          received[row.rank] += row.image == image && row.rank != rank ? 1 : 0;
        }
      }
    }
    int64_t dearest = 0;
    for (const ImageShape& image : images) {
      dearest = std::max(dearest, image.cost);
    }
    REQUIRE(std::ranges::max(cost) - std::ranges::min(cost) <= dearest);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      REQUIRE(plans[rank].forward_bytes(3) == 3 * sent[rank]);
      REQUIRE(plans[rank].backward_bytes(3) == 3 * received[rank]);
    }
  }
}

TEST_CASE("rows that no plan can send are refused by name") {
  const std::vector<ImageShape> images{{2, 1}};
  const auto refused = [&](const Rows& rows) {
    CHECK_THROWS_AS(plan_images(images, rows, 2, 0), std::invalid_argument);
  };
  refused({{2, 0, 0, 0}});
  refused({{0, -1, 0, 0}});
  refused({{0, 0, 1, 0}});
  refused({{0, 0, 0, 2}});
  refused({{0, 1, 0, 0}, {0, 1, 0, 1}});
  refused({{1, 0, 0, 0}, {0, 0, 0, 1}});
  CHECK_THROWS_WITH(plan_images(images, Rows{{0, 3, 0, 5}}, 2, 0),
                    Catch::Contains("row 5 of image 0 at token 3 of rank 0, which has 2 rows"));
  CHECK_THROWS_AS(plan_images(std::vector<ImageShape>{{1, -1}}, {}, 2, 0), std::invalid_argument);
  CHECK_THROWS_AS(plan_images(images, {}, 2, 2), std::invalid_argument);
}

// Windows patch by patch: the pairs of patches of one window.
int64_t slow_cost(const ImageGrid& grid, const ImageWork& work) {
  int64_t in_windows = 0, in_frames = 0;
  for (int64_t t = 0; t < grid.frames; ++t) {
    std::map<std::pair<int64_t, int64_t>, int64_t> patches;
    for (int64_t h = 0; h < grid.height; ++h) {
      for (int64_t w = 0; w < grid.width; ++w) {
        ++patches[{h / work.window, w / work.window}];
      }
    }
    int64_t all = 0;
    for (const auto& [window, count] : patches) {
      in_windows += count * count;
      all += count;
    }
    in_frames += all * all;
  }
  return work.patch * grid.patches() + work.frame_pair * in_frames + work.window_pair * in_windows;
}

TEST_CASE("an image's cost counts patches, pairs in frames and pairs in ragged windows") {
  const ImageWork work{7, 3, 2, 4};
  for (const auto& [frames, height, width] :
       {std::tuple{1, 4, 4}, {1, 6, 10}, {2, 5, 3}, {1, 1, 13}, {3, 8, 9}, {1, 0, 4}, {0, 4, 4}}) {
    CHECK(image_cost({frames, height, width}, work) == slow_cost({frames, height, width}, work));
  }
  CHECK(image_cost({1, 6, 10}, {}) == 60);
  // Of the largest images that processors let through, and towers wider than any today.
  CHECK(image_cost({1, 400, 400}, {int64_t{1} << 30, 1 << 20, 1 << 20, 8}) > 0);
  CHECK_THROWS_AS(image_cost({1, 2, 2}, {1, 0, 1, 0}), std::invalid_argument);
  CHECK_THROWS_AS(image_cost({1, -2, 2}, {}), std::invalid_argument);
}

}  // namespace
