#include "sp/mesh/group_scope.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

namespace ringside::sp {
namespace {

constexpr int64_t kNameBytes = 256;

// "rank 0 on a, rank 1 on b", or "" when the group is on one node.
std::string describe_if_spread(const std::vector<int64_t>& ranks,
                               const std::vector<std::string>& nodes) {
  const bool together = std::all_of(ranks.begin(), ranks.end(), [&](int64_t rank) {
    return nodes[rank] == nodes[ranks.front()];
  });
  std::string text;
  for (const int64_t rank : together ? std::vector<int64_t>{} : ranks) {
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " on " + nodes[rank];
  }
  return text;
}

}  // namespace

std::string this_node_name() {
  std::array<char, kNameBytes> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') {
    throw std::runtime_error("group scope: the system does not tell this node's name");
  }
  return name.data();
}

std::vector<std::string> gather_node_names(const std::string& mine, Communicator& world) {
  if (mine.empty() || static_cast<int64_t>(mine.size()) >= kNameBytes) {
    throw std::invalid_argument("group scope: a node name has 1 to " +
                                std::to_string(kNameBytes - 1) + " bytes, got " +
                                std::to_string(mine.size()));
  }
  at::Tensor padded = at::zeros({kNameBytes}, at::kByte);
  std::memcpy(padded.mutable_data_ptr<uint8_t>(), mine.data(), mine.size());
  const at::Tensor all = world.all_gather(padded, "node_names").contiguous();
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    // The last byte of a row is zero, so each name is terminated.
    names.emplace_back(reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()) +
                       rank * kNameBytes);
  }
  return names;
}

std::string check_group_scope(GroupScope scope, const MeshShape& shape,
                              const std::vector<std::string>& nodes) {
  if (static_cast<int64_t>(nodes.size()) != shape.world_size()) {
    throw std::invalid_argument("group scope: " + std::to_string(nodes.size()) +
                                " node names for a world of " + std::to_string(shape.world_size()));
  }
  for (int64_t dp = 0; dp < shape.dp_size(); ++dp) {
    const auto ranks = Mesh(shape, dp * shape.sp_size()).ranks(axes::kSp);
    const std::string spread = describe_if_spread(ranks, nodes);
    if (spread.empty()) {
      continue;
    }
    if (scope == GroupScope::kLocalNode) {
      throw std::invalid_argument(
          "group_scope local_node: a sequence-parallel group spans nodes (" + spread +
          "); make the sp size divide the ranks of a node, or set group_scope global");
    }
    return "group_scope global: a sequence-parallel group spans nodes (" + spread +
           "), so its collectives run at the speed of the link between them";
  }
  return "";
}

}  // namespace ringside::sp
