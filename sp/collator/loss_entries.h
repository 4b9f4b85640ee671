// What the loss is summed over: one entry per scored token, as columns. An entry points at the token whose hidden state
// scores its target and lives on that token's rank. Targets are chosen per document before anything is cut, so none
// crosses a shard edge; a token may carry several entries. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ringside::sp {

struct LossEntries {
  std::vector<int64_t> source;  // token that scores the target: index in the document, or packed index
  std::vector<int64_t> target;  // token id
  std::vector<int64_t> sample;  // caller's number of the sample, the same on every rank
  std::vector<double> rollout_logprob;
  std::vector<double> old_logprob;
  std::vector<double> reference_logprob;
  std::vector<double> old_value;
  std::vector<double> advantage;
  std::vector<double> return_;     // what the value is fitted to
  std::vector<double> correction;  // factor of the policy term for the mismatch of trainer and rollout engine
  std::vector<double> weight;  // holds the aggregation and the global denominator; fixed before backward
  std::vector<double> temperature;

  int64_t size() const { return static_cast<int64_t>(source.size()); }

  // Appends entry i of `other` with its source moved by `source_offset`.
  void append(const LossEntries& other, std::size_t i, int64_t source_offset);

  // Throws std::invalid_argument naming the column whose length differs from source's.
  void check() const;
};

// Entries of n tokens with every number 0, but correction and temperature 1.
LossEntries blank_entries(std::size_t n);

}  // namespace ringside::sp
