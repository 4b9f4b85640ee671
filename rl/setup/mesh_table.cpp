#include "rl/setup/mesh_table.h"

#include <algorithm>
#include <map>

namespace ringside::rl {
namespace {

constexpr int64_t kTableSize = 16;
constexpr std::size_t kLabelWidth = 22;

std::string number(int64_t value) { return std::to_string(value); }

std::string right(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string left(const std::string& text, std::size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

// A heading row: the coordinate of each column in one axis.
std::string heading(const std::string& axis, int64_t columns, int64_t size, int64_t stride,
                    std::size_t width) {
  std::string line = left(axis, kLabelWidth);
  for (int64_t column = 0; column < std::min(columns, kTableSize); ++column) {
    line += right(number(column / stride % size), width);
  }
  return line;
}

std::string row_label(const sp::MeshShape& shape, int64_t row) {
  std::string label;
  if (shape.dp_replicate > 1) {
    label += "replica " + number(row / shape.dp_shard) + " ";
  }
  if (shape.dp_shard > 1) {
    label += "shard " + number(row % shape.dp_shard);
  }
  return label.empty() ? "rank" : label;
}

// World rank of the first stage by data-parallel coordinate and by that among the ranks that share
// documents, of which tensor-parallel ones are neighbours.
std::map<std::pair<int64_t, int64_t>, int64_t> rank_at(const sp::MeshShape& shape) {
  std::map<std::pair<int64_t, int64_t>, int64_t> ranks;
  for (int64_t rank = 0; rank < shape.stage_size(); ++rank) {
    const sp::Mesh mesh(shape, rank);
    const int64_t of_tokens = mesh.sp_rank() * shape.tensor + mesh.coordinate(sp::axes::kTensor);
    ranks[{mesh.dp_rank(), of_tokens}] = rank;
  }
  return ranks;
}

}  // namespace

std::vector<std::string> mesh_table(const sp::MeshShape& shape) {
  if (shape.world_size() == 1) {
    return {"mesh: one rank"};
  }
  const int64_t columns = shape.sp_size() * shape.tensor, rows = shape.dp_size();
  const std::size_t width = number(shape.world_size()).size() + 2;
  std::vector<std::string> lines{
      "mesh: " + number(shape.world_size()) +
      " ranks; the ranks of a row share each document, the rows have different documents"};
  if (shape.ring > 1) {
    lines.push_back(heading("  ring", columns, shape.ring, shape.ulysses * shape.tensor, width));
  }
  if (shape.ulysses > 1) {
    lines.push_back(heading("  ulysses", columns, shape.ulysses, shape.tensor, width));
  }
  if (shape.tensor > 1) {
    lines.push_back(heading("  tensor", columns, shape.tensor, 1, width));
  }
  const auto ranks = rank_at(shape);
  for (int64_t row = 0; row < std::min(rows, kTableSize); ++row) {
    std::string line = left("  " + row_label(shape, row), kLabelWidth);
    for (int64_t column = 0; column < std::min(columns, kTableSize); ++column) {
      line += right(number(ranks.at({row, column})), width);
    }
    lines.push_back(line + (columns > kTableSize ? " ..." : ""));
  }
  if (rows > kTableSize) {
    lines.emplace_back("  ...");
  }
  if (shape.pipeline > 1) {
    lines.push_back("  these are the first of " + number(shape.pipeline) +
                    " ranks of a pipeline; the ranks with the next stages of the same tokens have "
                    "numbers " +
                    number(shape.stage_size()) + " higher each");
  }
  if (shape.expert > 1) {
    lines.push_back("  ranks 0 to " + number(shape.expert - 1) +
                    " hold all experts between them, and so do every further " +
                    number(shape.expert));
  }
  return lines;
}

}  // namespace ringside::rl
