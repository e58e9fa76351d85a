// The grid: which points of the product gate x shape x dtypes x layout x rounding x window are tried for each line.
#include <algorithm>

#include "check/check.h"
#include "check/support.h"

namespace ringfold::check {
namespace {

struct Shape {
  int64_t H, HV, K, V;
};

// Square and tuned sizes, K != V, sizes that are no multiple of 8, the extremes 1 and 256, HV/H = 1, 2, 3, 4.
constexpr Shape kShapes[] = {{1, 1, 64, 64},  {1, 2, 128, 128}, {1, 3, 60, 36},  {2, 2, 96, 80}, {1, 4, 5, 17},
                             {2, 6, 1, 1},    {1, 2, 256, 9},   {1, 1, 7, 256},  {2, 8, 16, 24}, {3, 3, 33, 64},
                             {1, 2, 128, 64}, {1, 1, 8, 1},     {2, 4, 64, 128}, {1, 1, 1, 40}};
// What kernels of devices are made for: K of 64 or 128, V a multiple of 16, at most 16 tokens, or 8 (of all rows
// together where they are ragged, since the host does not know the bounds).
constexpr Shape kTunedShapes[] = {{1, 2, 128, 128}, {2, 2, 64, 64}, {1, 3, 128, 64}, {1, 4, 64, 128}, {2, 4, 128, 16}};
constexpr int64_t kTunedTokens[] = {16, 8};
constexpr int64_t kWindows[] = {4, 1, 3, 8, 2, 5, 17, 32};
constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};
constexpr Gate kGates[] = {Gate::gdn, Gate::kda_softplus, Gate::kda_safe};
constexpr Layout kLayouts[] = {Layout::dense, Layout::ragged, Layout::strided};

/// Point i of a sequence in which every pair of (gate, state dtype), (gate, layout), (state dtype, layout), (state
/// dtype, rounding) comes up within 27 points, and every shape and window within 14 and 8: mixed counters whose periods
/// share no factor more than needed.
Config point(int64_t i) {
  Config c;
  c.gate = kGates[i % 3];
  c.state = kFloats[(i / 3) % 3];
  c.layout = kLayouts[(i / 9 + i + i / 3) % 3];
  const Shape s = kShapes[i % std::size(kShapes)];
  c.H = s.H, c.HV = s.HV, c.K = s.K, c.V = s.V;
  c.window = kWindows[(i + i / 8) % std::size(kWindows)];
  c.act = kFloats[(i + i / 3 + i / 5) % 3];
  c.gates = i % 4 == 1 ? DType::f32 : c.act;
  c.rounding = (i / 2) % 2 == 0 ? StateRounding::per_commit : StateRounding::per_token;
  c.rows = 1 + (i * 2 + i / 4) % 4;
  c.layers = 1 + (i / 2) % 3;
  c.qk_l2norm = i % 7 != 5;
  c.seed = static_cast<uint64_t>(i + 1);
  return c;
}

/// The same point in a shape that kernels are made for, in memory that is aligned.
Config tuned(Config c, int64_t i) {
  const Shape s = kTunedShapes[i % std::size(kTunedShapes)];
  c.H = s.H, c.HV = s.HV, c.K = s.K, c.V = s.V;
  if (c.layout == Layout::strided) c.layout = i % 2 == 0 ? Layout::dense : Layout::ragged;
  const int64_t tokens = kTunedTokens[i / 2 % std::size(kTunedTokens)];
  c.window = std::min(c.window, c.layout == Layout::ragged ? tokens / c.rows : tokens);
  c.seed += 1000;
  return c;
}

/// Point i of the shorter sequence for the fold policies that keep a history, in turns. The longest window leaves room
/// for a history in the ring.
Config policy_point(int64_t i) {
  Config c = point(5 * i + 2);
  c.policy = i % 2 == 0 ? FoldPolicy::lazy : FoldPolicy::on_next_verify;
  if (c.window > 17) c.window = 17;
  c.seed = static_cast<uint64_t>(2000 + i);
  return c;
}

/// Point i of the sequence for rings that keep KDA's raw gate: every dtype of it under every fold policy within 9.
Config raw_gate_point(int64_t i) {
  Config c = policy_point(i);
  constexpr FoldPolicy kPolicies[] = {FoldPolicy::on_commit, FoldPolicy::lazy, FoldPolicy::on_next_verify};
  c.ring_a = true;
  c.gate = kGates[1 + i % 2];
  c.gates = kFloats[(1 + i + i / 3) % 3];
  c.policy = kPolicies[i % 3];
  c.seed = static_cast<uint64_t>(4000 + i);
  return c;
}

/// Point i of the sequence for rings keyed by request row; KDA's raw gate among them.
Config by_row_point(int64_t i) {
  Config c = i % 3 == 2 ? raw_gate_point(i) : point(7 * i + 4);
  c.policy = FoldPolicy::on_commit;
  c.by_row = true;
  c.seed = static_cast<uint64_t>(6000 + i);
  return c;
}

/// Point i of the sequence for large batches, whose kernels on devices may be cut otherwise: enough heads for any GPU.
constexpr int64_t kLargePoints = 6;
Config large_point(int64_t i) {
  Config c;
  c.gate = i == 5 ? Gate::kda_softplus : Gate::gdn;
  c.H = 1 + i % 2, c.HV = c.H * (2 + i % 3), c.K = c.V = 128;
  c.rows = 1600 / c.HV;
  c.window = i % 2 == 0 ? 4 : 7;
  c.state = i % 3 == 1 ? DType::bf16 : DType::f32;
  c.act = c.gates = DType::bf16;
  c.rounding = StateRounding::per_commit;
  if (i < 3 || i == 5) c.policy = FoldPolicy::lazy, c.ring_u = true;
  c.seed = static_cast<uint64_t>(8000 + i);
  return c;
}

struct Plan {
  std::string_view line;
  int64_t quick, full;  ///< points
};
// Heavier bodies get fewer points. C19 has its own.
constexpr Plan kPlans[] = {
    {"C1", 6, 54},  {"C2", 6, 54},  {"C3", 6, 54},  {"C4", 5, 36},  {"C5", 6, 54},  {"C6", 6, 54},  {"C7", 5, 36},
    {"C8", 5, 36},  {"C9", 9, 54},  {"C10", 6, 54}, {"C11", 6, 54}, {"C12", 3, 27}, {"C13", 4, 27}, {"C14", 5, 36},
    {"C15", 3, 27}, {"C16", 6, 54}, {"C17", 2, 14}, {"C18", 3, 27}, {"C19", 1, 3},  {"C20", 9, 54}, {"ACC", 9, 54}};

/// Lines that fold policies have a part in, beside on_commit. C15, C19 and ACC ask other questions, C17 brings pools of
/// its own, and gets the points of rings keyed by request row alone.
bool asks_policies(std::string_view line) {
  constexpr std::string_view kOthers[] = {"C15", "C17", "C19", "ACC"};
  return std::find(std::begin(kOthers), std::end(kOthers), line) == std::end(kOthers);
}

}  // namespace

