// Records of a data file as JSON lines, for parquet_oracle.py: `print_records FILE` prints the last
// record first, so that no order of reading is favoured.
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "rl/data/record_set.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: print_records FILE\n";
    return 2;
  }
  try {
    ringside::rl::RecordSet records(argv[1]);
    for (int64_t i = records.size(); i-- > 0;) {
      std::cout << records.record(i).dump() << "\n";
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
