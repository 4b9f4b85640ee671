// Guards: rows of images on the wrong token, an exchange that is not its backward's adjoint,
// gradients of an image's tokens that are lost or added in another order, ranks without images that
// hang, bytes other than the plan's. Oracles: one process in fp64, and <A x, y> = <x, A^T y>.
// Shapes: r = rows that a rank encodes, i = its rows of images, R = rows of all images, E = width.
#include "sp/images/row_exchange.h"

#include <numeric>
#include <random>

#include "tests/support/assertion_lock.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"

using namespace ringside;

namespace {

constexpr int64_t kWidth = 5;

struct Problem {
  std::string name;
  int64_t ranks;
  std::vector<sp::ImageShape> images;
  std::vector<sp::ImageRow> rows;

  // The row of each token among all rows of all images.
  std::vector<int64_t> whole_rows(int64_t rank) const {
    std::vector<int64_t> first(images.size() + 1), whole;
    for (std::size_t i = 0; i < images.size(); ++i) {
      first[i + 1] = first[i] + images[i].tokens;
    }
    for (const sp::ImageRow& row : rows) {
      if (row.rank == rank) {
        whole.push_back(first[row.image] + row.row);
      }
    }
    return whole;
  }
  int64_t total_rows() const {
    int64_t total = 0;
    for (const sp::ImageShape& image : images) {
      total += image.tokens;
    }
    return total;
  }
};

// An image in two places of rank 0 and in one of the last rank, one image larger than a shard, one
// with rows that no token has.
Problem shared_problem(int64_t ranks) {
  Problem problem{"shared", ranks, {{3, 4}, {2 * ranks + 1, 9}, {4, 2}}, {}};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t token = rank % 2;
    const auto add = [&](int64_t image, int64_t row) {
      problem.rows.push_back({rank, token++, image, row});
    };
    if (rank == 0) {
      for (const int64_t row : {0, 1, 2, 0, 1, 2}) {
        add(0, row);
      }
    }
    add(1, 2 * rank);
    add(1, 2 * rank + 1);
    ++token;  // of text
    if (rank == ranks - 1) {
      add(1, 2 * ranks);
      add(0, 1);
      add(2, 3);
    }
  }
  return problem;
}

std::vector<Problem> problems() {
  std::vector<Problem> all;
  std::mt19937 rng(5);
  const auto draw = [&](int64_t high) {
    return std::uniform_int_distribution<int64_t>(0, high)(rng);
  };
  for (int64_t ranks = 1; ranks <= 4; ++ranks) {
    all.push_back(shared_problem(ranks));
    // All tokens on the last rank, the image on the first: others are empty.
    all.push_back({"one rank", ranks, {{2, 1}}, {{ranks - 1, 3, 0, 1}}});
    // An image that no rank has a token of.
    all.push_back({"no token", ranks, {{2, 1}}, {}});
    for (int n = 0; n < 3; ++n) {
      Problem random{"random", ranks, {}, {}};
      for (int64_t i = 0; i <= draw(4); ++i) {
        random.images.push_back({1 + draw(3), draw(9)});
      }
      for (int64_t rank = 0; rank < ranks; ++rank) {
        for (int64_t token = 0; token < draw(12); token += 1 + draw(1)) {
          const int64_t image = draw(std::ssize(random.images) - 1);
          random.rows.push_back({rank, token, image, draw(random.images[image].tokens - 1)});
        }
      }
      all.push_back(random);
    }
  }
  return all;
}

// A rank's side of a problem.
struct Side {
  Side(const Problem& problem, const sp::Mesh& mesh, const sp::ProcessGroups& groups)
      : comm(groups.tensors(sp::axes::kSp)),
        plan(std::make_shared<const sp::ImagePlan>(
            sp::plan_images(problem.images, problem.rows, problem.ranks, mesh.sp_rank()))),
        exchange(std::make_shared<const sp::RowExchange>(plan, comm, at::kCPU)) {}

  // This rank's part of the rows of all images.
  at::Tensor encoded(const at::Tensor& whole_RE, const Problem& problem) const {
    std::vector<at::Tensor> parts{whole_RE.narrow(0, 0, 0)};
    for (const int64_t image : plan->own_images()) {
      int64_t first = 0;
      for (int64_t before = 0; before < image; ++before) {
        first += problem.images[before].tokens;
      }
      parts.push_back(whole_RE.narrow(0, first, problem.images[image].tokens));
    }
    return at::cat(parts).clone().requires_grad_();
  }

  // What each received row belongs to, in the order of the tokens: by place_i.
  at::Tensor in_token_order(const at::Tensor& rows_iE) const {
    return rows_iE.index_select(0, exchange->place_i().argsort());
  }

  std::shared_ptr<sp::Communicator> comm;
  std::shared_ptr<const sp::ImagePlan> plan;
  std::shared_ptr<const sp::RowExchange> exchange;
};

void on_ranks(const Problem& problem, const test::RankBody& body) {
  // Two axes share the sequence where the number of ranks lets them.
  const int64_t ulysses = problem.ranks % 2 == 0 ? 2 : 1;
  test::run_ranks_in_memory({1, problem.ranks / ulysses, ulysses}, body);
}

int64_t sent(const sp::Communicator& comm, const std::string& tag) {
  const auto found = comm.sent_bytes().find(tag);
  return found == comm.sent_bytes().end() ? 0 : found->second;
}

}  // namespace

