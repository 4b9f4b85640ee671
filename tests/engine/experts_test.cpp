// Mixture of experts against a formula that runs every expert on every token, and experts of
// several ranks against those of one.
#include "engine/nn/experts.h"

#include <ATen/ATen.h>

#include <numeric>
#include <vector>

#include "engine/nn/router.h"
#include "sp/layout/range.h"
#include "tests/support/catch.h"
#include "tests/support/grad_check.h"
#include "tests/support/ranks.h"

namespace ringside::engine {
namespace {

constexpr int64_t kTokens = 11, kHidden = 6, kExperts = 5, kPerToken = 2, kSize = 4;

struct Inputs {
  at::Tensor x, logits, gate_up, down;

  explicit Inputs(at::ScalarType dtype = at::kDouble) {
    at::manual_seed(3);
    const auto leaf = [dtype](std::vector<int64_t> shape) {
      return at::randn(shape, at::kDouble).to(dtype).set_requires_grad(true);
    };
    x = leaf({kTokens, kHidden});
    logits = leaf({kTokens, kExperts});
    gate_up = leaf({kExperts, 2 * kSize, kHidden});
    down = leaf({kExperts, kHidden, kSize});
  }
  std::vector<at::Tensor> all() const { return {x, logits, gate_up, down}; }
};

// Every expert on every token; the weights of experts that a token does not use are 0.
at::Tensor dense_formula(const Inputs& in, const at::Tensor& expert_sK, bool normalise) {
  const at::Tensor used = at::zeros_like(in.logits).scatter(1, expert_sK, 1.0);
  at::Tensor weight = at::softmax(in.logits, 1) * used;
  if (normalise) {
    weight = weight / weight.sum(1, /*keepdim=*/true);
  }
  at::Tensor sum = at::zeros_like(in.x);
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto halves = in.x.mm(in.gate_up[e].t()).chunk(2, 1);
    const at::Tensor out = (at::silu(halves[0]) * halves[1]).mm(in.down[e].t());
    sum = sum + weight.select(1, e).unsqueeze(1) * out;
  }
  return sum;
}

at::Tensor local_experts(const at::Tensor& x, const Routes& routes, const Weight& gate_up,
                         const Weight& down) {
  return apply_experts(x, routes, kExperts, {},
                       [&](const at::Tensor& rows, const std::vector<int64_t>& counts) {
                         return swiglu_experts(rows, counts, gate_up, down);
                       });
}

std::vector<at::Tensor> gradients(const at::Tensor& out, const Inputs& in) {
  at::manual_seed(4);
  const at::Tensor weight = at::randn(out.sizes(), out.options());
  for (const at::Tensor& tensor : in.all()) {
    tensor.mutable_grad().reset();
  }
  (out * weight).sum().backward();
  std::vector<at::Tensor> grads;
  for (const at::Tensor& tensor : in.all()) {
    grads.push_back(tensor.grad().defined() ? tensor.grad().clone() : at::zeros_like(tensor));
  }
  return grads;
}

void check_close(const at::Tensor& a, const at::Tensor& b) {
  CHECK((a - b).abs().max().item<double>() <= 1e-12);
}

TEST_CASE("experts compute the dense formula and its gradients") {
  for (const bool normalise : {false, true}) {
    const Inputs in;
    const Routes routes = route_by_softmax(in.logits, kPerToken, normalise);
    const at::Tensor out = local_experts(in.x, routes, in.gate_up, in.down);
    const at::Tensor expected = dense_formula(in, routes.expert_sK, normalise);
    check_close(out, expected);
    const auto found = gradients(out, in), wanted = gradients(expected, in);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      CAPTURE(i);
      CHECK(wanted[i].abs().max().item<double>() > 0);
      check_close(found[i], wanted[i]);
    }
  }
}

