// The cost of a step under each fold policy: bytes, and the time of the larger of bytes and arithmetic.
#include "ringfold/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/plan.h"
#include "cuda/tuning.h"

namespace ringfold {
namespace {

// Of fast numerics: windows and histories are served in tiles of so many tokens.
constexpr int64_t kFastTiles[] = {4, 8, 16};
// Below this a history never fills: about one row in a hundred steps.
constexpr double kLeastAccepted = 0.01;
// Costs closer than this are the same to the model.
constexpr double kSame = 1.01;

double gb_us(double bytes, double gbs) { return bytes / (gbs * 1e3); }

/// The model of one request on one machine.
class Model {
 public:
  Model(const Desc& verify, double accepted, int64_t layers, const Machine& machine)
      : d_(verify), accepted_(accepted), layers_(static_cast<double>(layers)), m_(machine) {
    d_.op = Op::verify;
    d_.fold_policy = FoldPolicy::on_commit;
    d_.history_rows = 0;
    d_.ring_u = false;
    d_.layers = 1;
    const Plan plan = detail::traffic(d_);
    const Footprint f = footprint(d_);
    rows_ = static_cast<double>(d_.rows);
    read_ = static_cast<double>(plan.bytes_read), written_ = static_cast<double>(plan.bytes_written);
    state_ = rows_ * static_cast<double>(f.state_bytes);
    ring_row_ = static_cast<double>(f.ring_row_bytes);
    u_row_ = static_cast<double>(d_.HV * d_.V) * 4;
    ring_k_ = static_cast<double>(d_.H * d_.K) * static_cast<double>(size_of(d_.act_dtype));
    gates_ = ring_row_ - ring_k_ - static_cast<double>(d_.HV * d_.V) * static_cast<double>(size_of(d_.act_dtype));
    elements_ = rows_ * static_cast<double>(d_.HV * d_.V * d_.K);
    some_ = std::min(1.0, accepted_);
  }

  StepCost on_commit(Numerics numerics) const {
    StepCost c = cost(FoldPolicy::on_commit, d_.window, false, numerics);
    const Desc fold = commit(c);
    c.bytes = read_ + written_ + some_ * fold_bytes(accepted_);
    if (direct_serves(numerics)) {
      c.verify_impl = "cuda.direct";
    } else if (leaves_to_exact()) {
      c.verify_impl = exact_impl(d_);
    }
    c.us = c.verify_impl == "cuda.direct" ? direct_us()
           : c.verify_impl == "cuda.fast" ? fast_us(-1)
                                          : exact_us(d_, 0, 0, 0);
    c.us += (m_.launch_us + some_ * (m_.exact_call_us + accepted_ * row_us())) / layers_;
    c.us += some_ * fold_us(fold, accepted_);
    return c;
  }

  StepCost on_next_verify() const {
    StepCost c = cost(FoldPolicy::on_next_verify, 2 * d_.window, false, Numerics::exact);
    c.bytes = read_ + written_ + history_bytes(accepted_) + some_ * state_;
    c.us = exact_us(behind(c), accepted_, some_, m_.launch_us) + m_.launch_us / layers_;
    return c;
  }

  /// verify replays raw rows, and stores where the rule of docs/ring.md finds the history due; commits move cursors.
  StepCost lazy(int64_t ring_rows) const {
    StepCost c = cost(FoldPolicy::lazy, ring_rows, false, Numerics::exact);
    const Desc verify = behind(c);
    const double free = static_cast<double>(ring_rows - 2 * d_.window);
    const int64_t steps = accepted_ < kLeastAccepted ? 0 : whole(free / accepted_) + 1;
    for (int64_t i = 1; i <= steps; ++i) {
      const double history = static_cast<double>(i) * accepted_, stored = i == steps ? 1 : 0;
      c.bytes += read_ + written_ + history_bytes(history) + stored * state_;
      c.us += exact_us(verify, history, stored, m_.launch_us);
    }
    if (steps == 0) {
      c.bytes = read_ + written_;
      c.us = exact_us(verify, 0, 0, m_.launch_us);
    } else {
      c.bytes /= static_cast<double>(steps), c.us /= static_cast<double>(steps);
    }
    c.us += m_.launch_us / layers_;
    return c;
  }

