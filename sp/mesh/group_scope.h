// Check of sequence-parallel groups that span nodes. Their collectives run in every layer, and
// links between nodes are much slower than links inside one.
#pragma once

#include <string>
#include <vector>

#include "sp/mesh/communicator.h"
#include "sp/mesh/mesh.h"
#include "sp/mesh/node_span.h"

namespace ringside::sp {

// This machine's host name.
// Throws: std::runtime_error when the system does not report one.
std::string this_node_name();

// Every rank's node name in rank order, the same on every rank. Uses CPU tensors, so `world` must
// have a CPU backend.
// Collective over: the world. Blocks.
// Throws: std::invalid_argument when `mine` is empty or longer than 255 bytes.
std::vector<std::string> gather_node_names(const std::string& mine, Communicator& world);

// Checks every sp group of the mesh, so all ranks get the same answer. nodes: the node of each
// world rank. Returns "" when no group spans nodes. kGlobal: otherwise returns a warning for the
// caller to log.
// Throws: std::invalid_argument when nodes does not have one name per rank; with kLocalNode also
// when a group spans nodes, naming its ranks and nodes.
// Thread safety: pure. Not collective.
std::string check_group_scope(GroupScope scope, const MeshShape& shape,
                              const std::vector<std::string>& nodes);

}  // namespace ringside::sp
