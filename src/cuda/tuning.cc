#include "cuda/tuning.h"

#include <algorithm>

namespace ringfold::cuda {
namespace {

constexpr int kRegistersPerSm = 65536;
constexpr int kRegistersPerThread = 128;

}  // namespace

int exact_shared_bytes(const Desc& d, const ExactTiles& t) {
  const int K = static_cast<int>(d.K), window = std::max(most_steps(d), 1);
  const int state = t.threads / 2 * K * static_cast<int>(size_of(d.state_dtype));
  const int vectors = d.op != Op::fold ? 4 : d.kind == MixerKind::kda ? 3 : 1;
  const int of_token = t.vector_buffers * (vectors * K * 4 + 16) + 2 * t.threads;  // vectors, scalars; v
  constexpr int kLineBuffers = 3, kBarrierBytes = 16;
  return state + window * of_token + t.raw_steps * 512 +
         kLineBuffers * (t.heads_of_line * window * 8 + kExactLineBytes) + t.vector_buffers * kBarrierBytes;
}

ExactTiles exact_tiles(const Desc& d, const DeviceProperties& device) {
  ExactTiles best;
  for (const int threads : {256, 128, 64, 32}) {
    const int rows = threads / 2;
    if (d.V % rows != 0) continue;
    ExactTiles t;
    t.threads = threads;
    t.v_parts = static_cast<int>(d.V / rows);
    t.heads = d.layers * d.rows * d.HV;
    // A warp makes the vectors of several steps of a head if there are few warps. They are not to wait for memory one
    // after the other; behind many warps that goes unseen.
    const int warps = threads / 32;
    const int all = (std::max(most_steps(d), 1) + warps - 1) / warps * warps;
    t.raw_steps = threads == kExactThreads ? warps : all;
    // Shared memory depends on how many heads a block has at most, which depends on how many blocks fit.
    const auto fits = [&](int blocks_per_sm, int vector_buffers) {
      const int64_t resident = std::max<int64_t>(1, static_cast<int64_t>(device.sms) * blocks_per_sm / t.v_parts);
      t.blocks_per_sm = blocks_per_sm;
      t.vector_buffers = vector_buffers;
      t.blocks = static_cast<int>(std::clamp<int64_t>(t.heads, 1, resident));
      t.heads_of_line = static_cast<int>(std::min<int64_t>(d.HV, (t.heads + t.blocks - 1) / t.blocks));
      t.shared_bytes = exact_shared_bytes(d, t);
      return t.shared_bytes <= device.shared_bytes_per_block &&
             blocks_per_sm * (t.shared_bytes + kReservedSharedBytes) <= device.shared_bytes_per_sm;
    };
    const auto fit = [&] {
      int blocks_per_sm = kRegistersPerSm / (threads * kRegistersPerThread);
      while (blocks_per_sm >= 1 && !fits(blocks_per_sm, 3) && !fits(blocks_per_sm, 2)) --blocks_per_sm;
      return blocks_per_sm > 0;
    };
    if (!fit()) {
      t.raw_steps = warps;
      if (!fit()) continue;  // does not fit at all
    }
    best = t;
    // Smaller tiles only while there are too few to occupy every multiprocessor, and while a warp is left for each of a
    // head's tokens: making a token's vectors takes longer than loading twice the rows.
    const int warps_if_smaller = threads / 64;
    if (t.heads * t.v_parts >= device.sms || threads <= 64 || warps_if_smaller < std::min(most_steps(d), 8)) break;
  }
  return best;
}

DirectTiles direct_tiles(const Desc& d, const DeviceProperties& device) {
  const auto tiles = [&](int warps) {
    const int rows = warps * kDirectWarpRows;
    return DirectTiles{warps, static_cast<int>((d.V + rows - 1) / rows)};
  };
  // Every block prepares all tokens of its row. So blocks are smaller only while that keeps more multiprocessors busy,
  // and while there is a warp for each token.
  DirectTiles t = tiles(kDirectWarps);
  while (t.warps > 1 && d.window <= t.warps / 2 && 2 * d.rows * d.HV * t.v_parts <= device.sms) t = tiles(t.warps / 2);
  return t;
}

int64_t direct_heads(const Desc& d, const DeviceProperties& device) {
  // Measured on an H200 (docs/notes/2026-11-30-direct.md), in blocks of 32 rows of V for each multiprocessor, of which
  // three or four run there at a time. Each token of a window costs a block the same time again.
  const bool kda = d.kind == MixerKind::kda;
  int64_t blocks = kda ? 3 : 4;
  if (d.window == 1) blocks = kda && d.state_dtype != DType::f32 ? 6 : 8;
  if (d.numerics == Numerics::fast) {  // cuda.fast is to be beaten
    blocks = kda ? (d.state_dtype == DType::f32 ? 3 : 2) : d.window <= 2 ? 2 : 0;
  }
  const int64_t parts = (d.V + kDirectWarps * kDirectWarpRows - 1) / (kDirectWarps * kDirectWarpRows);
  return device.sms * blocks / parts;
}

FastTiles fast_tiles(const Desc& d, const DeviceProperties& device) {
  FastTiles t;
  // All of V in a block prepares the tokens only once; halves keep more multiprocessors busy with a small batch.
  const bool enough = d.rows * d.HV >= 2 * device.sms;
  const bool whole = enough && d.K == 128 && d.V % 128 == 0 && d.state_dtype != DType::f16;
  t.rows = whole ? 128 : kFastRows;
  t.v_parts = static_cast<int>(d.V / t.rows);
  t.tokens = d.window <= 4 ? 4 : d.window <= 8 ? 8 : kFastTokens;
  if (whole && d.kind == MixerKind::gdn && t.tokens < kFastTokens) {
    const int64_t of_key = d.HV / d.H, blocks = d.rows * d.HV * t.v_parts;
    for (int heads = kFastHeadsOfBlock; heads > 1 && t.heads == 1; --heads) {
      if (of_key % heads == 0 && blocks / heads >= 2 * device.sms) t.heads = heads;
    }
  }
  return t;
}

bool exact_beats_fast(const Desc& d, const DeviceProperties& device) {
  constexpr int kHeads = 16;   // of a multiprocessor: slower at 8, faster at 31
  if (d.ring_u) return false;  // which cuda.fast alone keeps
  return d.kind == MixerKind::kda && d.state_dtype == DType::f32 && d.window <= 2 && d.K == 128 &&
         d.rows * d.HV >= int64_t{kHeads} * device.sms;
}

}  // namespace ringfold::cuda
