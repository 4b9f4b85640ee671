// Parquet files as records. Arrow reads them; it is loaded when the first one is opened, so that
// programs start without it. Torch-free.
#pragma once

#include <filesystem>
#include <memory>

#include "rl/data/record_file.h"

namespace ringside::rl {

// Whether a file begins as Parquet does, encrypted Parquet included.
// Returns false for what cannot be read.
bool is_parquet_file(const std::filesystem::path& path);

// Opens a Parquet file. Decoded row groups are kept in memory up to 1 GiB, those last used.
//
// A row is an object. Text, numbers, booleans, lists and structs become what they are in JSON; maps
// with text keys become objects, other maps lists of pairs; bytes that are UTF-8 become text;
// dates, times and decimals become text as Arrow writes them. A null is left out of its object,
// because a struct of Parquet has all of its fields in every row. So are NaN, infinity and bytes
// that are not UTF-8, which JSON lacks. In a list they are null.
// Throws: std::runtime_error naming the file when this program was built without Arrow or cannot
// load it, and when the file is damaged, encrypted or has no row. RecordFile::record throws it for
// a damaged row group.
// Thread safety: opening is safe from any thread.
std::unique_ptr<RecordFile> open_parquet_file(const std::filesystem::path& path);

}  // namespace ringside::rl
