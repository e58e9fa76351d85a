// ringfold check: the contract, on every implementation of this machine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "check/check.h"
#include "check/device.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "ringfold/registry.h"

namespace ringfold::cli {
namespace {

constexpr const char* kFooter =
    R"(Each line of the contract (docs/contract.md) runs over a grid of gates, shapes, dtypes and
layouts. A cell says ok with the number of configurations, FAIL with how many failed, or skip; reasons and first
failures follow the table.
Examples:
  ringfold check                          all implementations, all lines, the whole grid
  ringfold check --quick                  a small grid, in seconds
  ringfold check --lines C4,C8 --impl reference
  ringfold check --device cuda            those of the GPU alone
  ringfold check --quick --json           for a program
Exit codes: 0 all lines hold, 1 a line failed.)";

struct CheckCommand {
  std::string impl = "all", device = "all";
  std::vector<std::string> lines;
  bool quick = false, json = false;
  int threads = 0;
};

/// What to check. Unknown names, and a device that is not there, are refused before anything runs.
std::vector<std::string> checked_impls(const CheckCommand& command) {
  std::vector<std::string> known;
  for (const check::Line& line : check::lines()) known.emplace_back(line.id);
  for (const std::string& line : command.lines) {
    if (std::find(known.begin(), known.end(), line) != known.end()) continue;
    throw CommandError(fmt::format("--lines: expected some of {}, found '{}'", fmt::join(known, ","), line));
  }
  std::vector<std::string_view> impls = check::all_implementations();
  if (command.device != "all") {
    const Device device = *parse<Device>(command.device);
    require(check::usable(device), "--device " + command.device);
    impls = implementations(device);
  }
  if (command.impl == "all") return {impls.begin(), impls.end()};
  if (std::find(impls.begin(), impls.end(), command.impl) == impls.end()) {
    throw CommandError(
        fmt::format("--impl: expected all or one of {}, found '{}'", fmt::join(impls, ", "), command.impl));
  }
  return {command.impl};
}

nlohmann::json to_json(const check::Report& report) {
  nlohmann::json cells = nlohmann::json::array();
  for (const check::Cell& cell : report.cells) {
    cells.push_back({{"impl", cell.impl},
                     {"line", cell.line},
                     {"passed", cell.passed},
                     {"failed", cell.failed},
                     {"skipped", cell.skipped},
                     {"checks", cell.checks},
                     {"seconds", cell.seconds},
                     {"failures", cell.failures},
                     {"reasons", cell.reasons}});
  }
  return {{"ok", report.ok()},         {"passed", report.passed}, {"failed", report.failed},
          {"skipped", report.skipped}, {"impls", report.impls},   {"cells", cells}};
}

std::string verdict_of(const check::Cell& cell) {
  if (cell.failed > 0) return fmt::format("FAIL {}", cell.failed);
  if (cell.passed == 0) return "skip";
  return cell.skipped > 0 ? fmt::format("ok {} +{}skip", cell.passed, cell.skipped) : fmt::format("ok {}", cell.passed);
}

void print_table(const check::Report& report) {
  std::map<std::pair<std::string, std::string>, const check::Cell*> cells;
  std::vector<std::string> lines;
  for (const check::Cell& cell : report.cells) {
    if (std::find(lines.begin(), lines.end(), cell.line) == lines.end()) lines.push_back(cell.line);
    cells[{cell.impl, cell.line}] = &cell;
  }
  size_t width = 10;
  for (const std::string& impl : report.impls) width = std::max(width, impl.size() + 2);
  for (const auto& [key, cell] : cells) width = std::max(width, verdict_of(*cell).size() + 2);
  fmt::print("{:<6}", "line");
  for (const std::string& impl : report.impls) fmt::print("{:<{}}", impl, width);
  fmt::print("\n");
  for (const std::string& line : lines) {
    fmt::print("{:<6}", line);
    for (const std::string& impl : report.impls) {
      const auto found = cells.find({impl, line});
      fmt::print("{:<{}}", found == cells.end() ? "-" : verdict_of(*found->second), width);
    }
    const auto info = std::find_if(check::lines().begin(), check::lines().end(),
                                   [&](const check::Line& known) { return line == known.id; });
    fmt::print("{}\n", info == check::lines().end() ? "" : info->what);
  }
}

/// Reasons of skips and first failures, each once.
void print_notes(const check::Report& report) {
  std::map<std::string, std::vector<std::string>> skips;
  for (const check::Cell& cell : report.cells) {
    for (const std::string& reason : cell.reasons) {
      std::vector<std::string>& where = skips[reason];
      if (where.empty() || where.back() != cell.line) where.push_back(cell.line);
    }
  }
  for (const auto& [reason, lines] : skips) fmt::print("skip {}: {}\n", fmt::join(lines, ","), reason);
  for (const check::Cell& cell : report.cells) {
    for (const std::string& failure : cell.failures) fmt::print("FAIL {} {}: {}\n", cell.line, cell.impl, failure);
  }
}

int run_command(const CheckCommand& command) {
  check::Options options;
  options.impls = checked_impls(command);
  options.lines = command.lines;
  options.level = command.quick ? check::Level::quick : check::Level::full;
  options.threads = command.threads;
  check::Report report;
  {
    Progress progress;
    options.progress = [&](int64_t done, int64_t total, const check::Cell& cell) {
      progress.update(done, total, cell.line + " " + cell.impl);
    };
    report = check::run(options);
  }
  if (command.json) {
    fmt::print("{}\n", to_json(report).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    print_table(report);
    print_notes(report);
    fmt::print("{}: {} configurations passed, {} failed, {} skipped\n", report.ok() ? "ok" : "FAIL", report.passed,
               report.failed, report.skipped);
  }
  return report.ok() ? kExitOk : kExitFailed;
}

}  // namespace

void add_check(CLI::App& app, int* exit_code) {
  auto command = std::make_shared<CheckCommand>();
  CLI::App* sub = app.add_subcommand("check", "Check the contract on this machine: implementation x line.");
  sub->footer(kFooter);
  sub->add_option("--impl", command->impl, "an implementation, or all")->capture_default_str();
  sub->add_option("--device", command->device, "implementations of cpu, of cuda, or of all that is there")
      ->check(CLI::IsMember({"cpu", "cuda", "all"}))
      ->capture_default_str();
  sub->add_option("--lines", command->lines, "lines of the contract, separated by commas; all if absent")
      ->delimiter(',');
  sub->add_flag("--quick", command->quick, "a small grid");
  sub->add_option("--threads", command->threads, "CPU threads of the calls under test; 0: all cores")
      ->check(CLI::Range(0, 1024));
  sub->add_flag("--json", command->json, "print the report as one JSON line");
  sub->callback([command, exit_code] { *exit_code = run_command(*command); });
}

}  // namespace ringfold::cli
