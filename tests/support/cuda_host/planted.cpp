#include "tests/support/cuda_host/planted.h"

#include <string>

namespace ringside::cuda_host {
namespace {

std::string& now() {
  static std::string fault;
  return fault;
}

}  // namespace

void plant(std::string_view fault) { now() = fault; }

bool planted(std::string_view fault) { return now() == fault; }

}  // namespace ringside::cuda_host
