#include "sp/plan/state_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

namespace ringside::sp {
namespace {

struct Piece {
  int64_t segment = 0;
  Range offsets;
  int64_t ring_rank = 0;
  int64_t run = 0;      // of its rank
  Range rows;           // of its rank's share
  int64_t parent = -1;  // the piece it starts from
};

// All pieces of a layout; each after its parent.
class Pieces {
 public:
  explicit Pieces(const SequenceLayout& layout) {
    for (int64_t r = 0; r < layout.ring_size(); ++r) {
      int64_t run = 0, row = 0;
      for (const TokenRun& placed : layout.ring_share(r)) {
        const int64_t rows = placed.offsets.size();
        pieces_.push_back({placed.segment, placed.offsets, r, run++, {row, row + rows}, -1});
        row += rows;
      }
    }
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
      return std::pair(a.segment, a.offsets.begin) < std::pair(b.segment, b.offsets.begin);
    });
    // The last piece of each segment, or of its nearest ancestor that has one.
    std::vector<int64_t> last(layout.forest().num_segments(), -1);
    auto piece = pieces_.begin();
    for (int64_t s = 0; s < layout.forest().num_segments(); ++s) {
      const int64_t parent = layout.forest().parent(s);
      last[s] = parent < 0 ? -1 : last[parent];
      for (; piece != pieces_.end() && piece->segment == s; ++piece) {
        piece->parent = last[s];
        last[s] = piece - pieces_.begin();
      }
    }
  }

  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  const Piece& operator[](int64_t i) const { return pieces_[i]; }
  bool starts_elsewhere(int64_t i) const {
    const int64_t parent = pieces_[i].parent;
    return parent >= 0 && pieces_[parent].ring_rank != pieces_[i].ring_rank;
  }

  // The pieces whose maps a rank composes: all before those of its own that start elsewhere.
  std::set<int64_t> path_of(int64_t ring_rank) const {
    std::set<int64_t> path;
    for (int64_t i = 0; i < size(); ++i) {
      if (pieces_[i].ring_rank == ring_rank && starts_elsewhere(i)) {
        for (int64_t p = pieces_[i].parent; p >= 0 && path.insert(p).second;) {
          p = pieces_[p].parent;
        }
      }
    }
    return path;
  }

 private:
  std::vector<Piece> pieces_;
};

// A row of a ring share.
struct ShareRow {
  int64_t ring_rank = 0;
  int64_t row = 0;
  auto operator<=>(const ShareRow&) const = default;
};

// The `count` rows before a piece, newest first; fewer at the document's start.
std::vector<ShareRow> rows_before(const Pieces& pieces, int64_t piece, int64_t count) {
  std::vector<ShareRow> rows;
  for (int64_t p = pieces[piece].parent; p >= 0; p = pieces[p].parent) {
    for (int64_t row = pieces[p].rows.end - 1; row >= pieces[p].rows.begin; --row) {
      if (static_cast<int64_t>(rows.size()) == count) {
        return rows;
      }
      rows.push_back({pieces[p].ring_rank, row});
    }
  }
  return rows;
}

// The rows of other ranks that a rank reads, in rank order.
std::set<ShareRow> rows_read(const Pieces& pieces, int64_t ring_rank, int64_t count) {
  std::set<ShareRow> read;
  for (int64_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].ring_rank == ring_rank) {
      for (const ShareRow& row : rows_before(pieces, i, count)) {
        if (row.ring_rank != ring_rank) {
          read.insert(row);
        }
      }
    }
  }
  return read;
}

void add_maps(StatePlan& plan, const Pieces& pieces) {
  const int64_t me = plan.ring_rank, ranks = plan.ring_size();
  std::vector<std::set<int64_t>> paths;
  std::set<int64_t> mapped, travelling;
  for (int64_t r = 0; r < ranks; ++r) {
    paths.push_back(pieces.path_of(r));
    plan.maps_travel |= !paths.back().empty();
    for (const int64_t p : paths.back()) {
      travelling.insert(p);
      if (pieces[p].ring_rank == me) {
        mapped.insert(p);
      }
    }
  }
  std::vector<int64_t> mapped_of(ranks);
  std::map<int64_t, int64_t> number_of;  // piece -> place among its rank's mapped runs
  for (const int64_t p : travelling) {
    number_of[p] = mapped_of[pieces[p].ring_rank]++;
  }
  std::map<int64_t, int64_t> source_of;  // piece -> source of a step
  for (const int64_t p : mapped) {
    source_of[p] = static_cast<int64_t>(plan.mapped_runs.size());
    plan.mapped_runs.push_back(pieces[p].run);
  }
  int64_t received = static_cast<int64_t>(mapped.size());
  for (int64_t r = 0; r < ranks; ++r) {
    for (const int64_t p : paths[r]) {
      if (r != me && pieces[p].ring_rank == me) {
        plan.send_maps[r].push_back({source_of.at(p), pieces[p].parent < 0});
      }
    }
    for (const int64_t p : paths[me]) {
      if (r != me && pieces[p].ring_rank == r) {
        plan.recv_maps[r].push_back({number_of.at(p), pieces[p].parent < 0});
        source_of[p] = received++;
      }
    }
  }
  std::map<int64_t, int64_t> step_of;
  for (const int64_t p : paths[me]) {
    step_of[p] = static_cast<int64_t>(plan.path.size());
    const int64_t parent = pieces[p].parent;
    plan.path.push_back({source_of.at(p), parent < 0 ? -1 : step_of.at(parent)});
  }
  for (int64_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].ring_rank != me || pieces[i].parent < 0) {
      continue;
    }
    StatePlan::Run& run = plan.runs[pieces[i].run];
    if (pieces.starts_elsewhere(i)) {
      run.start = static_cast<int64_t>(plan.starts.size());
      plan.starts.push_back(step_of.at(pieces[i].parent));
    } else {
      run.after = pieces[pieces[i].parent].run;
    }
  }
}

