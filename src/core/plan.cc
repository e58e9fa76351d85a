#include "core/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/parallel.h"

namespace ringfold {
namespace detail {
namespace {

int64_t bytes(DType t) { return static_cast<int64_t>(size_of(t)); }

int64_t state_bytes(const Desc& d) { return d.HV * d.V * d.K * bytes(d.state_dtype); }

// v and k in the activation dtype, g (or a in its own) and beta in fp32.
int64_t ring_row_bytes(const Desc& d) {
  const int64_t gates = d.HV * (d.kind == MixerKind::kda ? d.K : 1);
  return (d.HV * d.V + d.H * d.K) * bytes(d.act_dtype) + gates * bytes(d.ring_a.value_or(DType::f32)) + d.HV * 4;
}
// What a verify that reads a history by u has beside them (Ring::u).
int64_t u_row_bytes(const Desc& d) { return d.ring_u ? d.HV * d.V * 4 : 0; }

// q, k, v, a, b of one token, and its output.
int64_t input_bytes(const Desc& d) {
  const int64_t gates = d.HV * (d.kind == MixerKind::kda ? d.K : 1);
  return (2 * d.H * d.K + d.HV * d.V + gates + d.HV) * bytes(d.act_dtype);
}
int64_t output_bytes(const Desc& d) { return d.HV * d.V * bytes(d.act_dtype); }

}  // namespace

Plan traffic(const Desc& d) {
  Plan plan;
  const int64_t n = d.rows, T = d.window;
  const int64_t elements = d.HV * d.V * d.K;
  switch (d.op) {
    case Op::verify_layer:
    case Op::decode_layer: {
      // That of the three calls, but for what lies between them: the conv's outputs, and the norm's input.
      const bool verify = d.op == Op::verify_layer;
      Desc part = d;
      const auto add = [&](Op op) {
        part.op = op;
        const Plan p = traffic(part);
        plan.bytes_read += p.bytes_read;
        plan.bytes_written += p.bytes_written;
        plan.fmas += p.fmas;
      };
      add(verify ? Op::verify : Op::decode);
      add(verify ? Op::conv_verify : Op::conv_decode);
      part.rows = n * T;
      add(Op::gated_norm);
      plan.bytes_read -= n * T * (d.channels + d.HV * d.V) * bytes(d.act_dtype);
      plan.bytes_written -= n * T * (d.channels + d.HV * d.V) * bytes(d.act_dtype);
      break;
    }
    case Op::verify:
      plan.bytes_read = n * (state_bytes(d) + T * input_bytes(d));
      plan.bytes_written = n * T * (output_bytes(d) + ring_row_bytes(d) + u_row_bytes(d));
      plan.fmas = n * elements * (4 * T - 2);  // two dots a token, decay and update of all but the last
      // A history of a window, all of it accepted. Under lazy it is longer or shorter, and mostly not folded.
      if (d.fold_policy != FoldPolicy::on_commit) {
        plan.bytes_read += n * T * (ring_row_bytes(d) + u_row_bytes(d) - (d.ring_u ? output_bytes(d) : 0));  // no v
        if (!d.ring_u) plan.fmas += n * elements * 3 * T;
      }
      if (d.fold_policy == FoldPolicy::on_next_verify) plan.bytes_written += n * state_bytes(d);
      break;
    case Op::decode:
      plan.bytes_read = n * (state_bytes(d) + T * input_bytes(d));
      plan.bytes_written = n * (state_bytes(d) + T * output_bytes(d));
      plan.fmas = n * elements * 4 * T;
      break;
    case Op::fold:
      plan.bytes_read = d.layers * n * (state_bytes(d) + T * ring_row_bytes(d));
      plan.bytes_written = d.layers * n * state_bytes(d);
      plan.fmas = d.layers * n * elements * 3 * T;
      break;
    case Op::conv_verify:
    case Op::conv_decode:
      plan.bytes_read = n * d.channels * (T + d.conv_width - 1) * bytes(d.act_dtype);
      plan.bytes_written =
          n * d.channels * (d.op == Op::conv_verify ? 2 * T : T + d.conv_width - 1) * bytes(d.act_dtype);
      plan.fmas = n * d.channels * T * d.conv_width;
      break;
    case Op::conv_commit:
      plan.bytes_read = plan.bytes_written = d.layers * n * d.channels * (d.conv_width - 1) * bytes(d.act_dtype);
      break;
    case Op::gated_norm:
      plan.bytes_read = n * 2 * d.HV * d.V * bytes(d.act_dtype);
      plan.bytes_written = n * d.HV * d.V * bytes(d.act_dtype);
      plan.fmas = n * d.HV * d.V;
      break;
  }
  // A thread that would work for less than a microsecond or two costs more to wake than it brings.
  constexpr int64_t kLeastWork = int64_t{1} << 16;
  const int64_t work = plan.fmas + (plan.bytes_read + plan.bytes_written) / 8;
  plan.threads = static_cast<int>(std::clamp<int64_t>(work / kLeastWork, 1, thread_count(d.threads)));
  return plan;
}

}  // namespace detail

Footprint footprint(const Desc& d, double accepted_per_step) {
  Footprint f;
  const int64_t T = std::max<int64_t>(1, d.window);
  f.state_bytes = detail::state_bytes(d);
  f.ring_row_bytes = detail::ring_row_bytes(d) + detail::u_row_bytes(d);
  f.ring_bytes = T * f.ring_row_bytes;
  f.conv_ring_row_bytes = d.channels * detail::bytes(d.act_dtype);
  f.conv_state_bytes = (d.conv_width - 1) * f.conv_ring_row_bytes;
  f.snapshot_bytes = T * f.state_bytes;
  const double accepted = std::clamp(accepted_per_step, 0.0, static_cast<double>(T));
  const auto row = static_cast<double>(f.ring_row_bytes), state = static_cast<double>(f.state_bytes);
  const double record = static_cast<double>(T) * row, replay = accepted * row;
  // on_commit: verify reads S; fold reads and writes it. on_next_verify: one read and one write in the next verify.
  f.step_on_commit = std::llround(3 * state + record + replay);
  f.step_on_next_verify = std::llround(2 * state + record + replay);
  // lazy: a ring of W rows is folded every (W - T) / accepted steps; in between verify reads half of it on average. W
  // is at the minimum of the sum of both: W - T = sqrt(2 * accepted * state / row bytes), at least one step.
  const double fill = std::max(accepted, std::sqrt(2 * accepted * state / row));
  const double period = accepted > 0 ? fill / accepted : 1;
  f.step_lazy = std::llround(state + state / period + record + fill / 2 * row);
  f.step_snapshot = (T + 1) * f.state_bytes;
  return f;
}

std::string to_string(const Desc& d) {
  std::string s = fmt::format("{} {} {} state {} act {}", to_string(d.op), to_string(d.device), to_string(d.numerics),
                              to_string(d.state_dtype), to_string(d.act_dtype));
  if (d.channels > 0 && !is_layer(d.op))
    return s + fmt::format(" B{} T{} C{} W{} layers {}", d.rows, d.window, d.channels, d.conv_width, d.layers);
  return s +
         fmt::format(" {} H{} HV{} K{} V{} B{} T{} layers {} {} {}", to_string(d.kind), d.H, d.HV, d.K, d.V, d.rows,
                     d.window, d.layers, to_string(d.state_rounding), to_string(d.fold_policy)) +
         (d.ring_a ? fmt::format(" ring a {}", to_string(*d.ring_a)) : std::string()) +
         (is_layer(d.op) ? fmt::format(" C{} W{}", d.channels, d.conv_width) : std::string());
}

std::string to_string(const Plan& p) {
  return fmt::format("{}: {} tasks on {} threads, V in {} parts, reads {} B, writes {} B, {} fmas", p.impl, p.tasks,
                     p.threads, p.v_parts, p.bytes_read, p.bytes_written, p.fmas);
}

int num_threads() { return detail::thread_count(0); }
void set_num_threads(int threads) { detail::set_thread_count(threads); }
std::string_view version() { return "0.1.0"; }

}  // namespace ringfold
