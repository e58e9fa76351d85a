// ringfold bench: rows beside their twins.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "cli/commands.h"
#include "cli/progress.h"

namespace ringfold::cli {
namespace {

constexpr const char* kFooter =
    R"(Every row is checked against the reference, then timed beside two twins in the same run: one
moves the same bytes, one does the same number of multiply-adds from registers.
ratio = slower twin / ringfold; 1 means that nothing is left to gain.
On CUDA there is the first twin alone, in its fastest launch shape; times are those of graph replay.
A whole layer in one call (fused_..) is timed in turns with the chain of its three calls, each by whom dispatch picks.
A row that nothing serves is listed with the reason.
Examples:
  ringfold bench                    the standard set
  ringfold bench --list             keys of all rows, nothing timed
  ringfold bench decode b16         rows whose key contains decode or b16
  ringfold bench verify --impl reference --threads 1 --json
  ringfold bench --device cuda --filter fold
Exit codes: 0 done, 1 a row's results differ from the reference.)";

struct BenchCommand {
  bench::Options options;
  std::string device = "cpu";
  bool json = false;
};

nlohmann::json to_json(const bench::Row& row) {
  nlohmann::json json = {{"key", row.key},
                         {"impl", row.impl},
                         {"desc", to_string(row.desc)},
                         {"threads", row.threads},
                         {"us", row.us},
                         {"min_us", row.min_us},
                         {"bytes", row.bytes},
                         {"bytes_twin_us", row.bytes_twin_us},
                         {"fma_twin_us", row.fma_twin_us},
                         {"ratio", row.ratio}};
  if (row.chain_us > 0) json["chain_us"] = row.chain_us, json["chain_impl"] = row.chain_impl;
  if (!row.twin.empty()) json["twin"] = row.twin;
  if (!row.skipped.empty()) json["skipped"] = row.skipped;
  if (!row.failed.empty()) json["failed"] = row.failed;
  return json;
}

void print_header() {
  fmt::print("{:<44} {:<12} {:>3} {:>11} {:>10} {:>8} {:>11} {:>11} {:>6}\n", "row", "impl", "thr", "us", "MB", "GB/s",
             "bytes twin", "fma twin", "ratio");
}

void print_row(const bench::Row& row) {
  if (!row.skipped.empty() || !row.failed.empty()) {
    fmt::print("{:<44} {}\n", row.key, row.failed.empty() ? "skipped: " + row.skipped : "FAILED: " + row.failed);
    return;
  }
  fmt::print("{:<44} {:<12} {:>3} {:>11.1f} {:>10.2f} {:>8.2f} {:>11.1f} {:>11.1f} {:>6.2f}", row.key, row.impl,
             row.threads, row.us, row.bytes / 1e6, row.us > 0 ? row.bytes / row.us / 1e3 : 0.0, row.bytes_twin_us,
             row.fma_twin_us, row.ratio);
  if (row.chain_us > 0) {
    fmt::print("   chain {:.1f} us ({}), {:.2f} times", row.chain_us, row.chain_impl, row.chain_us / row.us);
  }
  fmt::print("\n");
}

void print(const std::vector<bench::Row>& rows, const BenchCommand& command) {
  if (command.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const bench::Row& row : rows) list.push_back(to_json(row));
    fmt::print("{}\n", nlohmann::json({{"version", version()}, {"rows", list}}).dump());
    return;
  }
  if (!command.options.list_only) print_header();
  for (const bench::Row& row : rows) {
    if (command.options.list_only) {
      fmt::print("{}\n", row.key);
    } else {
      print_row(row);
    }
  }
}

int run_command(BenchCommand& command) {
  command.options.device = *parse<Device>(command.device);
  std::vector<bench::Row> rows;
  Status status;
  {
    Progress progress;
    command.options.progress = [&](int done, int total, const bench::Row& last) {
      progress.update(done, total, last.key);
    };
    status = bench::run(command.options, &rows);
  }
  // What was measured before an error is not lost.
  if (status.ok() || !rows.empty()) print(rows, command);
  require(status, fmt::format("bench {}", fmt::join(command.options.filters, " ")));
  const auto failed = std::count_if(rows.begin(), rows.end(), [](const bench::Row& r) { return !r.failed.empty(); });
  if (failed > 0) fmt::print(stderr, "ringfold: {} rows differ from the reference\n", failed);
  return failed > 0 ? kExitFailed : kExitOk;
}

}  // namespace

void add_bench(CLI::App& app, int* exit_code) {
  auto command = std::make_shared<BenchCommand>();
  CLI::App* sub = app.add_subcommand("bench", "Time rows beside twins that move the same bytes and do the same fmas.");
  sub->footer(kFooter);
  sub->add_option("filters,--filter", command->options.filters, "run rows whose key contains one of these");
  sub->add_option("--device", command->device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  sub->add_option("--impl", command->options.impl, "force an implementation");
  sub->add_option("--threads", command->options.threads, "CPU threads; 0: all cores")->check(CLI::Range(0, 1024));
  sub->add_option("--seconds", command->options.seconds_per_row, "time per row")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  sub->add_flag("--list", command->options.list_only, "print the keys, time nothing");
  sub->add_flag("--json", command->json, "print the rows as one JSON line");
  sub->callback([command, exit_code] { *exit_code = run_command(*command); });
}

}  // namespace ringfold::cli
