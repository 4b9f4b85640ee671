// Planted faults: programs with one fault each, beside the same program without it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/standin/reports.h"

namespace ringside::standin {

// How a fault shows.
struct Evidence {
  std::optional<Fault> report;  // a report of this kind; otherwise
  bool ends_process = false;    // the process ends with kHostAccessStatus; otherwise an error
  std::string text;             // part of the report, of standard error or of the error

  static Evidence reported(Fault fault, std::string text) {
    return {fault, false, std::move(text)};
  }
  static Evidence thrown(std::string text) { return {std::nullopt, false, std::move(text)}; }
  static Evidence fatal(std::string text) { return {std::nullopt, true, std::move(text)}; }
};

struct PlantedFault {
  std::string name;
  Evidence evidence;
  std::function<void(bool planted)> run;  // without `planted`, the correct program
};

std::vector<PlantedFault> faults_of_one_device();
std::vector<PlantedFault> faults_between_ranks();

}  // namespace ringside::standin
