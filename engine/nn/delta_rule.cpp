#include "engine/nn/delta_rule.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "engine/nn/delta_block.h"
#include "engine/ops/checks.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Elements of one operand of a block: what is in memory beside the states does not grow with the
// rows. On the CPU a block's operands stay in the cache; a device needs many matrices at once.
constexpr int64_t kCpuBlockElements = int64_t{1} << 17;
constexpr int64_t kBlockElements = int64_t{1} << 20;

// Calls use(first chunk, chunks) for blocks of consecutive chunks, forwards or backwards.
template <class Use>
void for_each_block(int64_t num_chunks, const DeltaRows& rows, bool backwards, Use use) {
  const DeltaSizes sizes = sizes_of(rows);
  const int64_t size =
      delta_chunks_at_once(sizes.heads, sizes.key_dim, sizes.value_dim, rows.v_ShV.device().type());
  const int64_t blocks = (num_chunks + size - 1) / size;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t first = (backwards ? blocks - 1 - i : i) * size;
    use(first, std::min(size, num_chunks - first));
  }
}

// Part of a wave within a block.
struct WavePart {
  const ChunkTables::Wave* wave;
  int64_t index;     // of the wave
  int64_t in_wave;   // first chunk, counted in the wave
  int64_t in_block;  // and in the block
  int64_t chunks;
};

std::vector<WavePart> parts_of(const ChunkTables& tables, int64_t first, int64_t count) {
  std::vector<WavePart> parts;
  const auto& waves = tables.waves();
  auto wave = std::upper_bound(
      waves.begin(), waves.end(), first,
      [](int64_t chunk, const ChunkTables::Wave& w) { return chunk < w.first_chunk + w.chunks; });
  for (int64_t chunk = first; chunk < first + count; ++wave) {
    const int64_t in_wave = chunk - wave->first_chunk;
    const int64_t n = std::min(wave->chunks - in_wave, first + count - chunk);
    parts.push_back({&*wave, wave - waves.begin(), in_wave, chunk - first, n});
    chunk += n;
  }
  return parts;
}

// Passes the states of the chunks from wave to wave. States are [chunks, h, K, V].
class ForwardScan {
 public:
  ForwardScan(const ChunkTables& tables, const DeltaSizes& sizes, at::Tensor initial,
              bool keep_starts)
      : tables_(tables), h_(sizes.heads), before_(std::move(initial)) {
    end_ = at::zeros({tables.num_runs(), h_, before_.size(2), before_.size(3)}, before_.options());
    if (keep_starts) {
      starts_ =
          at::empty({tables.num_chunks(), h_, before_.size(2), before_.size(3)}, before_.options());
    }
  }

  // `writes` [B, C, V] holds inverse (beta v) and becomes what the chunks write; returns the
  // states at their starts, [B, K, V].
  at::Tensor run(const DeltaBlock& block, int64_t first, int64_t count, at::Tensor& writes) {
    const int64_t k = before_.size(2), v = before_.size(3);
    at::Tensor starts = starts_.defined() ? starts_.narrow(0, first, count)
                                          : at::empty({count, h_, k, v}, before_.options());
    for (const WavePart& part : parts_of(tables_, first, count)) {
      at::Tensor start = starts.narrow(0, part.in_block, part.chunks);
      start.copy_(
          part.wave->source.defined()
              ? before_.index_select(0, part.wave->source.narrow(0, part.in_wave, part.chunks))
              : before_.narrow(0, part.in_wave, part.chunks));
      const int64_t b = part.in_block * h_, n = part.chunks * h_;
      start = start.view({n, k, v});
      at::Tensor written = writes.narrow(0, b, n);
      written.baddbmm_(block.transition.narrow(0, b, n), start, 1, -1);
      if (part.in_wave == 0) {
        after_ = at::empty({part.wave->chunks, h_, k, v}, before_.options());
      }
      at::Tensor after = after_.narrow(0, part.in_wave, part.chunks).view({n, k, v});
      at::mul_out(after, start, block.whole.narrow(0, b, n));
      after.baddbmm_(block.k_rest.narrow(0, b, n).transpose(1, 2), written);
      if (part.in_wave + part.chunks == part.wave->chunks) {
        finish(*part.wave);
      }
    }
    return starts.view({count * h_, k, v});
  }

  const at::Tensor& end() const { return end_; }
  const at::Tensor& starts() const { return starts_; }  // of all chunks; undefined if not kept

 private:
  void finish(const ChunkTables::Wave& wave) {
    before_ = std::exchange(after_, at::Tensor());
    if (wave.ended_run.defined()) {
      end_.index_copy_(0, wave.ended_run, before_.index_select(0, wave.ended_chunk));
    }
  }

