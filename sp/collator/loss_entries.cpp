#include "sp/collator/loss_entries.h"

#include <stdexcept>

namespace ringside::sp {
namespace {

// Every column but source, with its name: the one list that append and check share.
template <class Entries, class Visitor>
void for_each_column(Entries& e, Visitor visit) {
  visit("target", e.target);
  visit("sample", e.sample);
  visit("rollout_logprob", e.rollout_logprob);
  visit("old_logprob", e.old_logprob);
  visit("reference_logprob", e.reference_logprob);
  visit("old_value", e.old_value);
  visit("advantage", e.advantage);
  visit("return_", e.return_);
  visit("correction", e.correction);
  visit("weight", e.weight);
  visit("temperature", e.temperature);
}

}  // namespace

void LossEntries::append(const LossEntries& other, std::size_t i, int64_t source_offset) {
  source.push_back(other.source[i] + source_offset);
  target.push_back(other.target[i]);
  sample.push_back(other.sample[i]);
  rollout_logprob.push_back(other.rollout_logprob[i]);
  old_logprob.push_back(other.old_logprob[i]);
  reference_logprob.push_back(other.reference_logprob[i]);
  old_value.push_back(other.old_value[i]);
  advantage.push_back(other.advantage[i]);
  return_.push_back(other.return_[i]);
  correction.push_back(other.correction[i]);
  weight.push_back(other.weight[i]);
  temperature.push_back(other.temperature[i]);
}

void LossEntries::check() const {
  for_each_column(*this, [&](const char* name, const auto& column) {
    if (column.size() != source.size()) {
      throw std::invalid_argument(std::string("loss entries: column ") + name + " has " +
                                  std::to_string(column.size()) + " values, source has " +
                                  std::to_string(source.size()));
    }
  });
}

LossEntries blank_entries(std::size_t n) {
  LossEntries entries;
  entries.source.resize(n);
  for_each_column(entries, [&](const char*, auto& column) { column.resize(n); });
  entries.correction.assign(n, 1.0);
  entries.temperature.assign(n, 1.0);
  return entries;
}

}  // namespace ringside::sp
