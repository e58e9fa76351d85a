// The conformance kit: every line of the contract (docs/contract.md) as one body that judges any implementation through
// the public API. Used by `ringfold check`, by tests/contract, and by authors of other implementations.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ringfold/registry.h"
#include "ringfold/types.h"

namespace ringfold::check {

enum class Gate : uint8_t { gdn, kda_softplus, kda_safe };

/// How the inputs of a call lie in memory. `dense`: [B,T,..], packed. `ragged`: [tokens,..] with cu_seqlens, rows of
/// different length (0 included), packed. `strided`: dense, q k v a b are views into one packed row per token with NaN
/// between them, slot_ids is a column of a wider table, and pool, ring and outputs have padded strides.
enum class Layout : uint8_t { dense, ragged, strided };

/// One point of the grid. Everything a body does follows from it and from the seed: the same config gives the same
/// bits.
struct Config {
  Gate gate = Gate::gdn;
  int64_t H = 1, HV = 1, K = 64, V = 64;
  int64_t rows = 2;    ///< B
  int64_t window = 4;  ///< T, the longest row
  int64_t layers = 1;
  DType act = DType::f32;    ///< q, k, v and the ring
  DType gates = DType::f32;  ///< a and b
  DType state = DType::f32;
  Layout layout = Layout::dense;
  StateRounding rounding = StateRounding::per_commit;
  bool qk_l2norm = true;
  uint64_t seed = 1;
  FoldPolicy policy = FoldPolicy::on_commit;  ///< others: slots begin with a history, of several commits
  bool ring_u = false;                        ///< lazy, and the ring keeps u: slots begin without a history
  bool strong_gate = false;                   ///< channels (GDN: heads) that keep all, nothing and some
  bool ring_a = false;                        ///< KDA: the ring keeps a, in the dtype of `gates`, in place of g
  bool by_row = false;                        ///< on_commit: calls name rings by ring_ids, which are no slot ids

  bool operator==(const Config&) const = default;
  /// For example "kda_safe_h2x6_k96v80_b3_t5_l2_bf16_bf16_f32_ragged_per_token_s7" (acts, gates, state), with "_lazy"
  /// behind it for that fold policy, "_u" and "_a" for what the ring keeps, "_strong" for strong_gate, "_byrow" for
  /// by_row. Unique, and made of [a-z0-9_] alone, so that it serves as a test name.
  std::string name() const;
};

const char* to_string(Gate gate);
const char* to_string(Layout layout);

/// One line of the contract.
struct Line {
  const char* id;    ///< "C1" .. "C20", and "ACC": accuracy against the fp64 oracle
  const char* what;  ///< one sentence
};

/// All lines, in order. A line that this version cannot check is listed too, and is skipped with its reason.
std::span<const Line> lines();

enum class Level : uint8_t { quick, full };

/// The grid of one line. Lines that do not depend on shapes (C19 for example) have one point. Empty: unknown line.
/// For a device the grid comes twice: the second time in shapes that kernels are made for.
std::vector<Config> configs(std::string_view line, Level level, Device device = Device::cpu);

/// A call of `op` at a config, for asking who serves it.
Desc describe(const Config& config, Op op, Device device);

enum class Verdict : uint8_t { pass, fail, skip };
const char* to_string(Verdict verdict);

struct Outcome {
  Verdict verdict = Verdict::pass;
  int64_t checks = 0;   ///< comparisons made; a pass with none is impossible
  std::string message;  ///< fail: the first difference, with config and seed; skip: the reason
};

/// Runs one line on one implementation. Never throws. An unknown line or implementation fails with a message.
Outcome run_line(std::string_view line, std::string_view impl, const Config& config);

/// 64-bit hash of all that the implementation computes for the config: outputs, snapshots, ring, states, conv, norm.
/// Equal on every machine and for every implementation that serves the config. 0 where a call failed or was refused.
uint64_t fingerprint(std::string_view impl, const Config& config);

/// One cell of the table implementation x line.
struct Cell {
  std::string impl;
  std::string line;
  int64_t passed = 0, failed = 0, skipped = 0;  ///< configs
  int64_t checks = 0;
  double seconds = 0;
  std::vector<std::string> failures;  ///< messages, at most Options::max_failures
  std::vector<std::string> reasons;   ///< distinct reasons of skips

  bool operator==(const Cell&) const = default;
};

struct Report {
  std::vector<std::string> impls;
  std::vector<Cell> cells;  ///< line by line, in the order of lines(); within a line, in the order of impls
  int64_t passed = 0, failed = 0, skipped = 0;
  bool ok() const { return failed == 0 && passed + skipped > 0; }
};

struct Options {
  std::vector<std::string> impls;  ///< empty: all of this machine, CUDA included
  std::vector<std::string> lines;  ///< empty: all
  Level level = Level::quick;
  int threads = 0;          ///< threads of the calls under test; 0: as set. Bits do not depend on it
  size_t max_failures = 3;  ///< messages kept per cell
  /// Called after every config.
  std::function<void(int64_t done, int64_t total, const Cell& cell)> progress;
};

/// Runs the grid. An unknown name in `impls` or `lines` is a failed cell of its own, never ignored.
Report run(const Options& options);

}  // namespace ringfold::check
