// Tensor-parallel ranks with a part of a vocabulary each.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/ops/vocabulary_part.h"
#include "sp/mesh/mesh.h"
#include "tests/support/ranks.h"

namespace ringside::test {

// Runs `body` on every rank, with the words that the rank has.
inline void run_vocabulary_parts(
    int64_t ranks, int64_t words,
    const std::function<void(const engine::VocabularyPart& part)>& body) {
  sp::MeshShape shape;
  shape.tensor = ranks;
  run_ranks_in_memory(shape,
                      [&](const sp::Mesh&, const sp::ProcessGroups& groups) {
                        const auto comm = groups.tensors(sp::axes::kTensor);
                        body({comm, sp::even_part(words, ranks, comm->rank()), words});
                      },
                      {sp::axes::kTensor});
}

}  // namespace ringside::test