  /// verify reads u and stores nothing; a commit that leaves no room for a window folds all that is there.
  StepCost lazy_with_u(int64_t ring_rows) const {
    StepCost c = cost(FoldPolicy::lazy, ring_rows, true, Numerics::fast);
    const Desc fold = commit(c);
    const double free = static_cast<double>(ring_rows - d_.window);
    const int64_t steps = accepted_ < kLeastAccepted ? 1 : whole(free / accepted_) + 1;
    for (int64_t i = 0; i < steps; ++i) {
      const double history = accepted_ < kLeastAccepted ? 0 : static_cast<double>(i) * accepted_;
      c.bytes += read_ + written_ + u_bytes(history);
      c.us += fast_us(history);
    }
    // Every commit asks which rows are due and moves cursors; kernels that find nothing to do are short.
    double commit_us = 3 * m_.launch_us;
    if (accepted_ >= kLeastAccepted) {
      const double folded = static_cast<double>(steps) * accepted_;
      c.bytes += fold_bytes(folded);
      c.us += fold_us(fold, folded) + (m_.exact_call_us + folded * row_us()) / layers_;
    }
    c.bytes /= static_cast<double>(steps), c.us /= static_cast<double>(steps);
    c.us += commit_us / layers_;
    return c;
  }

  /// What src/cuda/verify/fast.cu refuses, as far as a description without a device tells.
  bool fast_serves() const {
    if (m_.device != Device::cuda || d_.numerics != Numerics::fast || d_.snapshots) return false;
    const bool rounds = d_.state_rounding == StateRounding::per_token && d_.state_dtype != DType::f32;
    return (d_.K == 64 || d_.K == 128) && d_.V % cuda::kFastRows == 0 && d_.window <= cuda::kFastTokens &&
           size_of(d_.act_dtype) == 2 && !rounds && aligned() && d_.HV <= cuda::kFastHeads;
  }

 private:
  static int64_t whole(double x) { return static_cast<int64_t>(std::floor(x + 1e-9)); }
  bool aligned() const { return d_.state_alignment >= 16 && d_.input_alignment >= 16; }
  double row_us() const { return m_.exact_row_us * kda_rows(); }
  double kda_rows() const { return d_.kind == MixerKind::kda ? m_.kda_rows : 1; }

  StepCost cost(FoldPolicy policy, int64_t ring_rows, bool ring_u, Numerics numerics) const {
    StepCost c;
    c.policy = policy, c.ring_rows = ring_rows, c.ring_u = ring_u, c.numerics = numerics;
    c.ring_bytes = static_cast<int64_t>(static_cast<double>(ring_rows) * layers_ * (ring_row_ + (ring_u ? u_row_ : 0)));
    const Desc verify = policy == FoldPolicy::on_commit ? d_ : behind(c);
    c.verify_impl = numerics == Numerics::fast ? "cuda.fast" : exact_impl(verify);
    c.fold_impl = exact_impl(commit(c));
    return c;
  }

  /// What src/cuda/recurrence/direct.cu refuses, and what it leaves to others.
  bool direct_serves(Numerics numerics) const {
    if (exact_impl(d_) != "cuda.exact" || d_.window > cuda::kDirectTokens) return false;
    Desc d = d_;
    d.numerics = numerics;
    return d_.rows * d_.HV <= cuda::direct_heads(d, device());
  }
  bool leaves_to_exact() const { return exact_impl(d_) == "cuda.exact" && cuda::exact_beats_fast(d_, device()); }
  /// Blocks of up to 32 rows of V share a multiprocessor, each with a wait of its own.
  double direct_us() const {
    const std::array<double, 4>& us = d_.kind == MixerKind::kda ? m_.kda_direct_us : m_.direct_us;
    const double blocks =
        rows_ * static_cast<double>(d_.HV * d_.V) / (cuda::kDirectWarps * cuda::kDirectWarpRows) / m_.sms;
    const auto tokens = static_cast<double>(d_.window);
    return us[0] + us[1] * tokens + blocks * (us[2] + us[3] * tokens);
  }

  /// A verify behind the history that this policy keeps.
  Desc behind(const StepCost& c) const {
    Desc d = d_;
    d.fold_policy = c.policy;
    d.history_rows = c.ring_rows;
    return d;
  }
  /// The fold of a commit: it may take whatever the ring holds.
  Desc commit(const StepCost& c) const {
    Desc d = d_;
    d.op = Op::fold;
    d.fold_policy = c.policy;
    d.window = c.ring_rows;
    d.history_rows = c.policy == FoldPolicy::on_commit ? 0 : c.ring_rows;
    d.layers = static_cast<int64_t>(layers_);
    d.snapshots = false;
    return d;
  }

