// The contract: every line on every implementation of this machine, CUDA included where there is a device. One test is
// one cell of the table that `ringfold check` prints; the grid of configs runs inside. RINGFOLD_CHECK_LEVEL=quick takes
// the small grid (sanitizer builds do).
#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <ostream>
#include <set>

#include "check/check.h"
#include "check/device.h"
#include "ringfold/ringfold.h"

namespace ringfold::check {
namespace {

Level level() {
  const char* text = std::getenv("RINGFOLD_CHECK_LEVEL");
  return text != nullptr && std::string_view(text) == "quick" ? Level::quick : Level::full;
}

struct CellId {
  std::string impl, line;
  friend std::ostream& operator<<(std::ostream& out, const CellId& id) { return out << id.line << " on " << id.impl; }
};

std::vector<CellId> cells() {
  std::vector<CellId> all;
  for (const Line& line : lines()) {
    for (std::string_view impl : all_implementations()) all.push_back({std::string(impl), line.id});
  }
  return all;
}

/// Cells in which every point may be a skip. A skip anywhere else means that a body never judged the implementation.
bool may_skip(const CellId& id) {
  if (id.impl == "cuda.fast") return id.line != "C10" && id.line != "C17";  // others ask for the bits of `exact`
  if (id.line == "C10") return true;                                        // nobody else has `fast` numerics
  if (id.line == "C9") return id.impl == "reference";                       // it would be compared with itself
  if (id.line == "C17") return device_of(id.impl) == Device::cpu;
  // Its strided rows lie at 16 bytes only in some points of the full grid, and without a history every point has them.
  if (id.line == "C7" && id.impl == "cuda.direct") return level() == Level::quick;
  if (id.line == "C20") return device_of(id.impl) == Device::cuda && id.impl != "cuda.general";  // which has the layers
  return id.line == "C19";  // needs more memory than there may be
}

/// On the small grid cuda.general, which has one body for all shapes, gets the smaller ones alone: where kernels run on
/// the CPU it takes three times as long as all others together.
std::vector<Config> points(const CellId& id) {
  std::vector<Config> grid = configs(id.line, level(), device_of(id.impl));
  if (level() == Level::quick && id.impl == "cuda.general") {
    std::erase_if(grid, [](const Config& c) { return c.K * c.V > 48 * 48; });
  }
  return grid;
}

class Contract : public ::testing::TestWithParam<CellId> {};

TEST_P(Contract, Holds) {
  const auto& [impl, line] = GetParam();
  const std::vector<Config> grid = points(GetParam());
  ASSERT_FALSE(grid.empty());
  std::set<std::string> reasons;
  int64_t checks = 0;
  for (const Config& config : grid) {
    const Outcome outcome = run_line(line, impl, config);
    EXPECT_TRUE(outcome.verdict != Verdict::fail) << outcome.message;
    if (outcome.verdict == Verdict::skip) reasons.insert(outcome.message);
    if (outcome.verdict == Verdict::pass) checks += outcome.checks;
  }
  RecordProperty("checks", std::to_string(checks));
  if (checks > 0) return;
  ASSERT_FALSE(reasons.empty());
  ASSERT_TRUE(may_skip(GetParam())) << "nothing was judged: " << *reasons.begin();
  GTEST_SKIP() << *reasons.begin();
}

INSTANTIATE_TEST_SUITE_P(All, Contract, ::testing::ValuesIn(cells()), [](const auto& test) {
  std::string name = test.param.line + "_" + test.param.impl;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

/// Kernels that are made for some shapes refuse the others, and those cells are skipped above. Nothing may be left
/// over.
TEST(Cuda, ServesEveryConfig) {
  if (const Status status = usable(Device::cuda); !status.ok()) GTEST_SKIP() << status.message();
  for (const Config& c : configs("C9", Level::full, Device::cuda)) {
    for (Op op :
         {Op::verify, Op::decode, Op::fold, Op::conv_verify, Op::conv_decode, Op::conv_commit, Op::gated_norm}) {
      Desc desc = describe(c, op, Device::cuda);
      desc.state_alignment = static_cast<int64_t>(size_of(c.state));  // the worst that a caller may bring
      desc.input_alignment = static_cast<int64_t>(size_of(c.act));
      desc.packed_rows = false;
      desc.snapshots = op == Op::verify;
      Explanation explanation;
      const Status status = explain(desc, {}, &explanation);
      EXPECT_TRUE(status.ok()) << c.name() << ": " << status.message();
    }
  }
}

TEST(Grid, CoversWhatItPromises) {
  for (const Line& line : lines()) {
    if (configs(line.id, Level::full).size() < 27) continue;  // the heavy lines have fewer points
    std::set<std::pair<Gate, DType>> gate_state;
    std::set<std::pair<Gate, Layout>> gate_layout;
    std::set<std::pair<DType, Layout>> state_layout;
    std::set<std::pair<DType, StateRounding>> rounding;
    std::set<std::pair<DType, DType>> act_state;
    std::set<int64_t> ratios, windows, rows;
    std::set<std::string> names;
    for (const Config& c : configs(line.id, Level::full)) {
      gate_state.insert({c.gate, c.state});
      gate_layout.insert({c.gate, c.layout});
      state_layout.insert({c.state, c.layout});
      rounding.insert({c.state, c.rounding});
      act_state.insert({c.act, c.state});
      ratios.insert(c.HV / c.H);
      windows.insert(c.window);
      rows.insert(c.rows);
      names.insert(c.name());
    }
    EXPECT_EQ(gate_state.size(), 9u) << line.id;
    EXPECT_EQ(gate_layout.size(), 9u) << line.id;
    EXPECT_EQ(state_layout.size(), 9u) << line.id;
    EXPECT_EQ(act_state.size(), 9u) << line.id;
    EXPECT_GE(rounding.size(), 4u) << line.id;
    EXPECT_EQ(ratios, (std::set<int64_t>{1, 2, 3, 4})) << line.id;
    EXPECT_EQ(windows, (std::set<int64_t>{1, 2, 3, 4, 5, 8, 17, 32})) << line.id;
    EXPECT_GE(rows.size(), 3u) << line.id;
    EXPECT_EQ(names.size(), configs(line.id, Level::full).size()) << line.id << ": two points have one name";
  }
}

TEST(Run, UnknownNamesAreFailures) {
  Options options;
  options.lines = {"C99"};
  EXPECT_FALSE(run(options).ok());
  options.lines = {"C1"};
  options.impls = {"no-such"};
  const Report report = run(options);
  EXPECT_FALSE(report.ok());
  ASSERT_EQ(report.cells.size(), 1u);
  EXPECT_NE(report.cells[0].failures.at(0).find("no-such"), std::string::npos);
}

TEST(Run, ReportsCellsInOrderAndProgress) {
  Options options;
  options.lines = {"C1", "C10"};
  options.impls = {"reference"};
  int64_t calls = 0, last_total = 0;
  options.progress = [&](int64_t done, int64_t total, const Cell&) {
    EXPECT_EQ(done, ++calls);
    last_total = total;
  };
  const Report report = run(options);
  EXPECT_EQ(calls, last_total);
  ASSERT_EQ(report.cells.size(), 2u);
  EXPECT_EQ(report.cells[0].line, "C1");
  EXPECT_EQ(report.cells[0].passed, static_cast<int64_t>(configs("C1", Level::quick).size()));
  EXPECT_EQ(report.cells[1].skipped + report.cells[1].passed,
            static_cast<int64_t>(configs("C10", Level::quick).size()));
  EXPECT_EQ(report.cells[1].reasons.empty(), report.cells[1].skipped == 0);
}

}  // namespace
}  // namespace ringfold::check
