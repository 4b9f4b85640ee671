#include "rl/data/parquet_file.h"

#include <dlfcn.h>

#include <fstream>
#include <stdexcept>
#include <string>

#include "rl/data/parquet/parquet_reader.h"

namespace ringside::rl {
namespace {

// Stays loaded: records may be in use until the program ends.
ParquetOpener parquet_opener() {
  static const auto opener = [] {
    void* const library = ::dlopen(kParquetLibrary, RTLD_NOW | RTLD_LOCAL);
    void* const symbol = library == nullptr ? nullptr : ::dlsym(library, kParquetSymbol);
    if (symbol == nullptr) {
      throw std::runtime_error(::dlerror());
    }
    return reinterpret_cast<ParquetOpener>(symbol);
  }();
  return opener;
}

}  // namespace

bool is_parquet_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string head(4, '\0');
  return file.read(head.data(), 4) && (head == "PAR1" || head == "PARE");
}

std::unique_ptr<RecordFile> open_parquet_file(const std::filesystem::path& path) {
  ParquetOpener open = nullptr;
  try {
    open = parquet_opener();
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(
        path.string() +
        " is a Parquet file, and Arrow, which reads them, cannot be loaded: " + error.what() +
        "; tools/setup.sh installs it, or pandas converts the file: "
        "read_parquet(FILE).to_json(\"out.jsonl\", orient=\"records\", lines=True)");
  }
  return std::unique_ptr<RecordFile>(open(path));
}

}  // namespace ringside::rl