  cuda::DeviceProperties device() const {
    cuda::DeviceProperties device;
    device.sms = m_.sms;
    device.shared_bytes_per_sm = m_.shared_bytes_per_sm;
    device.shared_bytes_per_block = m_.shared_bytes_per_block;
    return device;
  }
  cuda::ExactTiles tiles(const Desc& d) const { return cuda::exact_tiles(d, device()); }

  std::string_view exact_impl(const Desc& d) const {
    if (m_.device == Device::cpu) return m_.cpu_impl;
    // What src/cuda/recurrence/exact.cu refuses.
    const bool tuned = (d.K == 64 || d.K == 128) && d.V % 16 == 0 && size_of(d.act_dtype) == 2 && d.packed_rows &&
                       !d.snapshots && aligned() && d.layers * d.rows * d.HV <= INT32_MAX && tiles(d).blocks > 0;
    return tuned ? "cuda.exact" : "cuda.general";
  }

  /// Arithmetic of `ps` for each element, in the implementation that serves.
  double work_us(const Desc& d, double ps) const {
    double us = ps * 1e-6 * elements_ / m_.sms;
    if (m_.device == Device::cpu) return us;
    if (exact_impl(d) == "cuda.general") return us * m_.general;
    // Two large blocks hide each other's latency. With less in a multiprocessor part of it shows.
    const cuda::ExactTiles t = tiles(d);
    const double missing = 2.0 * cuda::kExactThreads / (t.threads * t.blocks_per_sm) - 1;
    return us * (1 + (m_.one_block - 1) * std::max(0.0, missing));
  }

  double history_bytes(double history) const { return rows_ * history * ring_row_; }
  double u_bytes(double history) const {
    return rows_ * (static_cast<double>(d_.window) * u_row_ + history * (ring_k_ + gates_ + u_row_));
  }
  double fold_bytes(double rows) const { return 2 * state_ + history_bytes(rows); }

  /// An exact verify behind `history` rows, which is stored in `stored` of all cases.
  double exact_us(const Desc& d, double history, double stored, double launches) const {
    const double tokens = static_cast<double>(d_.window) + history;
    const double other = read_ + written_ - state_ + history_bytes(history);
    const double reads = gb_us(state_ + other, m_.read_gbs);
    const double updates = gb_us(2 * state_ + other, m_.update_gbs);
    const double rows_ps = m_.exact_ps + m_.exact_row_ps * kda_rows() * tokens;
    const double without = std::max(reads, work_us(d, rows_ps));
    const double with = std::max(updates, work_us(d, rows_ps + m_.exact_store_ps));
    return m_.exact_call_us + row_us() * tokens + launches + (1 - stored) * without + stored * with;
  }

  double fold_us(const Desc& d, double rows) const {
    return std::max(gb_us(fold_bytes(rows), m_.update_gbs),
                    work_us(d, m_.fold_ps + m_.fold_row_ps * kda_rows() * rows));
  }

  /// A fast verify; with a `history` of 0 or more behind one by u.
  double fast_us(double history) const {
    size_t tile = 0;
    while (tile < 2 && d_.window > kFastTiles[tile]) ++tile;
    const bool kda = d_.kind == MixerKind::kda;
    double us = (kda ? m_.kda_call_us : m_.fast_call_us)[tile], ps = (kda ? m_.kda_ps : m_.fast_ps)[tile];
    double bytes = read_ + written_;
    if (history >= 0) {
      us += m_.ring_u_us, ps += m_.ring_u_ps[tile], bytes += u_bytes(history);
      if (history > 0) ps += (kda ? m_.kda_history_ps : m_.history_ps)[tile];
    }
    return us + gb_us(bytes, m_.read_gbs) + ps * 1e-6 * elements_ / m_.sms;
  }

