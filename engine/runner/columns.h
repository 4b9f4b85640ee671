// Columns of a loss by name: one number for each loss entry of an input.
// Shapes: n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace ringside::engine {

// A small table. A column that is not there was not asked for.
class Columns {
 public:
  // Enters or replaces a column.
  // Shapes: values_n [n], on any device.
  void set(const std::string& name, at::Tensor values_n) { table_[name] = std::move(values_n); }
  // Whether there is a column of that name.
  bool has(std::string_view name) const { return table_.contains(name); }
  // The column of that name, [n].
  // Throws: c10::Error when there is none.
  const at::Tensor& operator[](std::string_view name) const {
    const auto found = table_.find(name);
    TORCH_CHECK(found != table_.end(), "columns: there is none of the name ", name);
    return found->second;
  }
  // In the order of the names.
  const std::map<std::string, at::Tensor, std::less<>>& all() const { return table_; }

 private:
  std::map<std::string, at::Tensor, std::less<>> table_;
};

}  // namespace ringside::engine
