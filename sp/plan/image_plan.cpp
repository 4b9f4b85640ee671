#include "sp/plan/image_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringside::sp {
namespace {

// Sum of the squared lengths of a side's parts of `window` patches, the last of which may be
// shorter.
int64_t squared_parts(int64_t side, int64_t window) {
  const int64_t rest = side % window;
  return side / window * window * window + rest * rest;
}

void check_images(std::span<const ImageShape> images) {
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (images[i].tokens < 0 || images[i].cost < 0) {
      throw std::invalid_argument("image plan: image " + std::to_string(i) + " has " +
                                  std::to_string(images[i].tokens) + " tokens and cost " +
                                  std::to_string(images[i].cost));
    }
  }
}

void check_rows(std::span<const ImageShape> images, std::span<const ImageRow> rows, int64_t ranks) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ImageRow& row = rows[i];
    const auto said = [&] {
      return "image plan: row " + std::to_string(row.row) + " of image " +
             std::to_string(row.image) + " at token " + std::to_string(row.token) + " of rank " +
             std::to_string(row.rank);
    };
    if (row.rank < 0 || row.rank >= ranks || row.token < 0) {
      throw std::invalid_argument(said() + ", there are " + std::to_string(ranks) + " ranks");
    }
    if (row.image < 0 || row.image >= std::ssize(images)) {
      throw std::invalid_argument(said() + ", there are " + std::to_string(images.size()) +
                                  " images");
    }
    if (row.row < 0 || row.row >= images[row.image].tokens) {
      throw std::invalid_argument(said() + ", which has " +
                                  std::to_string(images[row.image].tokens) + " rows");
    }
    if (i > 0 && std::pair(rows[i - 1].rank, rows[i - 1].token) >= std::pair(row.rank, row.token)) {
      throw std::invalid_argument(said() + " does not come after the one before it");
    }
  }
}

// The rank that encodes each image.
std::vector<int64_t> encoders(std::span<const ImageShape> images, int64_t ranks) {
  std::vector<int64_t> order(images.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](int64_t i) { return images[i].cost; });
  std::vector<int64_t> rank_of(images.size());
  std::vector<int64_t> cost_of(ranks);
  for (const int64_t image : order) {
    const auto least = std::ranges::min_element(cost_of);
    rank_of[image] = least - cost_of.begin();
    *least += images[image].cost;
  }
  return rank_of;
}

}  // namespace

int64_t image_cost(const ImageGrid& grid, const ImageWork& work) {
  if (grid.frames < 0 || grid.height < 0 || grid.width < 0 || work.patch < 0 ||
      work.frame_pair < 0 || work.window_pair < 0 || (work.window_pair > 0 && work.window < 1)) {
    throw std::invalid_argument("image cost: a grid of " + std::to_string(grid.frames) + " x " +
                                std::to_string(grid.height) + " x " + std::to_string(grid.width) +
                                ", work " + std::to_string(work.patch) + " a patch, " +
                                std::to_string(work.frame_pair) + " a pair in a frame, " +
                                std::to_string(work.window_pair) + " a pair in a window of " +
                                std::to_string(work.window));
  }
  const int64_t in_frame = grid.height * grid.width;
  int64_t cost = work.patch * grid.patches() + work.frame_pair * grid.frames * in_frame * in_frame;
  if (work.window_pair > 0) {
    cost += work.window_pair * grid.frames * squared_parts(grid.height, work.window) *
            squared_parts(grid.width, work.window);
  }
  return cost;
}

std::vector<int64_t> ImagePlan::received_rows() const {
  std::vector<int64_t> received;
  for (const auto& of_sender : rows_to) {
    received.push_back(of_sender[rank]);
  }
  return received;
}

int64_t ImagePlan::forward_bytes(int64_t row_bytes) const {
  int64_t rows = 0;
  for (int64_t to = 0; to < ranks(); ++to) {
    rows += to == rank ? 0 : rows_to[rank][to];
  }
  return rows * row_bytes;
}

int64_t ImagePlan::backward_bytes(int64_t row_bytes) const {
  int64_t rows = 0;
  for (int64_t from = 0; from < ranks(); ++from) {
    rows += from == rank ? 0 : rows_to[from][rank];
  }
  return rows * row_bytes;
}

ImagePlan plan_images(std::span<const ImageShape> images, std::span<const ImageRow> rows,
                      int64_t ranks, int64_t rank) {
  if (rank < 0 || rank >= ranks) {
    throw std::invalid_argument("image plan: rank " + std::to_string(rank) + " of " +
                                std::to_string(ranks));
  }
  check_images(images);
  check_rows(images, rows, ranks);
  ImagePlan plan;
  plan.rank = rank;
  plan.images_of.resize(ranks);
  plan.rows_to.assign(ranks, std::vector<int64_t>(ranks));
  const std::vector<int64_t> encoder_of = encoders(images, ranks);
  std::vector<int64_t> first_row(images.size());  // among the rows of this rank
  for (std::size_t image = 0; image < images.size(); ++image) {
    plan.images_of[encoder_of[image]].push_back(static_cast<int64_t>(image));
    if (encoder_of[image] == rank) {
      first_row[image] = plan.encoded_rows;
      plan.encoded_rows += images[image].tokens;
    }
  }
  std::vector<std::vector<int64_t>> places_from(ranks);
  for (const ImageRow& row : rows) {
    const int64_t from = encoder_of[row.image];
    ++plan.rows_to[from][row.rank];
    if (from == rank) {
      plan.send_rows.push_back(first_row[row.image] + row.row);
    }
    if (row.rank == rank) {
      places_from[from].push_back(row.token);
    }
  }
  for (const auto& places : places_from) {
    plan.place_rows.insert(plan.place_rows.end(), places.begin(), places.end());
  }
  return plan;
}

}  // namespace ringside::sp