  Desc d_;
  double accepted_, layers_;
  const Machine& m_;
  double rows_, read_, written_, state_, ring_row_, u_row_, ring_k_, gates_, elements_;
  double some_;  // how many of the steps accept anything
};

Status wrong(const char* what, std::string_view expected, std::string_view found) {
  return {Code::invalid_argument, fmt::format("{}: expected {}, found {}", what, expected, found)};
}

Status check(const Desc& d, double accepted, int64_t layers, const Machine& machine) {
  if (d.op != Op::verify) return wrong("op", "verify", to_string(d.op));
  if (d.device != machine.device) {
    return wrong("device", fmt::format("{}, that of machine {}", to_string(machine.device), machine.name),
                 to_string(d.device));
  }
  constexpr int64_t kMostHeads = 1 << 20, kMost = int64_t{1} << 30;
  const auto size = [](const char* what, int64_t n, int64_t most) -> Status {
    if (n >= 1 && n <= most) return {};
    return wrong(what, fmt::format("1 to {}", most), fmt::format("{}", n));
  };
  if (Status s = size("H", d.H, kMostHeads); !s.ok()) return s;
  if (Status s = size("HV", d.HV, kMostHeads); !s.ok()) return s;
  if (Status s = size("K", d.K, kMaxHeadDim); !s.ok()) return s;
  if (Status s = size("V", d.V, kMaxHeadDim); !s.ok()) return s;
  if (Status s = size("rows", d.rows, kMost); !s.ok()) return s;
  if (Status s = size("window", d.window, kMaxWindow); !s.ok()) return s;
  if (Status s = size("layers", layers, kMostHeads); !s.ok()) return s;
  if (!is_float(d.state_dtype) || !is_float(d.act_dtype)) return wrong("dtypes", "f32, bf16 or f16", "i32");
  if (!(accepted >= 0 && accepted <= static_cast<double>(d.window)))
    return wrong("accepted_per_step", fmt::format("0 to {}, the window", d.window), fmt::format("{}", accepted));
  if (machine.sms < 1 || !(machine.read_gbs > 0) || !(machine.update_gbs > 0))
    return wrong("machine", "multiprocessors and bandwidths above 0", to_string(machine));
  return {};
}

}  // namespace

std::vector<StepCost> step_costs(const Desc& verify, double accepted_per_step, int64_t layers, const Machine& machine) {
  std::vector<StepCost> costs;
  if (!check(verify, accepted_per_step, layers, machine).ok()) return costs;
  const Model model(verify, accepted_per_step, layers, machine);
  costs.push_back(model.on_commit(Numerics::exact));
  if (model.fast_serves()) costs.push_back(model.on_commit(Numerics::fast));
  const int64_t least = 2 * verify.window;
  if (least > kMaxWindow) return costs;
  costs.push_back(model.on_next_verify());
  for (int64_t rows = least; rows <= kMaxWindow; ++rows) costs.push_back(model.lazy(rows));
  if (!model.fast_serves()) return costs;
  for (int64_t rows = least; rows <= kMaxWindow; ++rows) costs.push_back(model.lazy_with_u(rows));
  return costs;
}

Status choose(const Desc& verify, double accepted_per_step, int64_t layers, const Machine& machine, StepCost* chosen,
              int64_t most_ring_bytes) {
  if (Status s = check(verify, accepted_per_step, layers, machine); !s.ok()) return s;
  if (most_ring_bytes < 0) return wrong("most_ring_bytes", "0 or more", fmt::format("{}", most_ring_bytes));
  std::vector<StepCost> costs = step_costs(verify, accepted_per_step, layers, machine);
  const int64_t smallest = costs.front().ring_bytes;
  std::erase_if(costs, [&](const StepCost& c) { return most_ring_bytes > 0 && c.ring_bytes > most_ring_bytes; });
  if (costs.empty()) {
    return {Code::unsupported, fmt::format("most_ring_bytes: expected at least {}, a ring of one window, found {}",
                                           smallest, most_ring_bytes)};
  }
  const auto cheaper = [](const StepCost& a, const StepCost& b) { return a.us < b.us; };
  const double least = std::min_element(costs.begin(), costs.end(), cheaper)->us;
  *chosen = *std::find_if(costs.begin(), costs.end(), [&](const StepCost& c) { return c.us <= kSame * least; });
  return {};
}

std::string to_string(const StepCost& c) {
  return fmt::format("{}, {} rows{}, {}: {:.0f} B, {:.1f} us ({}, {})", to_string(c.policy), c.ring_rows,
                     c.ring_u ? " with u" : "", to_string(c.numerics), c.bytes, c.us, c.verify_impl, c.fold_impl);
}

}  // namespace ringfold
