// ringfold run: executes a case file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "check/device.h"
#include "cli/case_runner.h"
#include "cli/commands.h"
#include "io/safetensors.h"
#include "ringfold/registry.h"

namespace ringfold::cli {
namespace {

constexpr const char* kFooter =
    R"(A case file is a safetensors file: tensors, and the steps as JSON under the metadata key 'ringfold_case'
(docs/case-files.md). Rows that the contract refuses are codes in the output's 'i.status', not errors.
Examples:
  ringfold run case.safetensors -o out.safetensors
  ringfold run case.safetensors -o out.safetensors --impl reference --dump-ring
  ringfold run case.safetensors -o out.safetensors --device cuda     the pool and all tensors on the GPU
  ringfold run case.safetensors -o out.safetensors --threads 1 --json)";

struct RunCommand {
  std::string input, output, device = "cpu", impl;
  bool dump_ring = false, json = false;
  int threads = 0;
};

void write_outputs(const std::string& path, const std::vector<NamedOutput>& outputs) {
  std::vector<io::NamedTensor> tensors;
  for (const NamedOutput& output : outputs) tensors.push_back({output.name, output.tensor.view()});
  require(io::write_safetensors(path, tensors, {{"ringfold", std::string(version())}}), "");
}

/// Per step: its operation, and how its rows ended.
void print_summary(const RunCommand& command, const Case& input, const std::vector<NamedOutput>& outputs) {
  nlohmann::json steps = nlohmann::json::array();
  for (size_t i = 0; i < input.steps.size(); ++i) {
    const std::string name = fmt::format("{}.status", i);
    std::vector<int32_t> status;
    for (const NamedOutput& output : outputs) {
      if (output.name != name) continue;
      for (int64_t row = 0; row < output.tensor.shape()[0]; ++row) status.push_back(output.tensor.value(row));
    }
    steps.push_back({{"op", to_string(input.steps[i].op)}, {"status", status}});
    if (command.json) continue;
    std::vector<std::string> refused;
    for (size_t row = 0; row < status.size(); ++row) {
      if (status[row] <= static_cast<int32_t>(RowStatus::null_row)) continue;
      refused.push_back(fmt::format("row {} {}", row, to_string(static_cast<RowStatus>(status[row]))));
    }
    fmt::print("{:>4} {:<15} {} rows{}{}\n", i, to_string(input.steps[i].op), status.size(),
               refused.empty() ? "" : ", refused: ", fmt::join(refused, ", "));
  }
  if (command.json) {
    fmt::print("{}\n", nlohmann::json({{"output", command.output}, {"steps", steps}}).dump());
  } else {
    fmt::print("written: {}\n", command.output);
  }
}

void run_command(const RunCommand& command) {
  if (command.threads > 0) set_num_threads(command.threads);
  RunOptions options;
  options.device = *parse<Device>(command.device);
  require(check::usable(options.device), "--device " + command.device);
  options.impl = command.impl;
  options.dump_ring = command.dump_ring;
  std::error_code error;
  if (std::filesystem::equivalent(command.input, command.output, error)) {
    throw CommandError(fmt::format("{}: expected an output other than the case file", command.output));
  }
  const Case input = read_case(command.input);
  const std::vector<NamedOutput> outputs = run_case(input, options, command.input);
  write_outputs(command.output, outputs);
  for (const std::string& name : input.unused) {
    fmt::print(stderr, "ringfold: {}: note: no step reads the tensor '{}'\n", command.input, name);
  }
  print_summary(command, input, outputs);
}

}  // namespace

void add_run(CLI::App& app, int* exit_code) {
  auto command = std::make_shared<RunCommand>();
  CLI::App* sub = app.add_subcommand("run", "Execute a case file and write its outputs.");
  sub->footer(kFooter);
  sub->add_option("case", command->input, "the case file (.safetensors)")->required();
  sub->add_option("-o,--output", command->output, "where the outputs go (.safetensors)")->required();
  sub->add_option("--device", command->device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  sub->add_option("--impl", command->impl, "force an implementation (see ringfold info)");
  sub->add_flag("--dump-ring", command->dump_ring, "also write ring.k, ring.v, ring.g, ring.beta");
  sub->add_option("--threads", command->threads, "CPU threads; 0: all cores. No bit depends on it")
      ->check(CLI::Range(0, 1024));
  sub->add_flag("--json", command->json, "print the statuses of all steps as one JSON line");
  sub->callback([command, exit_code] {
    run_command(*command);
    *exit_code = kExitOk;
  });
}

}  // namespace ringfold::cli
