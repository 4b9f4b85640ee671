#include "rl/worker/trainer_address.h"

#include <stdexcept>
#include <thread>

#include "rl/report/log.h"

namespace ringside::rl {
namespace {

constexpr std::chrono::milliseconds kPollInterval{100};

}  // namespace

bool names_port(const std::string& address) {
  return !address.empty() && !address.ends_with(":0") && !address.ends_with(":*");
}

std::string why_no_trainer(const std::filesystem::path& endpoint_file,
                           const std::optional<EndpointAddresses>& found) {
  const std::filesystem::path run_dir = endpoint_file.parent_path().parent_path();
  if (found) {
    return "run " + found->run_id + " in " + run_dir.string() +
           " has ended; waiting for a trainer to start it again";
  }
  if (!std::filesystem::exists(run_dir)) {
    return "the run directory " + run_dir.string() +
           " does not exist; waiting for a trainer to make it";
  }
  return "no trainer has started in " + run_dir.string() + "; waiting for it to write " +
         endpoint_file.string();
}

std::optional<EndpointAddresses> current_trainer(const std::filesystem::path& endpoint_file) {
  try {
    return read_endpoint_file(endpoint_file);
  } catch (const std::runtime_error&) {
    return std::nullopt;
  }
}

EndpointAddresses wait_for_trainer(const WorkerSettings& settings) {
  const std::filesystem::path run_dir = settings.endpoint_file.parent_path().parent_path();
  WaitNotice notice;
  while (!settings.should_stop()) {
    if (std::filesystem::exists(run_dir) && !std::filesystem::is_directory(run_dir)) {
      throw std::runtime_error("run directory " + run_dir.string() + " is not a directory");
    }
    std::optional<EndpointAddresses> found;
    std::string why;
    try {
      found = read_endpoint_file(settings.endpoint_file);
      why = why_no_trainer(settings.endpoint_file, found);
    } catch (const std::runtime_error& error) {  // the next trainer writes it anew
      why = error.what() + std::string("; waiting for a trainer to write the file again");
    }
    if (found && !found->ended) {
      return *found;
    }
    if (notice.is_due(settings.now())) {
      log::warn(why);
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  throw std::runtime_error("stopped before the trainer wrote " + settings.endpoint_file.string());
}

}  // namespace ringside::rl
