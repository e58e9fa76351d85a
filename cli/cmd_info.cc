// ringfold info: what this build and this machine have.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "cli/commands.h"
#include "cli/cuda_info.h"
#include "ringfold/registry.h"

namespace ringfold::cli {
namespace {

constexpr const char* kFooter = R"(Examples:
  ringfold info
  ringfold info --json)";

/// The value of the first line of the kernel's CPU description that starts with one of `keys`; "" where there is none.
std::string cpu_line(std::initializer_list<const char*> keys) {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    for (const char* key : keys) {
      const size_t colon = line.find(':');
      if (line.rfind(key, 0) == 0 && colon != std::string::npos && colon + 2 <= line.size())
        return line.substr(colon + 2);
    }
  }
  return "";
}

/// The SIMD extensions among the flags that the kernel reports.
std::vector<std::string> instruction_sets() {
  static const std::set<std::string> known = {
      "ssse3",    "sse4_1",      "sse4_2",      "avx",      "f16c",  "fma", "avx2", "avx512f", "avx512bw",
      "avx512vl", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve", "sve2", "bf16"};
  std::vector<std::string> found;
  std::istringstream flags(cpu_line({"flags", "Features"}));
  for (std::string flag; flags >> flag;) {
    if (known.contains(flag)) found.push_back(flag);
  }
  return found;
}

void run_command(bool json) {
  std::vector<std::string_view> impls = implementations(Device::cuda);
  for (std::string_view name : implementations(Device::cpu)) impls.push_back(name);
  const CudaInfo cuda = cuda_info();
  const std::string cpu = cpu_line({"model name", "CPU implementer"});
  const unsigned cores = std::thread::hardware_concurrency();
  const std::vector<std::string> sets = instruction_sets();
  if (json) {
    const nlohmann::json info = {
        {"version", version()},
        {"implementations", impls},
        {"cuda",
         {{"built_in", cuda.built_in},
          {"toolkit", cuda.toolkit},
          {"architectures", cuda.architectures},
          {"implementations", implementations(Device::cuda)},
          {"devices", cuda.devices},
          {"reason", cuda.reason}}},
        {"cpu", {{"name", cpu}, {"cores", cores}, {"instruction_sets", sets}}},
        {"threads", num_threads()},
        {"limits",
         {{"head_dim", kMaxHeadDim}, {"window", kMaxWindow}, {"conv_width", {kMinConvWidth, kMaxConvWidth}}}}};
    fmt::print("{}\n", info.dump());
    return;
  }
  fmt::print("ringfold {}\n", version());
  fmt::print("implementations   {} (best first)\n", fmt::join(impls, ", "));
  if (cuda.built_in) {
    fmt::print("CUDA              toolkit {}, built for {}\n", cuda.toolkit, cuda.architectures);
    for (const std::string& device : cuda.devices) fmt::print("CUDA device       {}\n", device);
    if (!cuda.reason.empty()) fmt::print("CUDA device       none: {}\n", cuda.reason);
  } else {
    fmt::print("CUDA              not in this build\n");
  }
  fmt::print("CPU               {}, {} cores\n", cpu.empty() ? "unknown" : cpu, cores);
  fmt::print("instruction sets  {}\n", fmt::join(sets, " "));
  fmt::print("threads           {}\n", num_threads());
  fmt::print("limits            K, V 1..{}; window 1..{}; conv width {}..{}\n", kMaxHeadDim, kMaxWindow, kMinConvWidth,
             kMaxConvWidth);
}

}  // namespace

void add_info(CLI::App& app, int* exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* sub = app.add_subcommand("info", "Version, implementations, devices, CPU.");
  sub->footer(kFooter);
  sub->add_flag("--json", *json, "print one JSON line");
  sub->callback([json, exit_code] {
    run_command(*json);
    *exit_code = kExitOk;
  });
}

}  // namespace ringfold::cli
