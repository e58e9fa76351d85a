// Which instance serves, and how its work is cut.
#include "cuda/verify/fast.h"

#include "core/plan.h"
#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda {
namespace {

/// Of K = 64, of blocks of 64 rows of V, and of 128.
const fast::Instances& instances(int K, DType state, int rows, bool history) {
  static const fast::Instances small[2][3] = {
      {fast::f32_small(), fast::bf16_small(), fast::f16_small()},
      {fast::history_f32_small(), fast::history_bf16_small(), fast::history_f16_small()}};
  static const fast::Instances halves[2][3] = {
      {fast::f32_64_rows(), fast::bf16_64_rows(), fast::f16_64_rows()},
      {fast::history_f32_64_rows(), fast::history_bf16_64_rows(), fast::history_f16_64_rows()}};
  static const fast::Instances wholes[2][2] = {{fast::f32_128_rows(), fast::bf16_128_rows()},
                                               {fast::history_f32_128_rows(), fast::history_bf16_128_rows()}};
  const int dtype = state == DType::f32 ? 0 : state == DType::bf16 ? 1 : 2;
  return K == 64 ? small[history][dtype] : rows == kFastRows ? halves[history][dtype] : wholes[history][dtype];
}

}  // namespace

Refusal fast_refusal(const Desc& d) {
  if (d.op != Op::verify) return {"serves verify alone"};
  if (d.fold_policy != FoldPolicy::on_commit && !d.ring_u) return {"serves a history only by u in the ring (Ring::u)"};
  if (d.K != 64 && d.K != 128) return {"needs K of 64 or 128", "K", d.K};
  if (d.V % kFastRows != 0) return {"needs V to be a multiple of 64", "V", d.V};
  if (d.window > kFastTokens) return {"needs a window of at most 16 tokens", "T", d.window};
  if (size_of(d.act_dtype) != 2) return {"needs bf16 or f16 activations"};
  if (d.snapshots) return {"writes no snapshots"};
  if (d.state_rounding == StateRounding::per_token && d.state_dtype != DType::f32) {
    return {"does not round a 16-bit state after each token; use per_commit or exact"};
  }
  if (d.input_alignment < 16)
    return {"needs q, k, v and ring rows aligned to 16 bytes", "alignment", d.input_alignment};
  if (d.state_alignment < 16) return {"needs state rows aligned to 16 bytes", "alignment", d.state_alignment};
  if (d.HV > kFastHeads) return {"needs at most 4096 value heads", "HV", d.HV};
  if (d.rows > INT32_MAX) return {"needs at most 2147483647 rows", "rows", d.rows};
  return {};
}

Plan fast_plan(const Desc& d) {
  Plan plan = traffic(d);
  const FastTiles tiles = fast_tiles(d, current_device());
  plan.v_parts = tiles.v_parts;
  plan.tasks = d.rows * d.HV / tiles.heads * tiles.v_parts;
  plan.threads = 1;
  return plan;
}

Status fast_verify(const RecurrenceParams& params, const Desc& desc) {
  fast::FastParams p;
  static_cast<RecurrenceParams&>(p) = params;
  if (p.rows == 0) return {};
  bool small = true;
  const auto bytes = [&](int64_t elements, DType dtype) {
    const int64_t n = elements * static_cast<int64_t>(size_of(dtype));
    small = small && n >= INT32_MIN && n <= INT32_MAX;
    return static_cast<int32_t>(n);
  };
  // Everything within a row has 32-bit offsets: the last token of the last head, and `more` elements.
  const auto place = [&](const Array& a, bool slots, int64_t heads, int64_t more) {
    if (!a) return fast::Place{};
    const int64_t row = slots || !p.cu_seqlens ? a.row_stride : a.token_stride;
    bytes(a.head_stride * heads + a.token_stride * (slots ? kMaxWindow : kFastTokens) + more, a.dtype);
    return fast::Place{a.data, bytes(row, a.dtype), bytes(a.head_stride, a.dtype), bytes(a.token_stride, a.dtype)};
  };
  p.at_q = place(p.q, false, p.H, p.K), p.at_k = place(p.k, false, p.H, p.K), p.at_v = place(p.v, false, p.HV, p.V);
  p.at_a = place(p.a, false, p.HV, p.K), p.at_b = place(p.b, false, p.HV, 0);
  p.at_out = place(p.out, false, p.HV, p.V);
  p.at_state = place(p.state, true, p.HV, p.V * p.state_v_stride);
  p.at_ring_k = place(p.ring_k, true, p.H, p.K), p.at_ring_v = place(p.ring_v, true, p.HV, p.V);
  p.at_ring_gate = place(p.ring_gate, true, p.HV, p.K), p.at_ring_beta = place(p.ring_beta, true, p.HV, 0);
  p.at_ring_u = place(p.ring_u, true, p.HV, p.V);
  p.state_row = bytes(p.state_v_stride, p.state.dtype);
  p.slot_id_stride = bytes(p.slot_ids.stride, DType::i32) / 4;
  if (!small) return {Code::unsupported, "strides: cuda.fast expects at most 2 GiB between rows and between slots"};
  const int64_t strides = p.out.row_stride | p.out.token_stride | p.out.head_stride;
  const auto out_bytes = static_cast<int64_t>(size_of(p.out.dtype));
  p.out_wide = reinterpret_cast<uintptr_t>(p.out.data) % 16 == 0 && strides * out_bytes % 16 == 0;
  const FastTiles tiles = fast_tiles(desc, current_device());
  p.v_parts = tiles.v_parts;
  p.heads_of_key = p.HV / p.H;
  p.heads_of_block = tiles.heads;
  p.by_parts = Divisor(p.v_parts), p.by_heads_of_key = Divisor(p.heads_of_key);
  const int by_tokens = tiles.tokens == 4 ? 0 : tiles.tokens == 8 ? 1 : 2;
  const int shared = static_cast<int>(current_device().shared_bytes_per_sm);
  const fast::Instances& of = instances(p.K, p.state.dtype, tiles.rows, static_cast<bool>(p.history));
  return (p.kind == MixerKind::kda ? of.kda : of.gdn)[by_tokens](p, shared);
}

}  // namespace ringfold::cuda
