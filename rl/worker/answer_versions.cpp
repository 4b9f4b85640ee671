#include "rl/worker/answer_versions.h"

#include <algorithm>

namespace ringside::rl {

bool denies_version(const bridge::GenerateResult& result, int64_t version) {
  if (!result.versions.empty()) {  // whatever the versions are
    return std::any_of(
        result.versions.begin(), result.versions.end(),
        [](const bridge::LabelSpan& span) { return !bridge::version_of_label(span.label); });
  }
  return result.label && bridge::version_of_label(*result.label) != version;
}

bool names_version(const bridge::GenerateResult& result, int64_t version) {
  return (result.label || !result.versions.empty()) && !denies_version(result, version);
}

}  // namespace ringside::rl
