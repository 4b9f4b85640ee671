// Guards: exchanges that are not each other's adjoint, shards or heads that do not divide,
// asynchronous forms that differ from plain ones or overlap nothing, losses and gradient sums that
// count a rank twice, 0 tokens that make NaN. Oracles: one process in fp64, and <A x, y> = <x, A^T
// y>.
#include "sp/functional/gather.h"
#include "sp/functional/gradient_sync.h"
#include "sp/functional/loss.h"
#include "sp/heads/async_projection.h"
#include "sp/heads/head_functions.h"
#include "tests/sp/functional_cases.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"

using namespace ringside;
using test::Case;
using test::max_abs_diff;
using test::rows_of_rank;

namespace {

// Throws unless the ranks' parts of <A x, y> and <x, A^T y> add up to the same.
void check_adjoint(const std::vector<at::Tensor>& xs, const std::vector<at::Tensor>& outs,
                   const std::vector<at::Tensor>& ys, sp::Communicator& comm) {
  at::Tensor products = at::zeros({2}, at::kDouble);
  at::Tensor inner = at::zeros({}, at::kDouble);
  for (std::size_t i = 0; i < outs.size(); ++i) {
    inner = inner + (outs[i] * ys[i]).sum();
  }
  inner.backward();
  products[0] = inner.detach();
  for (const at::Tensor& x : xs) {
    products[1] += (x.detach() * x.grad()).sum();
  }
  comm.all_reduce_sum(products, "adjoint");
  TORCH_CHECK(std::abs((products[0] - products[1]).item<double>()) < 1e-10,
              "<Ax, y> and <x, A^T y>: ", products);
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(); }

}  // namespace

TEST_CASE("head exchanges bring every token of a rank's heads, go back, and are adjoints") {
  for (const Case& c : test::all_cases()) {
    at::manual_seed(7);
    // [B, H, S, D]: neither dim in its usual place.
    const auto random = [&](int64_t heads) {
      return at::randn({2, heads, c.tokens(), 3}, at::kDouble);
    };
    const at::Tensor q = random(c.query_heads), k = random(c.kv_heads), v = random(c.kv_heads);
    const at::Tensor yq = random(c.query_heads), yk = random(c.query_heads),
                     yv = random(c.query_heads);
    test::run_ranks_in_memory({1, 1, c.ranks()}, [&](const sp::Mesh& mesh,
                                                     const sp::ProcessGroups& comms) {
      const auto& comm = comms.tensors(sp::axes::kUlysses);
      const auto share = test::heads_of(c.query_heads, c.kv_heads, c.ranks(), mesh.rank());
      const auto mine = [&](const at::Tensor& x) {
        return leaf(rows_of_rank(x, 2, c.lengths, mesh.rank()));
      };
      const auto heads = [](const at::Tensor& x, sp::Range r) {
        return x.narrow(1, r.begin, r.size());
      };

      const at::Tensor x = mine(q);
      const at::Tensor out = sp::gather_seq_scatter_heads(x, 2, -3, comm);
      TORCH_CHECK(at::equal(out, heads(q, share.query_heads)), c.text());
      check_adjoint({x}, {out}, {heads(yq, share.query_heads)}, *comm);

      const at::Tensor whole = leaf(heads(q, share.query_heads));
      const at::Tensor back = sp::gather_heads_scatter_seq(whole, 1, -2, comm, c.lengths);
      TORCH_CHECK(at::equal(back, mine(q)), c.text());
      check_adjoint({whole}, {back}, {mine(yq).detach()}, *comm);

      const at::Tensor xq = mine(q), xk = mine(k), xv = mine(v);
      const auto [oq, ok, ov] = sp::gather_seq_scatter_heads_qkv(xq, xk, xv, 2, 1, comm, c.lengths);
      TORCH_CHECK(at::equal(oq, heads(q, share.query_heads)) &&
                      at::equal(ok, heads(k, share.kv_heads)) &&
                      at::equal(ov, heads(v, share.kv_heads)),
                  c.text());
      const double factor =
          1.0 + static_cast<double>(mesh.rank());  // what each rank adds to a shared head differs
      check_adjoint({xq, xk, xv}, {oq, ok, ov},
                    {heads(yq, share.query_heads), heads(yk, {0, share.kv_heads.size()}) * factor,
                     heads(yv, {0, share.kv_heads.size()}) * factor},
                    *comm);
    });
  }
}