  const ChunkTables& tables_;
  int64_t h_;
  at::Tensor before_, after_;  // states at the ends of a wave's chunks
  at::Tensor end_, starts_;
};

// The same backwards, for gradients.
class BackwardScan {
 public:
  BackwardScan(const ChunkTables& tables, int64_t heads, at::Tensor d_end)
      : tables_(tables), h_(heads), d_end_(std::move(d_end)) {}

  // d_start [B, K, V] holds the gradient of the chunks' starts from their outputs; the rest is
  // added. Returns the gradient of the states at their ends.
  at::Tensor run(const DeltaBlock& block, int64_t first, int64_t count, at::Tensor& d_start) {
    const int64_t k = d_start.size(1), v = d_start.size(2);
    at::Tensor d_ends = at::empty_like(d_start);
    const auto parts = parts_of(tables_, first, count);
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      const ChunkTables::Wave& wave = *part->wave;
      if (part->in_wave + part->chunks == wave.chunks) {
        begin(wave);
      }
      const int64_t b = part->in_block * h_, n = part->chunks * h_;
      const at::Tensor d_end = after_.narrow(0, part->in_wave, part->chunks).view({n, k, v});
      d_ends.narrow(0, b, n).copy_(d_end);
      at::Tensor d = d_start.narrow(0, b, n);
      d.addcmul_(d_end, block.whole.narrow(0, b, n));
      d.baddbmm_(block.transition.narrow(0, b, n).transpose(1, 2),
                 block.k_rest.narrow(0, b, n).bmm(d_end), 1, -1);
      const at::Tensor d_chunks = d.view({part->chunks, h_, k, v});
      if (wave.source.defined()) {
        before_.index_add_(0, wave.source.narrow(0, part->in_wave, part->chunks), d_chunks);
      } else {
        before_.narrow(0, part->in_wave, part->chunks).copy_(d_chunks);
      }
    }
    return d_ends;
  }

  // After all blocks: the gradient of the initial states.
  at::Tensor finish() { return before_; }

 private:
  void begin(const ChunkTables::Wave& wave) {
    const auto of = [&](int64_t states) {
      return at::zeros({states, h_, d_end_.size(2), d_end_.size(3)}, d_end_.options());
    };
    after_ = before_.defined() ? before_ : of(wave.chunks);
    if (wave.ended_run.defined()) {
      after_.index_add_(0, wave.ended_chunk, d_end_.index_select(0, wave.ended_run));
    }
    const bool is_first = wave.first_chunk == 0;
    before_ = of(is_first ? tables_.num_initial() : (&wave - 1)->chunks);
  }

  const ChunkTables& tables_;
  int64_t h_;
  at::Tensor d_end_;
  at::Tensor before_, after_;
};

at::Tensor zero_state(const DeltaRows& rows, int64_t states) {
  const DeltaSizes sizes = sizes_of(rows);
  return at::zeros({states, sizes.heads, sizes.key_dim, sizes.value_dim},
                   rows.v_ShV.options().dtype(delta_sums_dtype(rows.v_ShV)));
}

struct DeltaCall final : torch::CustomClassHolder {
  std::shared_ptr<const ChunkTables> tables;
  bool keep_starts = false;
  bool has_initial = false;
};

struct DeltaRule : torch::autograd::Function<DeltaRule> {
  using Optional = std::optional<at::Tensor>;

