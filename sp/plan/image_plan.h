// Plan of the images of a micro-batch: which rank of the sequence-parallel group encodes which
// image, and which rows of an image go to which rank. Integers only, the same on every rank.
//
// An image is encoded whole on one rank, wherever its tokens are. The rank that has one of its
// tokens gets that token's row, and no other. Costs are divided: the image of the largest cost
// first, to the rank with the least so far, the lower one of equals. So the fullest rank has at
// most one image's cost more than any other.
//
// Shapes: P = ranks of the group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ringside::sp {

// Patches of an image.
struct ImageGrid {
  int64_t frames = 1;
  int64_t height = 0;
  int64_t width = 0;

  int64_t patches() const { return frames * height * width; }
  bool operator==(const ImageGrid&) const = default;
};

// Work of a vision tower, in any unit: only ratios count. By default that of a patch alone.
struct ImageWork {
  int64_t patch = 1;        // of a patch in all layers, without attention
  int64_t frame_pair = 0;   // of a pair of patches in all layers that attend within a frame
  int64_t window_pair = 0;  // of a pair of patches in all layers that attend within windows
  int64_t window = 0;       // patches a side of a window; only with window_pair
};

// Work of an image. Windows begin at the upper left of each frame; those at its right and lower
// edges may be narrower.
// Throws: std::invalid_argument on a negative number, and on window_pair without a window.
int64_t image_cost(const ImageGrid& grid, const ImageWork& work);

// An image as the plan sees it.
struct ImageShape {
  int64_t tokens = 0;  // rows that the tower makes of it
  int64_t cost = 0;
};

// A token that is a row of an image.
struct ImageRow {
  int64_t rank = 0;   // that has the token
  int64_t token = 0;  // local index of the token there
  int64_t image = 0;
  int64_t row = 0;  // of the image
  bool operator==(const ImageRow&) const = default;
};

// The plan of one rank. Made by plan_images(), never changed.
struct ImagePlan {
  int64_t rank = 0;
  std::vector<std::vector<int64_t>> images_of;  // [P] that each rank encodes, ascending
  std::vector<std::vector<int64_t>> rows_to;    // [P, P] rows sent: [from][to]
  int64_t encoded_rows = 0;                     // of this rank's images, one after another
  // Of this rank: among its encoded rows those that it sends, by receiver and there by token. A row
  // of several tokens is sent for each.
  std::vector<int64_t> send_rows;
  // Of this rank: the local token of each row that it receives, by sender and then by token.
  std::vector<int64_t> place_rows;

  int64_t ranks() const { return static_cast<int64_t>(images_of.size()); }
  const std::vector<int64_t>& own_images() const { return images_of[rank]; }
  // Rows that each rank sends to this one. [P]
  std::vector<int64_t> received_rows() const;
  // Bytes that this rank sends to others: rows, and in the backward their gradients.
  int64_t forward_bytes(int64_t row_bytes) const;
  int64_t backward_bytes(int64_t row_bytes) const;
};

// The plan of one rank. images: the distinct ones of the micro-batch. rows: the tokens of all
// ranks, by rank and there by token; an image's rows need not all be there.
// Throws: std::invalid_argument, the same on every rank, on rows out of order, of a rank, an image
// or a row that does not exist, on negative tokens or costs, and unless 0 <= rank < ranks.
// Thread safety: pure.
ImagePlan plan_images(std::span<const ImageShape> images, std::span<const ImageRow> rows,
                      int64_t ranks, int64_t rank);

}  // namespace ringside::sp