TEST_CASE("even cuts need no lengths; wrong ones are refused on every rank") {
  const at::Tensor whole = at::arange(7 * 4, at::kDouble).view({7, 4, 1});
  test::run_ranks({1, 1, 3}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const at::Tensor x = sp::slice_input_tensor(whole, 0, *comms.tensors(sp::axes::kUlysses));
    const at::Tensor full =
        sp::gather_seq_scatter_heads(x, 0, 1, comms.tensors(sp::axes::kUlysses));
    TORCH_CHECK(
        at::equal(sp::gather_heads_scatter_seq(full, 1, 0, comms.tensors(sp::axes::kUlysses)), x));
    const auto refused = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const c10::Error&) {
        return true;
      }
      return false;
    };
    TORCH_CHECK(refused([&] {
      sp::gather_seq_scatter_heads(x, 0, 1, comms.tensors(sp::axes::kUlysses), {1, 1, 1});
    }));
    TORCH_CHECK(refused([&] {
      sp::gather_seq_scatter_heads(x, 0, -3, comms.tensors(sp::axes::kUlysses), {3, 2, 2});
    }));
    TORCH_CHECK(refused([&] {
      sp::gather_heads_scatter_seq(full, 1, 0, comms.tensors(sp::axes::kUlysses), {3, 2, 1});
    }));
    TORCH_CHECK(refused(
        [&] { sp::gather_heads_scatter_seq(full, 1, 0, comms.tensors(sp::axes::kUlysses), {7}); }));
    const at::Tensor weight = at::ones({2, 8}, at::kDouble);  // eight heads, 3 or 2 a rank
    const at::Tensor one_head = full.narrow(1, 0, 1);
    comms.tensors(sp::axes::kUlysses)->reset_counters();
    TORCH_CHECK(refused([&] {
      sp::async_ulysses_output_projection(one_head, weight, {}, comms.tensors(sp::axes::kUlysses));
    }));
    TORCH_CHECK(refused([&] {
      sp::async_ulysses_qkv_projection(one_head, weight, {}, weight, {}, weight, {}, 1,
                                       comms.tensors(sp::axes::kUlysses));
    }));
    TORCH_CHECK(comms.tensors(sp::axes::kUlysses)->sent_bytes().empty());
  });
  const auto alone = sp::make_single_rank_communicator();
  CHECK_THROWS_WITH(sp::gather_outputs(whole, 0, alone, {6}), Catch::Contains("rank 0 holds 7"));
  CHECK_THROWS_WITH(sp::gather_heads_scatter_seq(whole, 1, 0, alone, {7}, {5}),
                    Catch::Contains("rank 0 holds 4"));
  CHECK_THROWS_AS(sp::split_heads({6, 4, 1}, 2), std::invalid_argument);
  CHECK_THROWS_AS(sp::split_heads({6, 2, 1}, 0), std::invalid_argument);
  CHECK_THROWS_AS(sp::even_lengths(-1, 2), std::invalid_argument);
}

TEST_CASE(
    "partial sums are taken in fp32 and rounded once: a shared KV head's gradients, pieces of a "
    "projection") {
  test::run_ranks({1, 1, 3}, [](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const auto zeros = [](int64_t heads) {
      return at::zeros({1, heads, 1}, at::kBFloat16).requires_grad_();
    };
    const at::Tensor q = zeros(3), k = zeros(1), v = zeros(1);
    const auto [oq, ok, ov] =
        sp::gather_seq_scatter_heads_qkv(q, k, v, 0, 1, comms.tensors(sp::axes::kUlysses));
    const double slope = mesh.rank() == 0 ? 256.0 : 1.0;  // 256 + 1 is 256 in bf16
    ((ok * slope).sum() + (ov * slope).sum() + oq.sum()).backward();
    TORCH_CHECK(k.grad().item<double>() == 258.0 && v.grad().item<double>() == 258.0, k.grad(),
                v.grad());
    // One head a rank; its product with the weight is 256, 1 and 1.
    const at::Tensor weight = at::tensor({256.0, 1.0, 1.0}).to(at::kBFloat16).view({1, 3});
    const at::Tensor y = sp::async_ulysses_output_projection(
        at::ones({5, 1, 1}, at::kBFloat16), weight, {}, comms.tensors(sp::axes::kUlysses));
    TORCH_CHECK(at::equal(y, at::full_like(y, 258.0)), y);
  });
}

