// Which kernels compute a run's products on the CPU (model.products): measured once for a
// processor, kept in a file of the user, and the same on every rank.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "engine/device/product_plan.h"
#include "engine/runner/product_measurement.h"
#include "rl/config/config.h"

namespace ringside::rl {

struct ProductChoice {
  engine::ProductPlan plan;
  std::string reason;  // half a sentence: "measured", "model.products is libtorch", ...
};

// What measurements are kept for: processor, its instructions for matrices, versions and the
// environment variables that restrict instructions. Another text means that a file is foreign.
std::string measured_machine();

// $XDG_CACHE_HOME/ringside or ~/.cache/ringside; empty where neither variable is set.
std::filesystem::path product_cache_directory();

// The plan in `directory` for this machine. Where there is none, or one that is damaged or of
// another machine, measures and keeps the result; the first of several processes decides for all.
// A directory that is empty or cannot be written is no error: the measurement is not kept.
// Blocks: as engine::measure_products() where it measures.
ProductChoice measured_products(
    const std::filesystem::path& directory,
    const std::function<engine::ProductMeasurement()>& measure = engine::measure_products);

// The plan of model.products. `auto` measures for float32 and bfloat16 on the CPU. It means
// libtorch for other dtypes and devices, and with sp.virtual_ranks, whose bits depend on no
// measurement. Throws: std::invalid_argument for a text that is no plan.
ProductChoice choose_products(const Config& config, bool on_cpu,
                              const std::filesystem::path& directory = product_cache_directory());

// The choice of a run in run_dir: what RUN_DIR/products.txt says if model.products is auto and an
// earlier start wrote it, else choose_products(). Writes the file. A plan other than that of the
// file is in the reason, because the run's later figures have other bits than without the change.
// Throws: as choose_products(); std::runtime_error when the file cannot be written.
ProductChoice choose_products_of_run(const Config& config, bool on_cpu,
                                     const std::filesystem::path& run_dir);

// model.products of a configuration whose choice was made: the plan itself; else that of
// model.products, and for auto the default.
// Throws: std::invalid_argument for a text that is no plan.
engine::ProductPlan products_of(const Config& config);

}  // namespace ringside::rl