TEST_CASE("the router takes the largest probabilities over all experts") {
  const at::Tensor logits = at::tensor({1.0, 3.0, 2.0, -1.0, 0.0, 0.0, 5.0, 4.0}).view({2, 4});
  const Routes routes = route_by_softmax(logits, 2, /*normalise=*/false);
  CHECK(routes.expert_sK.equal(at::tensor({1, 2, 2, 3}, at::kLong).view({2, 2})));
  CHECK(routes.weight_sK.equal(at::softmax(logits, 1).gather(1, routes.expert_sK)));
  const Routes normalised = route_by_softmax(logits, 2, /*normalise=*/true);
  check_close(normalised.weight_sK.sum(1), at::ones({2}));
  CHECK_THROWS_WITH(route_by_softmax(logits, 5, false), Catch::Contains("5 experts a token"));
}

TEST_CASE("experts without tokens have zero gradients, and one may have all") {
  const Inputs in;
  Routes routes;
  routes.expert_sK = at::full({kTokens, 1}, 3, at::kLong);
  routes.weight_sK = at::ones({kTokens, 1}, at::kDouble);
  const auto grads = gradients(local_experts(in.x, routes, in.gate_up, in.down), in);
  for (int64_t e = 0; e < kExperts; ++e) {
    CHECK((grads[2][e].abs().max().item<double>() > 0) == (e == 3));
    CHECK((grads[3][e].abs().max().item<double>() > 0) == (e == 3));
  }
}

TEST_CASE("no tokens are no rows, with zero gradients") {
  const Inputs in;
  const Routes routes = route_by_softmax(in.logits.narrow(0, 0, 0), kPerToken, true);
  const at::Tensor out = local_experts(in.x.narrow(0, 0, 0), routes, in.gate_up, in.down);
  CHECK(out.sizes() == at::IntArrayRef{0, kHidden});
  for (const at::Tensor& grad : gradients(out, in)) {
    CHECK(grad.abs().max().item<double>() == 0);
  }
}

TEST_CASE("gradients of bf16 experts are in the master dtype") {
  const Inputs master(at::kFloat), compute(at::kBFloat16);
  const Weight gate_up(master.gate_up.detach().to(at::kBFloat16), master.gate_up);
  const Weight down(master.down.detach().to(at::kBFloat16), master.down);
  const Routes routes = route_by_softmax(compute.logits, kPerToken, true);
  local_experts(compute.x, routes, gate_up, down).sum().backward();
  CHECK(master.gate_up.grad().scalar_type() == at::kFloat);
  // A sum of bf16 products that was not rounded to bf16.
  const at::Tensor grad = master.down.grad();
  CHECK_FALSE(grad.equal(grad.to(at::kBFloat16).to(at::kFloat)));
}

// One rank's tokens, and what its pass over them gives.
struct Pass {
  at::Tensor out, d_x, d_logits, d_gate_up, d_down;
};

// Tokens [begin, begin + n) of the inputs over the ranks of `group`; the rank has experts `mine`.
Pass run_pass(const Inputs& in, int64_t begin, int64_t n, sp::Range mine, const ExpertPass& experts,
              bool one_expert) {
  const auto leaf = [](const at::Tensor& part) {
    return part.detach().clone().set_requires_grad(true);
  };
  const at::Tensor x = leaf(in.x.narrow(0, begin, n));
  const at::Tensor logits = leaf(in.logits.narrow(0, begin, n));
  const at::Tensor gate_up = leaf(in.gate_up.narrow(0, mine.begin, mine.size()));
  const at::Tensor down = leaf(in.down.narrow(0, mine.begin, mine.size()));
  Routes routes = route_by_softmax(logits, one_expert ? 1 : kPerToken, /*normalise=*/!one_expert);
  if (one_expert) {
    routes.expert_sK = at::full_like(routes.expert_sK, 3);
  }
  const at::Tensor out =
      apply_experts(x, routes, kExperts, experts, [&](const at::Tensor& rows, const auto& counts) {
        return swiglu_experts(rows, counts, gate_up, down);
      });
  const at::Tensor weight =
      at::sin(at::arange(kTokens * kHidden, in.x.options().requires_grad(false)))
          .view({kTokens, kHidden})
          .narrow(0, begin, n);
  (out * weight).sum().backward();
  return {out.detach(), x.grad(), logits.grad(), gate_up.grad(), down.grad()};
}

