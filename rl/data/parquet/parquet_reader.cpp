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

// The element of row i of a column, as `use(array, index in it)`.
template <class Use>
auto at_row(const arrow::ChunkedArray& column, int64_t i, const Use& use) {
  for (const auto& chunk : column.chunks()) {
    if (i < chunk->length()) {
      return use(*chunk, i);
    }
    i -= chunk->length();
  }
  throw std::out_of_range("row of a column");
}

void add_blobs(const arrow::Array& array, int64_t i, std::vector<RecordBlob>& out);

template <class ArrayType>
void add_bytes(const arrow::Array& array, int64_t i, std::vector<RecordBlob>& out) {
  const std::string_view bytes = static_cast<const ArrayType&>(array).GetView(i);
  out.push_back({{bytes.begin(), bytes.end()}, ""});
}

template <class ArrayType>
void add_text(const arrow::Array& array, int64_t i, std::vector<RecordBlob>& out) {
  out.push_back({{}, std::string(static_cast<const ArrayType&>(array).GetView(i))});
}

template <class ArrayType>
void add_list(const arrow::Array& array, int64_t i, std::vector<RecordBlob>& out) {
  const auto& lists = static_cast<const ArrayType&>(array);
  for (int64_t k = 0; k < lists.value_length(i); ++k) {
    if (lists.values()->IsNull(lists.value_offset(i) + k)) {
      throw std::runtime_error("a list of images has a null");
    }
    add_blobs(*lists.values(), lists.value_offset(i) + k, out);
  }
}

// The bytes of a structure, or its path where the bytes are null, as Hugging Face's Image writes
// it.
void add_structure(const arrow::Array& array, int64_t i, std::vector<RecordBlob>& out) {
  const auto& structs = static_cast<const arrow::StructArray&>(array);
  for (const char* name : {"bytes", "path"}) {
    const auto field = structs.GetFieldByName(name);
    if (field != nullptr && !field->IsNull(i)) {
      add_blobs(*field, i, out);
      return;
    }
  }
  throw std::runtime_error("a structure has neither \"bytes\" nor \"path\"");
}

void add_blobs(const arrow::Array& array, int64_t i, std::vector<RecordBlob>& out) {
  if (array.IsNull(i)) {
    return;
  }
  using T = arrow::Type;
  switch (array.type_id()) {
    case T::BINARY:
      return add_bytes<arrow::BinaryArray>(array, i, out);
    case T::LARGE_BINARY:
      return add_bytes<arrow::LargeBinaryArray>(array, i, out);
    case T::STRING:
      return add_text<arrow::StringArray>(array, i, out);
    case T::LARGE_STRING:
      return add_text<arrow::LargeStringArray>(array, i, out);
    case T::LIST:
      return add_list<arrow::ListArray>(array, i, out);
    case T::LARGE_LIST:
      return add_list<arrow::LargeListArray>(array, i, out);
    case T::STRUCT:
      return add_structure(array, i, out);
    case T::EXTENSION:
      return add_blobs(*static_cast<const arrow::ExtensionArray&>(array).storage(), i, out);
    default:
      throw std::runtime_error("is of type " + array.type()->ToString() +
                               ", expected bytes, texts, {bytes, path} or lists of them");
  }
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
    const auto [table, row] = row_of(i);
    Json members = Json::object();
    for (int column = 0; column < table->num_columns(); ++column) {
      if (auto value =
              at_row(*table->column(column), row,
                     [](const arrow::Array& array, int64_t at) { return cell(array, at); })) {
        members[table->field(column)->name()] = *std::move(value);
      }
    }
    return members;
  }

  std::optional<std::vector<RecordBlob>> blobs(int64_t i, const std::string& column) override {
    const auto [table, row] = row_of(i);
    const auto values = table->GetColumnByName(column);
    if (values == nullptr) {
      return std::nullopt;
    }
    std::vector<RecordBlob> out;
    try {
      at_row(*values, row,
             [&](const arrow::Array& array, int64_t at) { add_blobs(array, at, out); });
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(place(i) + ": column " + column + ": " + error.what());
    }
    return out;
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

  // The row group of row i, and its place in it.
  std::pair<std::shared_ptr<arrow::Table>, int64_t> row_of(int64_t i) {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), i);
    if (i < 0 || end == ends_.end()) {
      throw std::out_of_range("row of " + path().string());
    }
    return {row_group(static_cast<int>(end - ends_.begin())),
            end == ends_.begin() ? i : i - *std::prev(end)};
  }

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
