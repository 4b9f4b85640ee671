// Entry of the shared library that links Arrow. Torch-free.
#pragma once

#include <filesystem>

#include "rl/data/record_file.h"

namespace ringside::rl {

// Found in the run path of the program.
inline constexpr const char* kParquetLibrary = "libringside_parquet.so";
inline constexpr const char* kParquetSymbol = "ringside_open_parquet";

// What the symbol is: open_parquet_file(), whose result the caller deletes.
using ParquetOpener = RecordFile* (*)(const std::filesystem::path&);

}  // namespace ringside::rl
