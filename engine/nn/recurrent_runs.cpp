#include "engine/nn/recurrent_runs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "engine/device/table_upload.h"

namespace ringside::engine {
namespace {

int64_t chunks_of(const RecurrentRun& run) {
  const int64_t rows = run.end - run.begin;
  return std::max<int64_t>(1, (rows + ChunkTables::kChunk - 1) / ChunkTables::kChunk);
}

void check_runs(const std::vector<RecurrentRun>& runs, int64_t rows) {
  std::vector<char> seen(rows, 0);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const RecurrentRun& run = runs[r];
    TORCH_CHECK(0 <= run.begin && run.begin <= run.end && run.end <= rows, "run ", r, ": rows ",
                run.begin, " to ", run.end, " of ", rows);
    TORCH_CHECK(-1 <= run.after && run.after < static_cast<int64_t>(r), "run ", r,
                ": continues run ", run.after, ", which is not an earlier one");
    for (int64_t row = run.begin; row < run.end; ++row) {
      TORCH_CHECK(!std::exchange(seen[row], 1), "run ", r, ": row ", row, " is in two runs");
    }
  }
  TORCH_CHECK(std::find(seen.begin(), seen.end(), 0) == seen.end(), "row ",
              std::find(seen.begin(), seen.end(), 0) - seen.begin(), " is in no run");
}

// A chunk while the tables are made.
struct Chunk {
  int64_t run = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t source = 0;  // chunk of the wave before, or initial state
  bool last = false;   // of its run
};

bool counts_up(const std::vector<int64_t>& values, int64_t size) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != static_cast<int64_t>(i)) {
      return false;
    }
  }
  return static_cast<int64_t>(values.size()) == size;
}

// The chunks of each wave.
std::vector<std::vector<Chunk>> waves_of(const std::vector<RecurrentRun>& runs) {
  std::vector<std::vector<Chunk>> waves;
  struct End {
    int64_t wave, place;
  };
  std::vector<End> ends;
  int64_t initial = 0;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const RecurrentRun& run = runs[r];
    int64_t wave = run.after < 0 ? 0 : ends[run.after].wave + 1;
    int64_t source = run.after < 0 ? initial++ : ends[run.after].place;
    const int64_t n = chunks_of(run);
    for (int64_t i = 0; i < n; ++i, ++wave) {
      waves.resize(std::max<std::size_t>(waves.size(), wave + 1));
      const int64_t first = run.begin + i * ChunkTables::kChunk;
      waves[wave].push_back({static_cast<int64_t>(r), first,
                             std::min(ChunkTables::kChunk, run.end - first), source, i + 1 == n});
      source = static_cast<int64_t>(waves[wave].size()) - 1;
    }
    ends.push_back({wave - 1, source});
  }
  return waves;
}

}  // namespace

ChunkTables::ChunkTables(std::vector<RecurrentRun> runs, int64_t rows, c10::Device device)
    : runs_(std::move(runs)), rows_(rows) {
  check_runs(runs_, rows_);
  for (const RecurrentRun& run : runs_) {
    num_initial_ += run.after < 0 ? 1 : 0;
  }
  int64_t before = num_initial_;
  const std::vector<std::vector<Chunk>> all = waves_of(runs_);
  TableUpload tables;
  waves_.reserve(all.size());  // the tables point into it
  for (const std::vector<Chunk>& chunks : all) {
    Wave& wave =
        waves_.emplace_back(Wave{num_chunks(), static_cast<int64_t>(chunks.size()), {}, {}, {}});
    std::vector<int64_t> source, ended_run, ended_chunk;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const Chunk& chunk = chunks[i];
      source.push_back(chunk.source);
      if (chunk.last) {
        ended_run.push_back(chunk.run);
        ended_chunk.push_back(static_cast<int64_t>(i));
      }
      for (int64_t slot = 0; slot < kChunk; ++slot) {
        row_.push_back(slot < chunk.rows ? chunk.first_row + slot : -1);
      }
    }
    if (!counts_up(source, before)) {
      tables.add(source, wave.source);
    }
    if (!ended_run.empty()) {
      tables.add(ended_run, wave.ended_run);
      tables.add(ended_chunk, wave.ended_chunk);
    }
    before = wave.chunks;
  }
  add_slot_tables(tables);
  tables.upload(device);
  all_.empty =
      at::ones({static_cast<int64_t>(row_.size())}, at::TensorOptions(at::kBool).device(device));
  all_.empty.index_fill_(0, all_.used, 0);
}

void ChunkTables::add_slot_tables(TableUpload& tables) {
  std::vector<int64_t> row, used, used_row;
  used_before_.push_back(0);
  for (std::size_t slot = 0; slot < row_.size(); ++slot) {
    row.push_back(std::max<int64_t>(row_[slot], 0));
    if (row_[slot] >= 0) {
      used.push_back(static_cast<int64_t>(slot));
      used_row.push_back(row_[slot]);
    }
    if ((slot + 1) % kChunk == 0) {
      used_before_.push_back(static_cast<int64_t>(used.size()));
    }
  }
  tables.add(row, all_.row);
  tables.add(used, all_.used);
  tables.add(used_row, all_.used_row);
}

ChunkTables::Slots ChunkTables::slots(int64_t first_chunk, int64_t chunks) const {
  const int64_t first = first_chunk * kChunk, count = chunks * kChunk;
  const int64_t used = used_before_[first_chunk];
  const int64_t num_used = used_before_[first_chunk + chunks] - used;
  Slots slots{all_.row.narrow(0, first, count), {}, {}, all_.used_row.narrow(0, used, num_used)};
  if (num_used < count) {
    slots.used = all_.used.narrow(0, used, num_used) - first;
    slots.empty = all_.empty.narrow(0, first, count);
  }
  return slots;
}

}  // namespace ringside::engine
