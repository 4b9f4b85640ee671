#include "tests/support/standin/reports.h"

#include <algorithm>
#include <utility>

namespace ringside::standin {
namespace {
constexpr size_t kMaxReports = 1000;
}  // namespace

const char* to_string(Fault fault) {
  switch (fault) {
    case Fault::kUnorderedRead:
      return "unordered read";
    case Fault::kUnorderedWrite:
      return "unordered write";
    case Fault::kFreedInUse:
      return "freed in use";
    case Fault::kUninitialisedRead:
      return "uninitialised read";
    case Fault::kPinnedTouchedEarly:
      return "pinned memory touched early";
    case Fault::kPinnedReusedEarly:
      return "pinned memory reused early";
    case Fault::kForbiddenHostSync:
      return "forbidden host sync";
    case Fault::kForbiddenUpload:
      return "forbidden blocking upload";
    case Fault::kCollectiveMismatch:
      return "collective mismatch";
    case Fault::kCollectiveDeadline:
      return "collective deadline";
    case Fault::kUnfinishedCollective:
      return "unfinished collective";
  }
  return "unknown fault";
}

void ReportLog::add(Fault fault, std::string text) {
  const std::lock_guard lock(mutex_);
  const bool known = std::any_of(reports_.begin(), reports_.end(),
                                 [&](const Report& report) { return report.text == text; });
  if (!known && reports_.size() < kMaxReports) {
    reports_.push_back({fault, std::move(text)});
  }
}

std::vector<Report> ReportLog::all() const {
  const std::lock_guard lock(mutex_);
  return reports_;
}

void ReportLog::clear() {
  const std::lock_guard lock(mutex_);
  reports_.clear();
}

}  // namespace ringside::standin