// Unequal numbers of tokens; of three and more ranks the second has none.
sp::Range tokens_of(int64_t rank, int64_t ranks) {
  const std::vector<int64_t> ends = ranks == 2   ? std::vector<int64_t>{7, kTokens}
                                    : ranks == 3 ? std::vector<int64_t>{7, 7, kTokens}
                                                 : std::vector<int64_t>{7, 7, 8, kTokens};
  return {rank == 0 ? 0 : ends[rank - 1], ends[rank]};
}

TEST_CASE("experts of several ranks compute what one rank computes") {
  const Inputs in;
  for (const int64_t ranks : {2, 3, 4}) {
    for (const bool one_expert : {false, true}) {
      CAPTURE(ranks, one_expert);
      const Pass expected = run_pass(in, 0, kTokens, {0, kExperts}, {}, one_expert);
      const auto wanted = [&](const at::Tensor& whole, sp::Range range) {
        return whole.narrow(0, range.begin, range.size());
      };
      test::run_ranks(
          {.ulysses = ranks, .expert = ranks},
          [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
            const auto& comm = groups.tensors(sp::axes::kExpert);
            const sp::Range mine = sp::even_part(kExperts, ranks, comm->rank());
            const sp::Range tokens = tokens_of(mesh.rank(), ranks);
            ExpertLoad loads(1, std::vector<double>(kExperts));
            ExpertNotes notes{.load = &loads};
            const Pass pass = run_pass(in, tokens.begin, tokens.size(), mine,
                                       {comm, nullptr, &notes}, one_expert);
            const std::vector<double>& load = loads.front();
            const auto equal = [&](const char* what, const at::Tensor& a, const at::Tensor& b) {
              TORCH_CHECK(a.sizes() == b.sizes() &&
                              (a.numel() == 0 || (a - b).abs().max().item<double>() < 1e-13),
                          what, " of rank ", mesh.rank(), " is ", a, ", expected ", b);
            };
            equal("the result", pass.out, wanted(expected.out, tokens));
            equal("the input's gradient", pass.d_x, wanted(expected.d_x, tokens));
            equal("the router's gradient", pass.d_logits, wanted(expected.d_logits, tokens));
            equal("the first matrix' gradient", pass.d_gate_up, wanted(expected.d_gate_up, mine));
            equal("the second matrix' gradient", pass.d_down, wanted(expected.d_down, mine));
            const int64_t routed = tokens.size() * (one_expert ? 1 : kPerToken);
            const auto sum = [](auto begin, auto end) { return std::accumulate(begin, end, 0.0); };
            TORCH_CHECK(sum(load.begin(), load.end()) == static_cast<double>(routed), "load ",
                        load);
            // The rows for other ranks' experts, there and back, and their gradients.
            const auto away = routed - static_cast<int64_t>(
                                           sum(load.begin() + mine.begin, load.begin() + mine.end));
            at::Tensor total = at::tensor({away}, at::kLong);
            comm->all_reduce_sum(total, "test");
            at::Tensor sent = at::tensor({comm->sent_bytes().at("expert_rows")}, at::kLong);
            comm->all_reduce_sum(sent, "test");
            TORCH_CHECK(sent.item<int64_t>() == 4 * total.item<int64_t>() * kHidden * 8, "sent ",
                        sent, " bytes for ", total, " rows");
          },
          std::chrono::seconds(30), {sp::axes::kExpert});
    }
  }
}