  static variable_list forward(AutogradContext* ctx, const Optional& queries, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& g, const at::Tensor& beta,
                               const Optional& initial, const c10::intrusive_ptr<DeltaCall>& call) {
    const at::Tensor q = queries.value_or(at::Tensor());
    const ChunkTables& tables = *call->tables;
    const DeltaRows rows{q, k, v, g, beta};
    const DeltaSizes sizes = sizes_of(rows);
    ForwardScan scan(tables, sizes,
                     initial.has_value() ? *initial : zero_state(rows, tables.num_initial()),
                     call->keep_starts);
    const auto masks = half_masks(v.options().dtype(delta_sums_dtype(v)));
    at::Tensor out = q.defined() ? at::zeros(v.sizes(), v.options()) : at::Tensor();
    for_each_block(tables.num_chunks(), rows, false, [&](int64_t first, int64_t count) {
      const BlockRows slots(tables, first, count);
      const DeltaBlock block = load_block(rows, slots, masks);
      at::Tensor writes = block.inverse.bmm(block.v * block.beta);
      const at::Tensor start = scan.run(block, first, count, writes);
      if (q.defined()) {
        slots.put(out, block.q_decayed.bmm(start).baddbmm_(block.attended, writes), 1);
      }
    });
    if (call->keep_starts) {
      ctx->save_for_backward({q, k, v, g, beta, scan.starts()});
      ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    }
    return q.defined() ? variable_list{scan.end(), out} : variable_list{scan.end()};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto call =
        c10::static_intrusive_pointer_cast<DeltaCall>(ctx->saved_data["call"].toCapsule());
    const ChunkTables& tables = *call->tables;
    const DeltaRows rows{saved[0], saved[1], saved[2], saved[3], saved[4]};
    const at::Tensor& starts = saved[5];
    const at::Tensor d_out = rows.q_SkK.defined() ? grads[1] : at::Tensor();
    const DeltaSizes sizes = sizes_of(rows);
    const auto dtype = delta_sums_dtype(rows.v_ShV);
    const auto masks = half_masks(rows.v_ShV.options().dtype(dtype));
    BackwardScan scan(tables, sizes.heads,
                      grads[0].defined() ? grads[0] : zero_state(rows, tables.num_runs()));
    DeltaGradients d;
    const auto like = [](const at::Tensor& x) {
      return x.defined() ? at::zeros(x.sizes(), x.options()) : at::Tensor();
    };
    d = {like(rows.q_SkK), like(rows.k_SkK), like(rows.v_ShV), like(rows.g_Sh), like(rows.beta_Sh)};
    for_each_block(tables.num_chunks(), rows, true, [&](int64_t first, int64_t count) {
      const BlockRows slots(tables, first, count);
      const DeltaBlock block = load_block(rows, slots, masks);
      const int64_t b = count * sizes.heads;
      const at::Tensor start =
          starts.narrow(0, first, count).view({b, sizes.key_dim, sizes.value_dim});
      const at::Tensor writes =
          block.inverse.bmm((block.v * block.beta).baddbmm_(block.k_decayed, start, 1, -1));
      at::Tensor d_block, d_writes, d_start;
      if (!d_out.defined()) {
        d_writes = at::zeros_like(writes);
        d_start = at::zeros_like(start);
      } else {
        d_block = slots.take(d_out, 1, dtype);
        d_writes = block.attended.transpose(1, 2).bmm(d_block);
        d_start = block.q_decayed.transpose(1, 2).bmm(d_block);
        d_start.baddbmm_(block.transition.transpose(1, 2), d_writes, 1, -1);
      }
      const at::Tensor d_end = scan.run(block, first, count, d_start);
      d_writes.baddbmm_(block.k_rest, d_end);
      put_gradients(d, slots, block_gradients(block, start, writes, d_block, d_writes, d_end),
                    sizes.repeats());
    });
    return {d.q,         d.k, d.v, d.g, d.beta, call->has_initial ? scan.finish() : at::Tensor(),
            at::Tensor()};
  }

 private:
  static void put_gradients(DeltaGradients& to, const BlockRows& slots, const DeltaGradients& block,
                            int64_t repeats) {
    if (to.q.defined()) {
      block.q.defined() ? slots.put(to.q, block.q, repeats) : static_cast<void>(to.q.zero_());
    }
    slots.put(to.k, block.k, repeats);
    slots.put(to.v, block.v, 1);
    slots.put(to.g, block.g);
    slots.put(to.beta, block.beta);
  }
};

void check_rows(const DeltaRows& rows) {
  const at::Tensor &k = rows.k_SkK, &v = rows.v_ShV;
  TORCH_CHECK(k.dim() == 3 && v.dim() == 3 && k.size(0) == v.size(0) && k.size(1) > 0 &&
                  v.size(1) % k.size(1) == 0,
              "delta rule: keys ", k.sizes(), " do not fit values ", v.sizes());
  TORCH_CHECK(!rows.q_SkK.defined() || rows.q_SkK.sizes() == k.sizes(), "delta rule: queries ",
              rows.q_SkK.sizes(), " do not fit keys ", k.sizes());
  for (const at::Tensor* x : {&rows.g_Sh, &rows.beta_Sh}) {
    TORCH_CHECK(x->dim() == 2 && x->size(0) == v.size(0) && x->size(1) == v.size(1) &&
                    x->scalar_type() == delta_sums_dtype(v),
                "delta rule: decays or write strengths ", x->sizes(), " of ", x->scalar_type(),
                " do not fit values ", v.sizes(), " of ", v.scalar_type());
  }
  check_alike("delta rule", {{"values", v}, {"keys", k}, {"queries", rows.q_SkK}});
}

// No run: empty results that are connected to the inputs, whose backward may be collective.
DeltaResult without_rows(const DeltaRows& rows, const at::Tensor& initial,
                         const std::vector<int64_t>& state) {
  const at::Tensor& v = rows.v_ShV;
  DeltaResult result;
  result.end_rhKV = v.to(delta_sums_dtype(v)).reshape(state);
  if (rows.q_SkK.defined()) {
    result.out_ShV = initial.defined()
                         ? at::cat({v, initial.reshape(v.sizes()).to(v.scalar_type())})
                         : v.clone();
  }
  return result;
}

}  // namespace

