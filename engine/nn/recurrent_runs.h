// Runs of rows that a recurrence passes through, with the tables that process them in chunks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ringside::engine {

class TableUpload;

// Rows [begin, end), in the order of their document. The run starts from the end state of run
// `after`; -1: from an initial state of its own.
struct RecurrentRun {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t after = -1;  // an earlier run
  bool operator==(const RecurrentRun&) const = default;
};

// Runs cut into chunks of kChunk rows, the last of a run filled up with empty slots. A wave is the
// chunks with the same number of chunks before them. Waves follow one another; the chunks of a wave
// are independent. An empty run has one chunk of empty slots. A block is consecutive chunks that
// are in memory together.
// Thread safety: immutable.
class ChunkTables {
 public:
  static constexpr int64_t kChunk = 64;

  // rows: of the packed input; each belongs to exactly one run. The tables go to `device` in one
  // copy, which blocks nobody.
  // Throws: c10::Error, naming the run, on runs that do not cover the rows once, or on an `after`
  // that is not an earlier run.
  ChunkTables(std::vector<RecurrentRun> runs, int64_t rows, c10::Device device);

  // One wave. Tables are int64, on the device.
  struct Wave {
    int64_t first_chunk = 0;
    int64_t chunks = 0;
    // For each chunk, the chunk of the wave before that it continues; in wave 0, its initial state.
    // Undefined: they are in the same order, and equally many.
    at::Tensor source;
    // Runs that end in this wave, and the chunk within the wave at which they end.
    at::Tensor ended_run, ended_chunk;  // undefined: none
  };
  // What is taken from and put into the packed rows for chunks [first, first + count).
  struct Slots {
    at::Tensor row;    // [count kChunk] row of each slot; any row for empty slots
    at::Tensor empty;  // [count kChunk] bool; undefined: none is empty
    at::Tensor used;   // slots that are not empty; undefined: all
    at::Tensor used_row;
  };

  int64_t rows() const { return rows_; }
  int64_t num_runs() const { return static_cast<int64_t>(runs_.size()); }
  int64_t num_initial() const { return num_initial_; }  // runs without `after`
  int64_t num_chunks() const { return static_cast<int64_t>(row_.size()) / kChunk; }
  const std::vector<Wave>& waves() const { return waves_; }
  // The slots of `chunks` chunks from first_chunk on; views of the tables.
  Slots slots(int64_t first_chunk, int64_t chunks) const;

 private:
  void add_slot_tables(TableUpload& tables);

  std::vector<RecurrentRun> runs_;
  int64_t rows_;
  int64_t num_initial_ = 0;
  std::vector<int64_t> row_;  // [chunks kChunk]; -1: empty
  std::vector<Wave> waves_;
  Slots all_;                         // of all chunks
  std::vector<int64_t> used_before_;  // [chunks + 1] used slots before each chunk
};

}  // namespace ringside::engine