TEST_CASE("every image token gets its row, and the bytes are the plan's, both ways") {
  for (const Problem& problem : problems()) {
    at::manual_seed(3);
    const at::Tensor whole_RE = at::randn({problem.total_rows(), kWidth}, at::kDouble);
    on_ranks(problem, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
      const Side side(problem, mesh, groups);
      const at::Tensor rows_rE = side.encoded(whole_RE, problem);
      const at::Tensor out_iE = sp::exchange_rows(rows_rE, side.exchange);
      out_iE.sum().backward();
      const auto wanted = problem.whole_rows(mesh.sp_rank());
      const int64_t bytes = kWidth * 8;
      const auto lock = test::assertion_lock();
      CAPTURE(problem.name, problem.ranks, mesh.sp_rank());
      REQUIRE(at::equal(side.in_token_order(out_iE.detach()),
                        whole_RE.index_select(0, at::tensor(wanted, at::kLong))));
      REQUIRE(sent(*side.comm, "image_rows") == side.plan->forward_bytes(bytes));
      REQUIRE(sent(*side.comm, "image_rows_grad") == side.plan->backward_bytes(bytes));
    });
  }
}

TEST_CASE("the backward is the exact adjoint, also on ranks without an image or a token") {
  for (const Problem& problem : problems()) {
    at::manual_seed(8);
    const at::Tensor whole_RE = at::randn({problem.total_rows(), kWidth}, at::kDouble);
    on_ranks(problem, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
      const Side side(problem, mesh, groups);
      const at::Tensor rows_rE = side.encoded(whole_RE, problem);
      at::Tensor out_iE = sp::exchange_rows(rows_rE, side.exchange);
      // What each rank's tokens weigh differs.
      const at::Tensor y_iE = at::arange(out_iE.numel(), at::kDouble).view_as(out_iE).sin() +
                              static_cast<double>(mesh.sp_rank());
      const at::Tensor inner = (out_iE * y_iE).sum();
      inner.backward();
      at::Tensor products = at::stack({inner.detach(), (rows_rE.detach() * rows_rE.grad()).sum()});
      side.comm->all_reduce_sum(products, "adjoint");
      const auto lock = test::assertion_lock();
      CAPTURE(problem.name, problem.ranks, mesh.sp_rank());
      REQUIRE(std::abs((products[0] - products[1]).item<double>()) < 1e-12);
    });
  }
}

TEST_CASE("gradients of a row's tokens are added in the order of ranks, in fp32 for bf16") {
  // Each rank has the row once; every other order of these numbers gives another sum.
  Problem problem{"order", 4, {{1, 1}}, {}};
  for (int64_t rank = 0; rank < 4; ++rank) {
    problem.rows.push_back({rank, 0, 0, 0});
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor y_4 = dtype == at::kFloat
                               ? at::tensor({1.0e8, -1.0e8, 3.0, 1.0e-8}, at::kFloat)
                               : at::tensor({256.0, 1.0, 1.0, -256.0}, at::kFloat).to(dtype);
    float expected = 0;
    for (int64_t rank = 0; rank < 4; ++rank) {
      expected += y_4[rank].item<float>();
    }
    on_ranks(problem, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
      const Side side(problem, mesh, groups);
      const at::Tensor rows_rE = at::ones({side.plan->encoded_rows, 1}, dtype).requires_grad_();
      const at::Tensor out_iE = sp::exchange_rows(rows_rE, side.exchange);
      (out_iE * y_4[mesh.sp_rank()]).sum().backward();
      const auto lock = test::assertion_lock();
      REQUIRE(rows_rE.grad().scalar_type() == dtype);
      if (mesh.sp_rank() == 0) {
        REQUIRE(rows_rE.grad().item<float>() == expected);
      }
    });
  }
}

TEST_CASE("rows put among a rank's tokens give the gradients of one process") {
  const Problem problem = shared_problem(3);
  at::manual_seed(2);
  const at::Tensor whole_RE =
      at::randn({problem.total_rows(), kWidth}, at::kDouble).requires_grad_();
  const int64_t tokens = 14;
  const at::Tensor text_sE = at::randn({3, tokens, kWidth}, at::kDouble);
  const auto loss_of = [](const at::Tensor& hidden_sE) { return hidden_sE.pow(3).sin().sum(); };
  for (int64_t rank = 0; rank < 3; ++rank) {
    std::vector<int64_t> places;
    for (const sp::ImageRow& row : problem.rows) {
      if (row.rank == rank) {
        places.push_back(row.token);
      }
    }
    loss_of(text_sE[rank].index_copy(
                0, at::tensor(places, at::kLong),
                whole_RE.index_select(0, at::tensor(problem.whole_rows(rank), at::kLong))))
        .backward();
  }
  on_ranks(problem, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    const Side side(problem, mesh, groups);
    const at::Tensor rows_rE = side.encoded(whole_RE.detach(), problem);
    loss_of(text_sE[mesh.sp_rank()].index_copy(0, side.exchange->place_i(),
                                               sp::exchange_rows(rows_rE, side.exchange)))
        .backward();
    const auto lock = test::assertion_lock();
    REQUIRE(test::max_abs_diff(rows_rE.grad(), side.encoded(whole_RE.grad(), problem).detach()) <
            1e-12);
  });
}

TEST_CASE("rows that do not fit the plan, and another group's plan, are refused before sending") {
  const Problem problem = shared_problem(2);
  on_ranks(problem, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    const Side side(problem, mesh, groups);
    const auto lock = test::assertion_lock();
    CHECK_THROWS_WITH(
        sp::exchange_rows(at::zeros({side.plan->encoded_rows + 1, 2}), side.exchange),
        Catch::Contains("the plan has " + std::to_string(side.plan->encoded_rows) + " rows"));
    auto other = std::make_shared<const sp::ImagePlan>(sp::plan_images({}, {}, 3, 0));
    CHECK_THROWS_WITH(sp::RowExchange(other, side.comm, at::kCPU),
                      Catch::Contains("a plan of rank 0 of 3"));
    CHECK(side.comm->sent_bytes().empty());
  });
}