void add_halo(StatePlan& plan, const Pieces& pieces) {
  const int64_t me = plan.ring_rank, before = plan.shape.conv_taps - 1;
  std::map<ShareRow, int64_t> place;  // of received rows
  for (const ShareRow& row : rows_read(pieces, me, before)) {
    place[row] = plan.share_rows + static_cast<int64_t>(place.size());
    ++plan.recv_rows[row.ring_rank];
  }
  for (int64_t r = 0; r < plan.ring_size(); ++r) {
    const auto read = rows_read(pieces, r, before);
    plan.rows_travel |= !read.empty();
    for (const ShareRow& row : read) {
      if (r != me && row.ring_rank == me) {
        plan.send_rows[r].push_back(row.row);
      }
    }
  }
  plan.halo.assign(plan.runs.size() * before, -1);
  for (int64_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].ring_rank != me) {
      continue;
    }
    int64_t slot = (pieces[i].run + 1) * before;  // newest last
    for (const ShareRow& row : rows_before(pieces, i, before)) {
      plan.halo[--slot] = row.ring_rank == me ? row.row : place.at(row);
    }
  }
}

void add_traffic(StatePlan& plan) {
  StateTraffic& t = plan.traffic;
  const int64_t groups = plan.shape.key_heads, own = plan.own_groups().size();
  const int64_t rows = plan.ulysses_rows[plan.ulysses_rank], others = plan.share_rows - rows;
  t.channels = rows * (groups - own) * plan.shape.channels();
  t.output = others * own * plan.shape.out_channels();
  t.channels_grad = others * own * plan.shape.channels();
  t.output_grad = rows * (groups - own) * plan.shape.out_channels();
  for (int64_t r = 0; r < plan.ring_size(); ++r) {
    const int64_t width = own * plan.shape.conv_channels();
    t.halo += static_cast<int64_t>(plan.send_rows[r].size()) * width;
    t.halo_grad += plan.recv_rows[r] * width;
    for (const TravellingMap& map : plan.send_maps[r]) {
      t.maps += plan.map_elements(map.from_zero);
    }
    for (const TravellingMap& map : plan.recv_maps[r]) {
      t.maps_grad += plan.map_elements(map.from_zero);
    }
  }
}

void check_shape(const StateShape& s, int64_t ulysses_size) {
  if (s.key_heads < 1 || s.value_heads < 1 || s.value_heads % s.key_heads != 0 || s.key_dim < 1 ||
      s.value_dim < 1 || s.conv_taps < 1) {
    throw std::invalid_argument(
        "delta net: value heads must be a positive multiple of key heads, and sizes positive, "
        "got " +
        std::to_string(s.value_heads) + " and " + std::to_string(s.key_heads) + " of dimensions " +
        std::to_string(s.value_dim) + " and " + std::to_string(s.key_dim) + ", convolution of " +
        std::to_string(s.conv_taps));
  }
  if (s.key_heads < ulysses_size) {
    throw std::invalid_argument("delta net: ulysses size " + std::to_string(ulysses_size) +
                                " exceeds the " + std::to_string(s.key_heads) +
                                " key heads of the linear attention; use a ring axis for the rest");
  }
}

}  // namespace

StatePlan plan_state(const SequenceLayout& layout, const StateShape& shape, int64_t sp_rank) {
  const int64_t ulysses = layout.ulysses_size();
  check_shape(shape, ulysses);
  StatePlan plan;
  plan.shape = shape;
  plan.ring_rank = sp_rank / ulysses;
  plan.ulysses_rank = sp_rank % ulysses;
  for (int64_t u = 0; u < ulysses; ++u) {
    plan.ulysses_rows.push_back(layout.ulysses_part(plan.ring_rank, u).size());
    plan.groups_of.push_back(even_part(shape.key_heads, ulysses, u));
  }
  for (const TokenRun& run : layout.ring_share(plan.ring_rank)) {
    plan.runs.push_back({{plan.share_rows, plan.share_rows + run.offsets.size()}, -1, -1});
    plan.share_rows += run.offsets.size();
  }
  plan.send_maps.resize(layout.ring_size());
  plan.recv_maps.resize(layout.ring_size());
  plan.send_rows.resize(layout.ring_size());
  plan.recv_rows.resize(layout.ring_size());
  const Pieces pieces(layout);
  add_maps(plan, pieces);
  add_halo(plan, pieces);
  add_traffic(plan);
  return plan;
}

int64_t forward_bytes(const StateTraffic& t, int64_t element, int64_t accumulated) {
  return (t.channels + t.output + t.halo) * element + t.maps * accumulated;
}

int64_t backward_bytes(const StateTraffic& t, int64_t element, int64_t accumulated) {
  return (t.channels_grad + t.output_grad + t.halo_grad) * element + t.maps_grad * accumulated;
}

}  // namespace ringside::sp
