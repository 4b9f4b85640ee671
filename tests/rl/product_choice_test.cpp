// The choice of kernels for products: kept for a processor, by whom it is decided, and what a run
// remembers of it. Guards: a file that is damaged or of another machine, a choice that differs
// between processes or starts, a change that nobody hears of.
#include "rl/setup/product_choice.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "rl/setup/model_setup.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

engine::ProductMeasurement measured_as(engine::ProductKernel kernel) {
  engine::ProductMeasurement measured;
  measured.plan.bf16 = kernel;
  measured.plan.bf16.least_rows = 64;
  measured.rates.push_back({"bf16 x W^T", 100.0, 90.0, 180.0});
  return measured;
}

// Counts its calls.
struct Measuring {
  engine::ProductKernel finds;
  int calls = 0;
  std::function<engine::ProductMeasurement()> function() {
    return [this] {
      ++calls;
      return measured_as(finds);
    };
  }
};

std::filesystem::path only_file(const std::filesystem::path& directory) {
  const std::filesystem::directory_iterator files(directory);
  REQUIRE(std::distance(begin(files), end(files)) == 1);
  return std::filesystem::directory_iterator(directory)->path();
}

std::string text_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

TEST_CASE("a plan is read back from its text, and other texts are none") {
  engine::ProductPlan plan = measured_as(engine::ProductKernel::kWidePanels).plan;
  plan.bf16.gradient = engine::ProductKernel::kPanels;
  plan.bf16_attention = true;
  CHECK(engine::text_of(plan) ==
        "fp32=libtorch/libtorch/libtorch@1;bf16=wide/wide/panels@64;attention=bf16");
  CHECK(engine::parse_product_plan(engine::text_of(plan)) == plan);
  for (const char* text : {"", "auto", "fp32=libtorch/libtorch/libtorch@1",
                           "fp32=a/libtorch/libtorch@1;bf16=wide/wide/wide@1;attention=bf16",
                           "fp32=wide/wide/wide@0;bf16=wide/wide/wide@1;attention=bf16"}) {
    CHECK_FALSE(engine::parse_product_plan(text));
  }
}

TEST_CASE("what is measured is kept, and measured anew if it is damaged or of another machine") {
  const test::TemporaryDirectory directory;
  Measuring first{engine::ProductKernel::kWidePanels};
  CHECK(measured_products(directory.path() / "new", first.function()).plan ==
        measured_as(engine::ProductKernel::kWidePanels).plan);
  Measuring second{engine::ProductKernel::kPanels};
  CHECK(measured_products(directory.path() / "new", second.function()).plan ==
        measured_as(engine::ProductKernel::kWidePanels).plan);
  CHECK((first.calls == 1 && second.calls == 0));

  const std::filesystem::path file = only_file(directory.path() / "new");
  std::string foreign = text_in(file);
  REQUIRE(foreign.find(measured_machine()) != std::string::npos);
  foreign.replace(foreign.find(measured_machine()), 1, "?");
  for (const std::string& text : {std::string("{\"format\": 1"), std::string(), foreign}) {
    write(file, text);
    Measuring again{engine::ProductKernel::kPanels};
    CHECK(measured_products(directory.path() / "new", again.function()).plan ==
          measured_as(engine::ProductKernel::kPanels).plan);
    CHECK(again.calls == 1);
    CHECK(measured_products(directory.path() / "new", again.function()).plan ==
          measured_as(engine::ProductKernel::kPanels).plan);
    CHECK(again.calls == 1);
  }
}

TEST_CASE("of two processes that measure at once, both use what the first has kept") {
  const test::TemporaryDirectory directory;
  const auto slower = [&] {
    Measuring faster{engine::ProductKernel::kWidePanels};
    measured_products(directory.path(), faster.function());
    return measured_as(engine::ProductKernel::kPanels);
  };
  CHECK(measured_products(directory.path(), slower).plan ==
        measured_as(engine::ProductKernel::kWidePanels).plan);
}

TEST_CASE("a directory that cannot be written is no error") {
  Measuring one{engine::ProductKernel::kPanels};
  CHECK(measured_products({}, one.function()).plan == measured_as(one.finds).plan);
  CHECK(measured_products("/proc/none", one.function()).plan == measured_as(one.finds).plan);
  CHECK(one.calls == 2);
}

TEST_CASE("the key forces a choice; virtual ranks and other dtypes measure nothing") {
  const test::TemporaryDirectory directory;
  Config config;
  for (const char* forced : {"libtorch", "packed"}) {
    config.model.products = forced;
    CHECK(choose_products(config, true, directory.path()).plan == products_of(config));
  }
  CHECK(products_of(config).fp32.forward == engine::ProductKernel::kPanels);
  CHECK(compute_context(config, c10::Device(c10::kCPU)).products == products_of(config));
  config.model.products = "auto";
  config.sp.virtual_ranks = 2;
  const ProductChoice fixed = choose_products(config, true, directory.path());
  CHECK(fixed.plan == engine::ProductPlan());
  CHECK_THAT(fixed.reason, Catch::Contains("sp.virtual_ranks"));
  config.sp.virtual_ranks = 0;
  CHECK(choose_products(config, /*on_cpu=*/false, directory.path()).plan == engine::ProductPlan());
  config.model.dtype = DType::kFloat64;
  CHECK(choose_products(config, true, directory.path()).plan == engine::ProductPlan());
  CHECK(std::filesystem::is_empty(directory.path()));
  config.model.products = "fp32=fast";
  CHECK_THROWS_WITH(products_of(config), Catch::Contains("model.products: is 'fp32=fast'"));
}

TEST_CASE("a run keeps its first choice, and says what a forced change changes") {
  const test::TemporaryDirectory run_dir;
  Config config;
  config.model.products = "packed";
  const auto packed = choose_products_of_run(config, true, run_dir.path() / "run").plan;
  config.model.products = "auto";
  const ProductChoice kept = choose_products_of_run(config, true, run_dir.path() / "run");
  CHECK(kept.plan == packed);
  CHECK_THAT(kept.reason, Catch::Contains("products.txt"));
  config.model.products = "libtorch";
  const ProductChoice changed = choose_products_of_run(config, true, run_dir.path() / "run");
  CHECK(changed.plan == engine::ProductPlan());
  CHECK_THAT(changed.reason, Catch::Contains("changed from " + engine::text_of(packed)));
  config.model.products = "auto";
  CHECK(choose_products_of_run(config, true, run_dir.path() / "run").plan == changed.plan);
}

TEST_CASE("a measurement finds a rate for each product, and chooses no kernel that is slower") {
  const engine::ProductMeasurement measured = engine::measure_products();
  REQUIRE(measured.rates.size() == 6);
  for (const engine::ProductRate& rate : measured.rates) {
    CAPTURE(rate.what);
    CHECK(rate.libtorch > 0.0);
  }
  const auto chosen = measured.plan.bf16.forward;
  const engine::ProductRate& forward = measured.rates[3];
  CHECK(forward.what == "bf16 x W^T");
  const double rate = chosen == engine::ProductKernel::kLibTorch ? forward.libtorch
                      : chosen == engine::ProductKernel::kPanels ? forward.panels
                                                                 : forward.wide;
  CHECK(rate >= forward.libtorch);
  CHECK(engine::parse_product_plan(engine::text_of(measured.plan)) == measured.plan);
}

}  // namespace
}  // namespace ringside::rl