const char* to_string(Gate gate) {
  switch (gate) {
    case Gate::gdn: return "gdn";
    case Gate::kda_softplus: return "kda_softplus";
    case Gate::kda_safe: return "kda_safe";
  }
  return "?";
}

const char* to_string(Layout layout) {
  switch (layout) {
    case Layout::dense: return "dense";
    case Layout::ragged: return "ragged";
    case Layout::strided: return "strided";
  }
  return "?";
}

std::string Config::name() const {
  const auto n = [](int64_t value) { return std::to_string(value); };
  return std::string(to_string(gate)) + "_h" + n(H) + "x" + n(HV) + "_k" + n(K) + "v" + n(V) + "_b" + n(rows) + "_t" +
         n(window) + "_l" + n(layers) + "_" + ringfold::to_string(act) + "_" + ringfold::to_string(gates) + "_" +
         ringfold::to_string(state) + "_" + to_string(layout) + "_" + ringfold::to_string(rounding) +
         (qk_l2norm ? "" : "_rawqk") + "_s" + n(static_cast<int64_t>(seed)) +
         (policy == FoldPolicy::on_commit ? std::string() : std::string("_") + ringfold::to_string(policy)) +
         (ring_u ? "_u" : "") + (strong_gate ? "_strong" : "") + (ring_a ? "_a" : "") + (by_row ? "_byrow" : "");
}