TEST_CASE(
    "a model with asynchronous projections equals one process, and its synchronous form bit for "
    "bit") {
  constexpr int64_t kHidden = 5, kDim = 3;
  for (const Case& c : test::all_cases()) {
    const test::Layer layer = test::random_layer(c, kHidden, kDim);
    const auto expected = test::dense_step(layer, c);
    test::run_ranks_in_memory({1, 1, c.ranks()}, [&](const sp::Mesh& mesh,
                                                     const sp::ProcessGroups& comms) {
      const auto& comm = comms.tensors(sp::axes::kUlysses);
      const test::Layer mine = layer.shard(c, mesh.rank());
      const auto [q, k, v] = sp::async_ulysses_qkv_projection(
          mine.x, mine.wq, mine.bq, mine.wk, mine.bk, mine.wv, mine.bv, kDim, comm, c.lengths);
      const auto heads = [&](const at::Tensor& y) { return y.unflatten(1, {-1, kDim}); };
      const auto [sq, sk, sv] = sp::gather_seq_scatter_heads_qkv(
          heads(at::linear(mine.x, mine.wq, mine.bq)), heads(at::linear(mine.x, mine.wk, mine.bk)),
          heads(at::linear(mine.x, mine.wv, mine.bv)), 0, 1, comm, c.lengths);
      TORCH_CHECK(at::equal(q, sq) && at::equal(k, sk) && at::equal(v, sv), c.text());

      const auto share = test::heads_of(c.query_heads, c.kv_heads, c.ranks(), mesh.rank());
      const at::Tensor attended = test::attend(q, k, v, share.kv_head_of);
      const at::Tensor y =
          sp::async_ulysses_output_projection(attended, mine.wo, mine.bo, comm, c.lengths);
      const at::Tensor sync_y =
          at::linear(sp::gather_heads_scatter_seq(attended, 1, 0, comm, c.lengths).flatten(1),
                     mine.wo, mine.bo);
      TORCH_CHECK(max_abs_diff(y, sync_y) < 1e-12, c.text());
      TORCH_CHECK(max_abs_diff(y, rows_of_rank(expected.y, 0, c.lengths, mesh.rank())) < 1e-10,
                  c.text());
      y.backward(rows_of_rank(layer.dy, 0, c.lengths, mesh.rank()));
      const double dx =
          max_abs_diff(mine.x.grad(), rows_of_rank(expected.dx, 0, c.lengths, mesh.rank()));
      TORCH_CHECK(dx < 1e-10, c.text(), ": dx ", dx);
      const auto parameters = mine.parameters();
      sp::sync_sp_parameter_gradients(parameters, comms, sp::CpFsdpMode::kNone);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const double worst = max_abs_diff(parameters[i].grad(), expected.parameter_grads[i]);
        TORCH_CHECK(worst < 1e-10, c.text(), ": parameter ", i, " differs by ", worst);
      }
    });
  }
}

TEST_CASE("frozen projections: no gradients where none are asked, the others as they were") {
  const Case c{{3, 2}, 4, 2};
  const test::Layer layer = test::random_layer(c, 5, 3);
  const auto expected = test::dense_step(layer, c);
  test::run_ranks({1, 1, 2}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    test::Layer mine = layer.shard(c, mesh.rank());
    for (at::Tensor* frozen : {&mine.wq, &mine.bk, &mine.wo}) {
      frozen->requires_grad_(false);
    }
    const auto [q, k, v] =
        sp::async_ulysses_qkv_projection(mine.x, mine.wq, mine.bq, mine.wk, mine.bk, mine.wv,
                                         mine.bv, 3, comms.tensors(sp::axes::kUlysses), c.lengths);
    const auto share = test::heads_of(4, 2, 2, mesh.rank());
    sp::async_ulysses_output_projection(test::attend(q, k, v, share.kv_head_of), mine.wo, {},
                                        comms.tensors(sp::axes::kUlysses), c.lengths)
        .backward(rows_of_rank(layer.dy, 0, c.lengths, mesh.rank()));
    TORCH_CHECK(!mine.wq.grad().defined() && !mine.bk.grad().defined() &&
                !mine.wo.grad().defined());
    TORCH_CHECK(max_abs_diff(mine.x.grad(), rows_of_rank(expected.dx, 0, c.lengths, mesh.rank())) <
                1e-10);
    const auto parameters = mine.parameters();
    for (const int i : {1, 2, 4, 5}) {  // bq, wk, wv, bv
      sp::sync_sp_gradients({parameters[i].grad()}, comms, sp::CpFsdpMode::kNone);
      TORCH_CHECK(max_abs_diff(parameters[i].grad(), expected.parameter_grads[i]) < 1e-10,
                  "parameter ", i);
    }
  });
}

