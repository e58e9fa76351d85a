#include "bench/bench.h"

#include <algorithm>
#include <chrono>

#include "bench/cases.h"

namespace ringfold::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Median microseconds of three alternatives, timed in turns so that all see the same machine.
struct Medians {
  double call = 0, bytes = 0, fma = 0;
};

double median(std::vector<double>& v) {
  std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
  return v[v.size() / 2];
}

constexpr size_t kLeastSamples = 15;
// Enough bytes of state that a call's slots have left every cache before they come round again.
constexpr int64_t kRotate = 256 << 20;

Status measure(Rig& rig, std::string_view impl, const Plan& plan, const Options& options, Medians* medians) {
  std::vector<double> call, bytes, fma;
  const bool writes = plan.bytes_written >= plan.bytes_read / 2;
  const auto start = Clock::now();
  while (call.size() < kLeastSamples || seconds_since(start) < options.seconds_per_row) {
    auto at = Clock::now();
    if (Status s = rig.call(impl); !s.ok()) return s;
    call.push_back(seconds_since(at) * 1e6);
    const std::vector<Piece> pieces = rig.pieces();
    at = Clock::now();
    move_bytes(pieces, writes, options.threads);
    bytes.push_back(seconds_since(at) * 1e6);
    at = Clock::now();
    multiply_add(plan.fmas, options.threads);
    fma.push_back(seconds_since(at) * 1e6);
  }
  *medians = {median(call), median(bytes), median(fma)};
  return {};
}

bool wanted(const Options& options, const std::string& key) {
  return options.filters.empty() || std::any_of(options.filters.begin(), options.filters.end(),
                                                [&](const std::string& f) { return key.find(f) != std::string::npos; });
}

}  // namespace

Status run(const Options& options, std::vector<Row>* rows) {
  const int before = num_threads();
  std::vector<Case> cases;
  for (const Case& c : standard_cases()) {
    if (wanted(options, c.key)) cases.push_back(c);
  }
  if (cases.empty()) return {Code::not_found, "filter: no benchmark's key contains it (list them)"};
  if (options.threads > 0) set_num_threads(options.threads);
  Status status;
  for (const Case& c : cases) {
    Row row;
    row.key = c.key;
    row.desc = c.desc;
    Explanation explanation;
    if (status = explain(c.desc, options.impl, &explanation); !status.ok()) break;
    row.impl = explanation.plan.impl;
    row.threads = explanation.plan.threads;
    row.bytes = static_cast<double>(explanation.plan.bytes_read + explanation.plan.bytes_written);
    if (!options.list_only) {
      if (status = check_case(c.desc, row.impl); !status.ok()) break;
      Rig rig(c.desc, kRotate);
      Medians m;
      if (status = measure(rig, row.impl, explanation.plan, options, &m); !status.ok()) break;
      row.us = m.call;
      row.bytes_twin_us = m.bytes;
      row.fma_twin_us = m.fma;
      row.ratio = std::max(m.bytes, m.fma) / m.call;
    }
    rows->push_back(row);
    if (options.progress) options.progress(static_cast<int>(rows->size()), static_cast<int>(cases.size()), row);
  }
  if (options.threads > 0) set_num_threads(before);
  return status;
}

}  // namespace ringfold::bench
