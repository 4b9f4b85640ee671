// Each planted fault is caught and named, and the program without it gives no report.
#include "tests/standin/planted_faults.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <set>

#include "tests/standin/streams.h"
#include "tests/support/catch.h"

namespace ringside::standin {
namespace {

std::vector<PlantedFault> all_planted_faults() {
  std::vector<PlantedFault> all = faults_of_one_device();
  const auto more = faults_between_ranks();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void check_caught(const PlantedFault& fault) {
  Scope scope;
  const Evidence& evidence = fault.evidence;
  if (evidence.ends_process) {
    const ChildEnd end = run_in_child([&] { fault.run(true); });
    INFO(end.error_output);
    CHECK(end.status == kHostAccessStatus);
    CHECK(end.error_output.find(evidence.text) != std::string::npos);
    return;
  }
  const std::string error = error_of([&] { fault.run(true); });
  scope.finish();
  INFO("error: " << error << "\nreports: " << scope.text());
  if (!evidence.report) {
    CHECK(error.find(evidence.text) != std::string::npos);
    return;
  }
  const auto reports = scope.reports();
  CHECK(std::any_of(reports.begin(), reports.end(), [&](const Report& report) {
    return report.fault == *evidence.report && report.text.find(evidence.text) != std::string::npos;
  }));
}

TEST_CASE("each planted fault is caught and named, and its correct twin is not reported") {
  at::set_num_threads(1);
  for (const PlantedFault& fault : all_planted_faults()) {
    DYNAMIC_SECTION(fault.name) {
      {
        Scope scope;
        const std::string error = error_of([&] { fault.run(false); });
        scope.finish();
        CHECK(error == "");
        CHECK(scope.text() == "");
      }
      check_caught(fault);
    }
  }
}

TEST_CASE("the table has at least twenty planted faults with names of their own") {
  std::set<std::string> names;
  for (const PlantedFault& fault : all_planted_faults()) {
    names.insert(fault.name);
    CHECK_FALSE(fault.evidence.text.empty());
  }
  CHECK(names.size() >= 20);
  CHECK(names.size() == all_planted_faults().size());
}

}  // namespace
}  // namespace ringside::standin