DeltaResult delta_rule(const DeltaRows& rows, const std::shared_ptr<const ChunkTables>& tables,
                       const at::Tensor& initial_nhKV) {
  check_rows(rows);
  const DeltaSizes sizes = sizes_of(rows);
  TORCH_CHECK(tables->rows() == rows.v_ShV.size(0), "delta rule: runs of ", tables->rows(),
              " rows for ", rows.v_ShV.size(0));
  const std::vector<int64_t> state{tables->num_initial(), sizes.heads, sizes.key_dim,
                                   sizes.value_dim};
  TORCH_CHECK(
      !initial_nhKV.defined() || (initial_nhKV.sizes() == at::IntArrayRef(state) &&
                                  initial_nhKV.scalar_type() == delta_sums_dtype(rows.v_ShV)),
      "delta rule: initial states of other sizes or dtype than ", state);
  if (tables->num_runs() == 0) {
    return without_rows(rows, initial_nhKV, state);
  }
  auto call = c10::make_intrusive<DeltaCall>();
  call->tables = tables;
  call->has_initial = initial_nhKV.defined();
  for (const at::Tensor* x :
       {&rows.q_SkK, &rows.k_SkK, &rows.v_ShV, &rows.g_Sh, &rows.beta_Sh, &initial_nhKV}) {
    call->keep_starts |= at::GradMode::is_enabled() && x->defined() && x->requires_grad();
  }
  const auto optional = [](const at::Tensor& x) {
    return x.defined() ? std::make_optional(x) : std::nullopt;
  };
  const auto results = DeltaRule::apply(optional(rows.q_SkK), rows.k_SkK, rows.v_ShV, rows.g_Sh,
                                        rows.beta_Sh, optional(initial_nhKV), call);
  return {results.size() > 1 ? results[1] : at::Tensor(), results[0]};
}

DeltaMaps delta_maps(const DeltaRows& rows, const std::shared_ptr<const ChunkTables>& tables) {
  TORCH_CHECK(tables->num_initial() == tables->num_runs(),
              "delta maps: a run continues another; each has a map of its own");
  const int64_t s = rows.v_ShV.size(0), h = rows.v_ShV.size(1), v = rows.v_ShV.size(2);
  const int64_t k = rows.k_SkK.size(2), n = tables->num_runs();
  // The rule on values [v | 0] from the state [0 | I]: affine maps of both at once.
  DeltaRows wide = rows;
  wide.q_SkK = at::Tensor();
  wide.v_ShV = at::cat({rows.v_ShV, rows.v_ShV.new_zeros({s, h, k})}, 2);
  const auto options = rows.v_ShV.options().dtype(delta_sums_dtype(rows.v_ShV));
  const at::Tensor start = at::cat({at::zeros({k, v}, options), at::eye(k, options)}, 1);
  const at::Tensor end = delta_rule(wide, tables, start.expand({n, h, k, v + k})).end_rhKV;
  return {end.narrow(3, 0, v), end.narrow(3, v, k)};
}

int64_t delta_chunks_at_once(int64_t heads, int64_t key_dim, int64_t value_dim,
                             c10::DeviceType device) {
  const int64_t wide =
      std::max({ChunkTables::kChunk, key_dim, value_dim}) * heads * ChunkTables::kChunk;
  const int64_t elements = device == c10::DeviceType::CPU ? kCpuBlockElements : kBlockElements;
  return std::max<int64_t>(1, elements / std::max<int64_t>(1, wide));
}

at::Tensor delta_step(const DeltaRows& rows, at::Tensor& state_nhKV) {
  check_rows(rows);
  const at::NoGradGuard no_grad;
  const DeltaSizes sizes = sizes_of(rows);
  const auto dtype = delta_sums_dtype(rows.v_ShV);
  const auto heads = [&](const at::Tensor& x) {
    return x.to(dtype).repeat_interleave(sizes.repeats(), 1);
  };
  const at::Tensor k = heads(rows.k_SkK);
  state_nhKV.mul_(rows.g_Sh.exp().unsqueeze(2).unsqueeze(3));
  const at::Tensor read = at::matmul(k.unsqueeze(2), state_nhKV).squeeze(2);
  const at::Tensor write = (rows.v_ShV.to(dtype) - read) * rows.beta_Sh.unsqueeze(2);
  state_nhKV.addcmul_(k.unsqueeze(3), write.unsqueeze(2));
  return at::matmul(heads(rows.q_SkK).unsqueeze(2), state_nhKV)
      .squeeze(2)
      .to(rows.v_ShV.scalar_type());
}

}  // namespace ringside::engine
