#include "rl/data/parquet/parquet_reader.h"

#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/scalar.h>
#include <arrow/table.h>
#include <arrow/util/float16.h>
#include <arrow/util/utf8.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace ringside::rl {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kKeptBytes = int64_t{1} << 30;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& problem) {
  throw std::runtime_error(path.string() + " cannot be read as Parquet: " + problem);
}

template <class T>
T value_or_fail(arrow::Result<T> result, const std::filesystem::path& path) {
  if (!result.ok()) {
    fail(path, result.status().message());
  }
  return std::move(result).ValueUnsafe();
}

std::optional<Json> cell(const arrow::Array& array, int64_t i);

template <class ArrayType>
Json number(const arrow::Array& array, int64_t i) {
  return static_cast<const ArrayType&>(array).Value(i);
}

std::optional<Json> finite(double value) {
  return std::isfinite(value) ? std::optional<Json>(value) : std::nullopt;
}

template <class ArrayType>
std::optional<Json> text(const arrow::Array& array, int64_t i) {
  const std::string_view bytes = static_cast<const ArrayType&>(array).GetView(i);
  return arrow::util::ValidateUTF8(bytes) ? std::optional<Json>(std::string(bytes)) : std::nullopt;
}

template <class ArrayType>
Json list(const arrow::Array& array, int64_t i) {
  const auto& lists = static_cast<const ArrayType&>(array);
  Json values = Json::array();
  for (int64_t k = 0; k < lists.value_length(i); ++k) {
    values.push_back(cell(*lists.values(), lists.value_offset(i) + k).value_or(Json()));
  }
  return values;
}

Json object(const arrow::Array& array, int64_t i) {
  const auto& structs = static_cast<const arrow::StructArray&>(array);
  Json members = Json::object();
  for (int f = 0; f < structs.num_fields(); ++f) {
    if (auto value = cell(*structs.field(f), i)) {
      members[structs.struct_type()->field(f)->name()] = *std::move(value);
    }
  }
  return members;
}

// An object, or a list of pairs if the keys are not text.
Json map(const arrow::Array& array, int64_t i) {
  const auto& maps = static_cast<const arrow::MapArray&>(array);
  const bool named = arrow::is_base_binary_like(maps.map_type()->key_type()->id());
  Json entries = named ? Json::object() : Json::array();
  for (int64_t k = maps.value_offset(i); k < maps.value_offset(i) + maps.value_length(i); ++k) {
    auto key = cell(*maps.keys(), k);
    auto value = cell(*maps.items(), k);
    if (!named) {
      entries.push_back(Json::array({key.value_or(Json()), value.value_or(Json())}));
    } else if (key && value) {
      entries[key->get<std::string>()] = *std::move(value);
    }
  }
  return entries;
}

std::optional<Json> written(const arrow::Array& array, int64_t i) {
  const auto scalar = array.GetScalar(i);
  return scalar.ok() ? std::optional<Json>((*scalar)->ToString()) : std::nullopt;
}

std::optional<Json> cell(const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) {
    return std::nullopt;
  }
  using T = arrow::Type;
  switch (array.type_id()) {
    case T::BOOL:
      return number<arrow::BooleanArray>(array, i);
    case T::INT8:
      return number<arrow::Int8Array>(array, i);
    case T::INT16:
      return number<arrow::Int16Array>(array, i);
    case T::INT32:
      return number<arrow::Int32Array>(array, i);
    case T::INT64:
      return number<arrow::Int64Array>(array, i);
    case T::UINT8:
      return number<arrow::UInt8Array>(array, i);
    case T::UINT16:
      return number<arrow::UInt16Array>(array, i);
    case T::UINT32:
      return number<arrow::UInt32Array>(array, i);
    case T::UINT64:
      return number<arrow::UInt64Array>(array, i);
    case T::FLOAT:
      return finite(static_cast<const arrow::FloatArray&>(array).Value(i));
    case T::DOUBLE:
      return finite(static_cast<const arrow::DoubleArray&>(array).Value(i));
    case T::HALF_FLOAT:
      return finite(
          arrow::util::Float16::FromBits(static_cast<const arrow::HalfFloatArray&>(array).Value(i))
              .ToDouble());
    case T::STRING:
      return text<arrow::StringArray>(array, i);
    case T::BINARY:
      return text<arrow::BinaryArray>(array, i);
    case T::LARGE_STRING:
      return text<arrow::LargeStringArray>(array, i);
    case T::LARGE_BINARY:
      return text<arrow::LargeBinaryArray>(array, i);
    case T::STRING_VIEW:
      return text<arrow::StringViewArray>(array, i);
    case T::BINARY_VIEW:
      return text<arrow::BinaryViewArray>(array, i);
    case T::FIXED_SIZE_BINARY:
      return text<arrow::FixedSizeBinaryArray>(array, i);
    case T::LIST:
      return list<arrow::ListArray>(array, i);
    case T::LARGE_LIST:
      return list<arrow::LargeListArray>(array, i);
    case T::FIXED_SIZE_LIST:
      return list<arrow::FixedSizeListArray>(array, i);
    case T::STRUCT:
      return object(array, i);
    case T::MAP:
      return map(array, i);
    case T::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return cell(*coded.dictionary(), coded.GetValueIndex(i));
    }
    case T::EXTENSION:
      return cell(*static_cast<const arrow::ExtensionArray&>(array).storage(), i);
    default:
      return written(array, i);
  }
}

