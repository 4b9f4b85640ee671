// Whether sequence-parallel groups may span nodes: their collectives run in every layer, and a link
// between nodes is much slower than those inside one.
#pragma once

#include <string>
#include <vector>

#include "sp/mesh/communicator.h"
#include "sp/mesh/mesh.h"

namespace ringside::sp {

enum class GroupScope { kLocalNode, kGlobal };

// This machine's host name. Throws std::runtime_error when the system does not say.
std::string this_node_name();

// Every rank's node name in rank order, the same on every rank. Throws std::invalid_argument when
// mine is empty or longer than 255 bytes. Collective over the world; blocks; CPU tensors, so
// `world` must be a group of a CPU backend.
std::vector<std::string> gather_node_names(const std::string& mine, Communicator& world);

// Looks at every sp group of the mesh, not only the caller's, so all ranks come to the same answer.
// nodes: the node of each world rank. kLocalNode: throws std::invalid_argument that names the ranks
// and nodes of a group that spans nodes. kGlobal: returns the same text as a warning, which the
// caller logs. Returns "" when none spans nodes. Throws std::invalid_argument when nodes does not
// have one name per rank. Pure: not collective, thread-safe.
std::string check_group_scope(GroupScope scope, const MeshShape& shape,
                              const std::vector<std::string>& nodes);

}  // namespace ringside::sp
