#include "sp/batch/loss_entries.h"

#include <stdexcept>
#include <string>

namespace ringside::sp {

void LossEntries::add(int64_t source_token, int64_t target_id, int64_t sample_number) {
  source.push_back(source_token);
  target.push_back(target_id);
  sample.push_back(sample_number);
}

void LossEntries::check() const {
  const auto check_column = [&](const char* name, const std::vector<int64_t>& column) {
    if (column.size() != source.size()) {
      throw std::invalid_argument(std::string("loss entries: column ") + name + " has " +
                                  std::to_string(column.size()) + " values, source has " +
                                  std::to_string(source.size()));
    }
  };
  check_column("target", target);
  check_column("sample", sample);
}

}  // namespace ringside::sp