TEST_CASE("exchanges are under way while the next product is computed") {
  const Case c{{3, 2, 4}, 6, 2};
  const test::Layer layer = test::random_layer(c, 5, 3);
  test::run_ranks({1, 1, 3}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const auto log = std::make_shared<test::LoggingCommunicator>(comms.tensors(sp::axes::kUlysses));
    const test::ProductLog products(log->log());
    const test::Layer mine = layer.shard(c, mesh.rank());
    const auto [q, k, v] = sp::async_ulysses_qkv_projection(mine.x, mine.wq, {}, mine.wk, {},
                                                            mine.wv, {}, 3, log, c.lengths);
    TORCH_CHECK(log->take() == "mm start0 mm start1 mm start2 wait0 wait1 wait2 ");
    const auto share = test::heads_of(6, 2, 3, mesh.rank());
    const auto y = sp::async_ulysses_output_projection(test::attend(q, k, v, share.kv_head_of),
                                                       mine.wo, {}, log, c.lengths);
    TORCH_CHECK(log->take() == "start3 start4 mm wait3 mm wait4 mm ");
    y.backward(rows_of_rank(layer.dy, 0, c.lengths, mesh.rank()));
    const std::string backward = log->take();
    TORCH_CHECK(
        backward ==
            "mm start5 mm mm mm wait5 start6 start7 start8 wait6 mm mm wait7 mm mm wait8 mm mm ",
        backward);
  });
}

TEST_CASE(
    "bytes sent are (P-1)/P^2 S D (2 Hq + 2 Hk) elements where everything divides, forward and "
    "backward alike") {
  for (const int64_t ranks : {2, 4}) {
    constexpr int64_t kDim = 3, kTokens = 8, kQueryHeads = 8, kKvHeads = 4;
    const Case c{sp::even_lengths(kTokens, ranks), kQueryHeads, kKvHeads};
    const test::Layer layer = test::random_layer(c, 5, kDim);
    const int64_t expected =
        8 * (ranks - 1) * kTokens * kDim * (2 * kQueryHeads + 2 * kKvHeads) / (ranks * ranks);
    test::run_ranks({1, 1, ranks}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
      const auto total = [&](const auto& wanted) {
        int64_t bytes = 0;
        for (const auto& [tag, sent] : comms.tensors(sp::axes::kUlysses)->sent_bytes()) {
          bytes += wanted(tag.ends_with("_grad")) ? sent : 0;
        }
        comms.tensors(sp::axes::kUlysses)->reset_counters();
        return bytes;
      };
      const test::Layer mine = layer.shard(c, mesh.rank());
      const auto share = test::heads_of(kQueryHeads, kKvHeads, ranks, mesh.rank());
      const auto [q, k, v] =
          sp::async_ulysses_qkv_projection(mine.x, mine.wq, {}, mine.wk, {}, mine.wv, {}, kDim,
                                           comms.tensors(sp::axes::kUlysses), c.lengths);
      const auto attended = test::attend(q, k, v, share.kv_head_of);
      const auto y = sp::async_ulysses_output_projection(
          attended, mine.wo, {}, comms.tensors(sp::axes::kUlysses), c.lengths);
      TORCH_CHECK(total([](bool) { return true; }) == expected);
      y.sum().backward();
      TORCH_CHECK(total([](bool grad) { return grad; }) == expected);
      const auto heads = [&](const at::Tensor& w) {
        return at::linear(mine.x, w).unflatten(1, {-1, kDim});
      };
      sp::gather_seq_scatter_heads_qkv(heads(mine.wq), heads(mine.wk), heads(mine.wv), 0, 1,
                                       comms.tensors(sp::axes::kUlysses), c.lengths);
      sp::gather_heads_scatter_seq(attended, 1, 0, comms.tensors(sp::axes::kUlysses), c.lengths,
                                   sp::even_lengths(kQueryHeads, ranks));
      TORCH_CHECK(total([](bool) { return true; }) == expected);
    });
  }
}