TEST_CASE("the second run of a recomputed layer uses the row counts of the first") {
  const Inputs in;
  test::run_ranks(
      {.ulysses = 2, .expert = 2},
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        const auto& comm = groups.tensors(sp::axes::kExpert);
        const auto kept = std::make_shared<sp::KeptResults>();
        ExpertLoad load(1, std::vector<double>(kExperts));
        ExpertNotes notes{.load = &load};
        const ExpertPass experts{comm, kept, &notes};
        const sp::Range mine = sp::even_part(kExperts, 2, comm->rank());
        const sp::Range tokens = tokens_of(mesh.rank(), 2);
        const Pass first = run_pass(in, tokens.begin, tokens.size(), mine, experts, false);
        const int64_t counts_bytes = comm->sent_bytes().at("expert_counts");
        const ExpertLoad load_before = load;
        kept->restore(kept->release());
        const Pass second = run_pass(in, tokens.begin, tokens.size(), mine, experts, false);
        TORCH_CHECK(comm->sent_bytes().at("expert_counts") == counts_bytes, "counts sent again");
        TORCH_CHECK(load == load_before, "rows counted twice: ", load.front());
        TORCH_CHECK(second.out.equal(first.out) && second.d_gate_up.equal(first.d_gate_up));
      },
      std::chrono::seconds(30), {sp::axes::kExpert});
}

// Two groups of three experts. Without groups the first row would take experts 0 and 3.
at::Tensor grouped_scores() {
  return at::tensor({0.9, 0.1, 0.2, 0.7, 0.6, 0.1,  //
                     0.3, 0.8, 0.4, 0.5, 0.1, 0.2},
                    at::kDouble)
      .view({2, 6});
}

TEST_CASE("a choice in groups takes the experts of the best groups") {
  const at::Tensor none = at::zeros({6}, at::kDouble);
  const auto ids = [](std::vector<int64_t> values) {
    return at::tensor(values, at::kLong).view({2, 2});
  };
  CHECK(choose_in_groups(grouped_scores(), none, {2, 1, 1}).equal(ids({0, 3, 1, 3})));
  CHECK(choose_in_groups(grouped_scores(), none, {2, 2, 1}).equal(ids({3, 4, 1, 2})));
  CHECK(choose_in_groups(grouped_scores(), none, {2, 2, 2}).equal(ids({0, 3, 1, 3})));
}

TEST_CASE("the correction of a router decides the choice and not the weights") {
  const at::Tensor correction = at::tensor({0.0, 0.0, 0.0, 0.0, 0.0, 2.0}, at::kDouble);
  const at::Tensor scores = grouped_scores();
  const at::Tensor chosen = choose_in_groups(scores, correction, {2, 2, 1});
  CHECK(chosen.equal(at::tensor({5, 3, 5, 3}, at::kLong).view({2, 2})));
  const at::Tensor weight = weigh_scores(scores, chosen, /*normalise=*/false, 2.5);
  check_close(weight, at::tensor({0.25, 1.75, 0.5, 1.25}, at::kDouble).view({2, 2}));
  const at::Tensor normalised = weigh_scores(scores, chosen, /*normalise=*/true, 2.5);
  check_close(normalised.sum(1), at::full({2}, 2.5, at::kDouble));
}

TEST_CASE("scores of chosen experts receive the gradients of their weights") {
  const at::Tensor scores = grouped_scores().requires_grad_();
  const at::Tensor chosen = choose_in_groups(scores, at::zeros({6}, at::kDouble), {2, 2, 1});
  CHECK_FALSE(chosen.requires_grad());
  const at::Tensor factor = at::tensor({1.0, -2.0, 3.0, 0.5}, at::kDouble).view({2, 2});
  const auto loss = [&] { return (weigh_scores(scores, chosen, true, 2.5) * factor).sum(); };
  CHECK(test::worst_gradient_error(loss, {scores}) <= 1e-8);
}

TEST_CASE("a choice that no group can serve is refused") {
  const at::Tensor scores = grouped_scores(), none = at::zeros({6}, at::kDouble);
  CHECK_THROWS_WITH(choose_in_groups(scores, none, {4, 2, 1}),
                    Catch::Contains("4 experts a token of 6 in 2 groups, of which 1 are kept"));
  CHECK_THROWS_WITH(choose_in_groups(scores, none, {2, 4, 2}), Catch::Contains("in 4 groups"));
  CHECK_THROWS_WITH(choose_in_groups(scores, none, {2, 6, 3}), Catch::Contains("in 6 groups"));
}

}  // namespace
}  // namespace ringside::engine