// The cell of row i of a column.
std::optional<Json> cell(const arrow::ChunkedArray& column, int64_t i) {
  for (const auto& chunk : column.chunks()) {
    if (i < chunk->length()) {
      return cell(*chunk, i);
    }
    i -= chunk->length();
  }
  throw std::out_of_range("row of a column");
}

std::unique_ptr<parquet::arrow::FileReader> open_reader(const std::filesystem::path& path) {
  // Not Arrow's own allocator: its memory would not return to the rest of the program.
  arrow::MemoryPool* const pool = arrow::system_memory_pool();
  auto file = value_or_fail(arrow::io::ReadableFile::Open(path.string(), pool), path);
  parquet::ArrowReaderProperties properties(/*use_threads=*/false);
  properties.set_pre_buffer(false);  // else a pool of threads reads ahead
  parquet::arrow::FileReaderBuilder builder;
  const arrow::Status opened = builder.Open(std::move(file), parquet::ReaderProperties(pool));
  if (!opened.ok()) {
    fail(path, opened.message());
  }
  return value_or_fail(builder.memory_pool(pool)->properties(properties)->Build(), path);
}

class ParquetFile final : public RecordFile {
 public:
  explicit ParquetFile(const std::filesystem::path& file)
      : RecordFile(file), reader_(open_reader(file)) {
    const auto metadata = reader_->parquet_reader()->metadata();
    for (int group = 0; group < metadata->num_row_groups(); ++group) {
      ends_.push_back(size() + std::max<int64_t>(0, metadata->RowGroup(group)->num_rows()));
    }
    if (size() == 0) {
      fail(file, "it has no row");
    }
    bytes_each_ = static_cast<int64_t>(std::filesystem::file_size(file)) / size();
  }

  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }

  Json record(int64_t i) override {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), i);
    if (i < 0 || end == ends_.end()) {
      throw std::out_of_range("row of " + path().string());
    }
    const arrow::Table& table = *row_group(static_cast<int>(end - ends_.begin()));
    const int64_t row = end == ends_.begin() ? i : i - *std::prev(end);
    Json members = Json::object();
    for (int column = 0; column < table.num_columns(); ++column) {
      if (auto value = cell(*table.column(column), row)) {
        members[table.field(column)->name()] = *std::move(value);
      }
    }
    return members;
  }

  int64_t number(int64_t i) const override { return i + 1; }
  std::string place(int64_t i) const override {
    return path().string() + ": row " + std::to_string(i + 1);
  }
  int64_t offset(int64_t i) const override { return i * bytes_each_; }

 private:
  struct Kept {
    int group;
    int64_t bytes;
    std::shared_ptr<arrow::Table> table;
  };

  // Row group `group`, decoded.
  const std::shared_ptr<arrow::Table>& row_group(int group) {
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [group](const Kept& kept) { return kept.group == group; });
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return kept_.front().table;
    }
    auto table = value_or_fail(reader_->ReadRowGroup(group), path());
    const auto rows = ends_[static_cast<std::size_t>(group)] -
                      (group == 0 ? 0 : ends_[static_cast<std::size_t>(group) - 1]);
    const arrow::Status valid = table->ValidateFull();
    if (!valid.ok() || table->num_rows() != rows) {
      fail(path(), "row group " + std::to_string(group) + " is damaged" +
                       (valid.ok() ? "" : ": " + valid.message()));
    }
    const int64_t bytes = reader_->parquet_reader()->metadata()->RowGroup(group)->total_byte_size();
    kept_bytes_ += bytes;
    kept_.push_front({group, bytes, std::move(table)});
    while (kept_bytes_ > kKeptBytes && kept_.size() > 1) {
      kept_bytes_ -= kept_.back().bytes;
      kept_.pop_back();
    }
    return kept_.front().table;
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<int64_t> ends_;  // of row groups, in rows of the file
  int64_t bytes_each_ = 0;
  std::list<Kept> kept_;  // the one last used first
  int64_t kept_bytes_ = 0;
};

}  // namespace
}  // namespace ringside::rl

extern "C" ringside::rl::RecordFile* ringside_open_parquet(const std::filesystem::path& path) {
  return new ringside::rl::ParquetFile(path);
}
