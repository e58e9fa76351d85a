#include "check/check.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>

#include "check/bodies.h"

namespace ringfold::check {
namespace {

struct Entry {
  Line line;
  Body body;
};

constexpr Entry kEntries[] = {
    {{"C1", "verify changes no byte of any state or conv window"}, verify_only_reads},
    {{"C2", "recording the ring, or snapshots, does not change one bit of the outputs"}, recording_is_silent},
    {{"C3", "ring rows hold v and k bitwise, and the gates that the recurrence used"}, ring_holds_inputs},
    {{"C4", "fold(n), snapshots and tracked slots are bitwise the state after n tokens of decoding"}, fold_is_decode},
    {{"C5", "all layers in one call equal layer by layer, in any order, any subset"}, layers_are_free},
    {{"C6", "slots, ring rows and guard bytes that a call does not own stay unchanged"}, others_untouched},
    {{"C7", "a row's bits do not depend on batch, place, layout, strides or threads"}, batch_invariance},
    {{"C8", "any cut into windows with any rejected tails equals one-token decoding"}, speculation_invariance},
    {{"C9", "every result equals the plain reference on the CPU bitwise"}, equals_reference},
    {{"C10", "fast outputs stay within their bound, ring and state are those of exact"}, fast_is_bounded},
    {{"C11", "null rows: nothing is read or written, outputs are zeros"}, null_rows},
    {{"C12", "bad slots, counts, windows and arguments are refused, and change nothing"}, refused_rows},
    {{"C13", "a slot acquired again refuses the old window and shows no old data"}, generations},
    {{"C14", "NaN and Inf in unused or rejected memory never reach a live result"}, nan_stays_out},
    {{"C15", "no finite gate input gives NaN or overflow"}, extreme_gates},
    {{"C16", "a second verify without a commit replaces the first window whole"}, second_window_replaces},
    {{"C17", "no call allocates or synchronises, a CUDA graph can be replayed with other rows"}, graph_replay},
    {{"C18", "state, conv window, snapshots and cursors are committed together or not at all"}, commit_is_atomic},
    {{"C19", "64-bit offsets: pools past 2^31 elements, more than 65,535 rows"}, large_offsets},
    {{"C20", "a layer in one call equals conv, mixer and norm one after the other, bitwise"}, layer_is_chain},
    {{"ACC", "outputs and states lie within the derived fp32 bound of the fp64 oracle"}, accuracy},
};

constexpr size_t kLines = std::size(kEntries);

const Entry* find(std::string_view id) {
  for (const Entry& entry : kEntries) {
    if (id == entry.line.id) return &entry;
  }
  return nullptr;
}

bool known(std::string_view impl) {
  const std::vector<std::string_view> names = all_implementations();
  return std::find(names.begin(), names.end(), impl) != names.end();
}

void add(const Outcome& outcome, const Options& options, Cell* cell) {
  cell->checks += outcome.checks;
  if (outcome.verdict == Verdict::pass) {
    ++cell->passed;
  } else if (outcome.verdict == Verdict::skip) {
    ++cell->skipped;
    if (std::find(cell->reasons.begin(), cell->reasons.end(), outcome.message) == cell->reasons.end()) {
      cell->reasons.push_back(outcome.message);
    }
  } else {
    ++cell->failed;
    if (cell->failures.size() < options.max_failures) cell->failures.push_back(outcome.message);
  }
}

Cell run_cell(const std::string& impl, const std::string& line, const Options& options, int64_t total, int64_t* done) {
  Cell cell;
  cell.impl = impl;
  cell.line = line;
  const auto start = std::chrono::steady_clock::now();
  std::vector<Config> grid = configs(line, options.level, device_of(impl));
  if (grid.empty()) grid.emplace_back();  // an unknown line: run_line says so
  for (const Config& config : grid) {
    add(run_line(line, impl, config), options, &cell);
    cell.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++*done;
    if (options.progress) options.progress(*done, total, cell);
  }
  return cell;
}

}  // namespace

std::span<const Line> lines() {
  static const auto table = [] {
    std::array<Line, kLines> all{};
    for (size_t i = 0; i < kLines; ++i) all[i] = kEntries[i].line;
    return all;
  }();
  return table;
}

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass: return "pass";
    case Verdict::fail: return "fail";
    case Verdict::skip: return "skip";
  }
  return "?";
}

Outcome run_line(std::string_view line, std::string_view impl, const Config& config) {
  const Entry* entry = find(line);
  if (entry == nullptr) return {Verdict::fail, 0, "unknown contract line " + std::string(line)};
  if (!known(impl)) return {Verdict::fail, 0, "unknown implementation " + std::string(impl)};
  Judge judge(device_of(impl));
  const std::string where = " [" + std::string(line) + " " + std::string(impl) + " " + config.name() + "]";
  try {
    entry->body(judge, config, impl);
  } catch (const Failure& failure) {
    return {Verdict::fail, judge.checks(), failure.message + where};
  } catch (const Skip& skip) {
    return {Verdict::skip, judge.checks(), skip.reason};
  } catch (const std::exception& error) {
    return {Verdict::fail, judge.checks(), std::string("exception: ") + error.what() + where};
  }
  if (judge.checks() == 0) return {Verdict::fail, 0, "nothing was compared" + where};
  return {Verdict::pass, judge.checks(), ""};
}

uint64_t fingerprint(std::string_view impl, const Config& config) {
  Judge judge(device_of(impl));
  try {
    return fingerprint_of(judge, config, impl);
  } catch (const Failure&) {
    return 0;
  } catch (const Skip&) {
    return 0;
  }
}

Report run(const Options& options) {
  Report report;
  report.impls = options.impls;
  if (report.impls.empty()) {
    for (std::string_view name : all_implementations()) report.impls.emplace_back(name);
  }
  std::vector<std::string> wanted = options.lines;
  if (wanted.empty()) {
    for (const Line& line : lines()) wanted.emplace_back(line.id);
  }
  int64_t total = 0, done = 0;
  for (const std::string& line : wanted) {
    for (const std::string& impl : report.impls) {
      total += static_cast<int64_t>(std::max<size_t>(configs(line, options.level, device_of(impl)).size(), 1));
    }
  }
  const int saved = num_threads();
  if (options.threads > 0) set_num_threads(options.threads);
  for (const std::string& line : wanted) {
    for (const std::string& impl : report.impls) {
      report.cells.push_back(run_cell(impl, line, options, total, &done));
      report.passed += report.cells.back().passed;
      report.failed += report.cells.back().failed;
      report.skipped += report.cells.back().skipped;
    }
  }
  set_num_threads(saved);
  return report;
}

}  // namespace ringfold::check
