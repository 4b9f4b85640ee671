// Mesh of a run as a table of ranks, for people.
#pragma once

#include <string>
#include <vector>

#include "sp/mesh/mesh.h"

namespace ringside::rl {

// One row for each data-parallel coordinate, one column for each coordinate of the ranks that share
// documents (ring, Ulysses, tensor); the cells are ranks. Rows and columns beyond 16 are left out
// with "...". One line for one rank.
std::vector<std::string> mesh_table(const sp::MeshShape& shape);

}  // namespace ringside::rl