Desc describe(const Config& c, Op op, Device device) {
  return {.op = op,
          .device = device,
          .kind = c.gate == Gate::gdn ? MixerKind::gdn : MixerKind::kda,
          .state_rounding = c.rounding,
          .fold_policy =
              is_layer(op) || op == Op::verify || op == Op::decode || op == Op::fold ? c.policy : FoldPolicy::on_commit,
          .state_dtype = c.state,
          .act_dtype = c.act,
          .H = c.H,
          .HV = c.HV,
          .K = c.K,
          .V = c.V,
          .rows = c.rows,
          .window = c.window,
          .layers = op == Op::fold || op == Op::conv_commit ? c.layers : 1,
          .channels = is_layer(op) || op == Op::conv_verify || op == Op::conv_decode || op == Op::conv_commit
                          ? 2 * c.H * c.K + c.HV * c.V
                          : 0,
          // The largest that the bodies make.
          .history_rows = c.policy == FoldPolicy::on_commit ? 0 : std::min<int64_t>(3 * c.window + 2, kMaxWindow),
          .ring_u = op == Op::verify && c.ring_u,
          .ring_a = c.ring_a ? std::optional(c.gates) : std::nullopt};
}

std::vector<Config> configs(std::string_view line, Level level, Device device) {
  for (const Plan& plan : kPlans) {
    if (plan.line != line) continue;
    std::vector<Config> grid;
    const int64_t count = level == Level::quick ? plan.quick : plan.full;
    const int64_t part = std::max<int64_t>(3, count / 3), more = asks_policies(line) ? part : 0;
    const int64_t with_policies = count + more, with_raw_gates = with_policies + more;
    const int64_t all = with_raw_gates + (line == "C17" ? part : more);
    for (int64_t i = 0; i < all; ++i) {
      grid.push_back(i < count            ? point(i)
                     : i < with_policies  ? policy_point(i - count)
                     : i < with_raw_gates ? raw_gate_point(i - with_policies)
                                          : by_row_point(i - with_raw_gates));
      Config& c = grid.back();
      if (line == "C8" && c.state != DType::f32) c.rounding = StateRounding::per_token;    // what the line is about
      if (line == "C10" && c.state != DType::f32) c.rounding = StateRounding::per_commit;  // fp64 does not round
      if (line == "C10" && c.policy != FoldPolicy::on_commit) {  // a history that is read by its u
        c.policy = FoldPolicy::lazy, c.ring_u = true, c.layers = 1;
        c.strong_gate = c.gate == Gate::kda_softplus;
        if (c.act == DType::f32)
          c.act = DType::bf16;  // nothing that keeps u takes it, and a bf16 state has no other here
      }
      if (line == "C5" || line == "C18") c.layers = std::max<int64_t>(c.layers, 2);
      if (line == "C12" || line == "C18") c.rows = std::max<int64_t>(c.rows, 2);
      if (line == "C19") c.layers = 1, c.rows = 3, c.window = 2, c.K = 16, c.V = 8, c.layout = Layout::dense;
    }
    if (device == Device::cpu) return grid;
    for (int64_t i = 0; i < all; ++i) grid.push_back(tuned(grid[static_cast<size_t>(i)], i));
    if (line == "C10" && level == Level::full) {
      for (int64_t i = 0; i < kLargePoints; ++i) grid.push_back(large_point(i));
    }
    return grid;
  }
  return {};
}

}  // namespace ringfold::check
