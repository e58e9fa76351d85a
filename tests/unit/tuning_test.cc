// How the tuned kernels are cut into blocks, for devices that need not be there.
#include "cuda/tuning.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "cuda/common/divisor.h"
#include "cuda/recurrence/direct.h"
#include "cuda/recurrence/exact.h"

namespace ringfold::cuda {
namespace {

constexpr int kKiB = 1024;

struct Named {
  const char* name;
  DeviceProperties device;
};

// Multiprocessors and shared memory as NVIDIA's programming guide lists them.
const Named kDevices[] = {{"H200", {9, 0, 132, 228 * kKiB, 227 * kKiB}},
                          {"A100", {8, 0, 108, 164 * kKiB, 163 * kKiB}},
                          {"8.9", {8, 9, 128, 100 * kKiB, 99 * kKiB}},
                          {"12.0", {12, 0, 128, 100 * kKiB, 99 * kKiB}}};

Desc describe(Op op, MixerKind kind, DType state, int64_t B, int64_t HV, int64_t T, int64_t K, int64_t V) {
  Desc d;
  d.op = op, d.kind = kind, d.device = Device::cuda;
  d.state_dtype = state, d.act_dtype = DType::bf16;
  d.H = d.HV = HV, d.K = K, d.V = V;
  d.rows = B, d.window = T;
  return d;
}

void for_each_request(const std::function<void(const Desc&)>& look) {
  for (const Op op : {Op::verify, Op::decode, Op::fold}) {
    for (const MixerKind kind : {MixerKind::gdn, MixerKind::kda}) {
      for (const DType state : {DType::f32, DType::bf16}) {
        for (const int64_t B : {1, 8, 32, 256, 512}) {
          for (const int64_t HV : {2, 3, 4, 12, 16, 32, 48, 64, 96}) {
            for (const int64_t T : {1, 2, 3, 4, 8, 16, 31, 32}) {
              for (const int64_t K : {64, 128}) look(describe(op, kind, state, B, HV, T, K, 128));
            }
          }
        }
      }
    }
  }
}

/// The most heads of one line (a row of a layer) in any block's range of consecutive heads.
int64_t most_heads_of_a_line(int64_t heads, int64_t blocks, int64_t HV) {
  int64_t most = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t first = heads * b / blocks, last = heads * (b + 1) / blocks;
    for (int64_t line = first / HV; line * HV < last; ++line) {
      most = std::max(most, std::min(last, (line + 1) * HV) - std::max(first, line * HV));
    }
  }
  return most;
}

/// What is wrong with these tiles; empty: nothing.
std::string fault(const Desc& d, const ExactTiles& t, const DeviceProperties& device) {
  if (t.blocks == 0) {
    // The smallest block, alone on its multiprocessor, with the fewest heads that a range may have, is too large.
    ExactTiles least{.threads = 32, .heads_of_line = 1, .vector_buffers = 2, .raw_steps = 1};
    ExactTiles most = least;
    most.heads_of_line = static_cast<int>(d.HV);
    return exact_shared_bytes(d, least) > device.shared_bytes_per_block ||
                   exact_shared_bytes(d, most) > device.shared_bytes_per_block
               ? ""
               : "refused, although it fits";
  }
  if (t.heads != d.layers * d.rows * d.HV) return "heads";
  if (t.threads < 32 || t.threads % 32 != 0 || t.threads > kExactThreads) return "threads";
  if (t.threads / 2 * t.v_parts != d.V) return "parts of V do not cover it";
  if (t.blocks < 1 || t.blocks > t.heads) return "blocks";
  if (t.blocks_per_sm < 1 || t.blocks_per_sm * t.threads * 128 > 65536) return "more registers than there are";
  if (t.shared_bytes > device.shared_bytes_per_block) return "shared memory of a block";
  if (t.blocks_per_sm * (t.shared_bytes + kKiB) > device.shared_bytes_per_sm) return "shared memory of its neighbours";
  if (t.vector_buffers != 2 && t.vector_buffers != 3) return "buffers";
  if (t.raw_steps < t.threads / 32 || t.raw_steps % (t.threads / 32) != 0) return "raw inputs of part of the warps";
  if (t.shared_bytes != exact_shared_bytes(d, t)) return "bytes of other tiles";
  if (int64_t{t.blocks} * t.v_parts > std::max(int64_t{device.sms} * t.blocks_per_sm, int64_t{t.v_parts})) {
    return "blocks wait for others";
  }
  if (t.heads_of_line < most_heads_of_a_line(t.heads, t.blocks, d.HV)) return "heads of a line";
  return "";
}

std::string words(const Named& device, const Desc& d, const ExactTiles& t) {
  return std::string(device.name) + ": " + to_string(d) + ": threads " + std::to_string(t.threads) + ", v_parts " +
         std::to_string(t.v_parts) + ", blocks " + std::to_string(t.blocks) + ", heads_of_line " +
         std::to_string(t.heads_of_line) + ", blocks_per_sm " + std::to_string(t.blocks_per_sm) + ", shared_bytes " +
         std::to_string(t.shared_bytes);
}

TEST(ExactTiles, FitTheDeviceAndCoverTheWork) {
  for (const Named& device : kDevices) {
    int served = 0, refused = 0;
    for_each_request([&](const Desc& d) {
      const ExactTiles t = exact_tiles(d, device.device);
      const std::string wrong = fault(d, t, device.device);
      if (!wrong.empty()) ADD_FAILURE() << wrong << "; " << words(device, d, t);
      ++(t.blocks > 0 ? served : refused);
      EXPECT_EQ(t, exact_tiles(d, device.device)) << "not pure";
    });
    EXPECT_GT(served, refused) << device.name;
  }
}

TEST(ExactTiles, AnyMultipleOf16RowsAndAnyLayers) {
  for (const Named& device : kDevices) {
    for (int64_t V = 16; V <= kMaxHeadDim; V += 16) {
      for (const int64_t layers : {1, 3, 30}) {
        Desc d = describe(Op::fold, MixerKind::kda, DType::f32, 7, 6, 4, 128, V);
        d.layers = layers;
        const ExactTiles t = exact_tiles(d, device.device);
        EXPECT_GT(t.blocks, 0) << words(device, d, t);
        EXPECT_EQ(fault(d, t, device.device), "") << words(device, d, t);
      }
    }
  }
}

TEST(ExactTiles, UsualWindowsAreServedEverywhere) {
  for (const Named& device : kDevices) {
    for_each_request([&](const Desc& d) {
      if (d.window > 8) return;
      const ExactTiles t = exact_tiles(d, device.device);
      EXPECT_GT(t.blocks, 0) << words(device, d, t);
    });
  }
}

TEST(ExactTiles, FewHeadsAreCutIntoPartsOfV) {
  const DeviceProperties h200;
  const ExactTiles one = exact_tiles(describe(Op::decode, MixerKind::gdn, DType::f32, 1, 2, 1, 128, 128), h200);
  EXPECT_GT(one.v_parts, 1);
  const ExactTiles many = exact_tiles(describe(Op::decode, MixerKind::gdn, DType::f32, 256, 32, 1, 128, 128), h200);
  EXPECT_EQ(many.v_parts, 1);
  EXPECT_EQ(many.blocks, 132 * 2);
}

TEST(FastTiles, CoverVAndTheWindow) {
  for (const Named& device : kDevices) {
    for_each_request([&](const Desc& request) {
      if (request.op != Op::verify || request.window > kFastTokens) return;
      Desc d = request;
      d.numerics = Numerics::fast;
      for (d.V = kFastRows; d.V <= kMaxHeadDim; d.V += kFastRows) {
        const FastTiles t = fast_tiles(d, device.device);
        EXPECT_EQ(t.rows * t.v_parts, d.V) << to_string(d);
        EXPECT_GE(t.tokens, d.window) << to_string(d);
        EXPECT_EQ(t, fast_tiles(d, device.device)) << "not pure";
      }
    });
  }
}

// Several value heads of a key head share a block where enough blocks are left, and never part of a key head's.
TEST(FastTiles, ValueHeadsOfAKeyHeadShareABlock) {
  const DeviceProperties h200;
  const auto heads = [&](int64_t B, int64_t H, int64_t HV, int64_t T, MixerKind kind = MixerKind::gdn) {
    Desc d = describe(Op::verify, kind, DType::f32, B, HV, T, 128, 128);
    d.H = H, d.numerics = Numerics::fast;
    return fast_tiles(d, h200).heads;
  };
  EXPECT_EQ(heads(256, 16, 32, 4), 2);
  EXPECT_EQ(heads(32, 16, 32, 8), 2);
  EXPECT_EQ(heads(256, 16, 48, 4), 3);
  EXPECT_EQ(heads(256, 16, 64, 4), 2) << "four are not faster";
  EXPECT_EQ(heads(256, 16, 80, 4), 1) << "five have no divisor that small";
  EXPECT_EQ(heads(16, 16, 32, 4), 1) << "256 blocks of two heads are too few";
  EXPECT_EQ(heads(256, 16, 32, 16), 1) << "no registers for it";
  EXPECT_EQ(heads(256, 32, 32, 4, MixerKind::kda), 1);
}

// With one request a block has as many warps as a window has tokens, if the rows of V allow it.
TEST(ExactTiles, SmallBatchesKeepAWarpForEachToken) {
  const DeviceProperties h200;
  for (const auto& [T, threads] : {std::pair{1, 64}, {2, 64}, {3, 128}, {4, 128}, {5, 256}, {8, 256}, {16, 256}}) {
    EXPECT_EQ(exact_tiles(describe(Op::verify, MixerKind::gdn, DType::f32, 1, 32, T, 128, 128), h200).threads, threads)
        << T;
  }
  EXPECT_EQ(exact_tiles(describe(Op::verify, MixerKind::gdn, DType::f32, 1, 32, 4, 64, 64), h200).threads, 128);
  EXPECT_EQ(exact_tiles(describe(Op::verify, MixerKind::gdn, DType::f32, 64, 32, 1, 128, 128), h200).threads, 256);
}

/// What is wrong with these tiles of the kernel without a pipeline; empty: nothing.
std::string fault(const Desc& d, const DirectTiles& t, const DeviceProperties& device) {
  if (t.warps != 1 && t.warps != 2 && t.warps != 4) return "warps";
  if (t.warps > kDirectWarps) return "more warps than the kernel has room for";
  const int64_t rows = int64_t{t.warps} * kDirectWarpRows;
  if (rows * t.v_parts < d.V || rows * (t.v_parts - 1) >= d.V) return "parts of V do not cover it, or are too many";
  if (d.window > int64_t{t.warps} * (kDirectTokens / kDirectWarps)) return "more tokens than the warps prepare";
  if (t.warps < kDirectWarps && d.window > t.warps) return "a warp prepares two tokens, where it need not";
  const int64_t blocks = d.rows * d.HV * t.v_parts;
  if (t.warps < kDirectWarps && blocks > device.sms) return "small blocks without need";
  if (t.warps > 1 && d.window <= t.warps / 2 && 2 * blocks <= device.sms) return "idle multiprocessors";
  return "";
}

TEST(DirectTiles, CoverVAndTheWindow) {
  for (const Named& device : kDevices) {
    for_each_request([&](const Desc& request) {
      if (request.op == Op::fold || request.window > kDirectTokens) return;
      Desc d = request;
      for (d.V = 16; d.V <= kMaxHeadDim; d.V += 16) {
        const DirectTiles t = direct_tiles(d, device.device);
        EXPECT_EQ(fault(d, t, device.device), "") << device.name << ": " << to_string(d) << ": warps " << t.warps;
        EXPECT_EQ(t, direct_tiles(d, device.device)) << "not pure";
      }
    });
  }
}

// What the kernel is made for: about a block for each multiprocessor, or fewer where there are too few heads for that.
TEST(DirectTiles, OneRequestOccupiesTheDevice) {
  const DeviceProperties h200;
  const auto tiles = [&](int64_t B, int64_t HV, int64_t T) {
    return direct_tiles(describe(Op::verify, MixerKind::gdn, DType::f32, B, HV, T, 128, 128), h200);
  };
  EXPECT_EQ(tiles(1, 32, 1), (DirectTiles{4, 4}));  // 128 blocks
  EXPECT_EQ(tiles(1, 32, 8), (DirectTiles{4, 4}));
  EXPECT_EQ(tiles(8, 32, 4), (DirectTiles{4, 4}));
  EXPECT_EQ(tiles(1, 16, 2), (DirectTiles{2, 8}));  // 128 blocks
  EXPECT_EQ(tiles(1, 16, 3), (DirectTiles{4, 4}));  // a warp for each token is worth more
  EXPECT_EQ(tiles(1, 4, 1), (DirectTiles{1, 16}));  // 64 blocks
}

// Where it was measured to be ahead (docs/notes/2026-11-30-direct.md), and on a device of half the size for half the
// heads.
TEST(DirectHeads, AreThoseOfSmallBatches) {
  DeviceProperties device;
  const auto heads = [&](MixerKind kind, DType state, int64_t T, Numerics numerics = Numerics::exact) {
    Desc d = describe(Op::verify, kind, state, 1, 32, T, 128, 128);
    d.numerics = numerics;
    const int64_t found = direct_heads(d, device);
    d.rows = 512;  // of which it does not depend
    EXPECT_EQ(direct_heads(d, device), found);
    return found;
  };
  constexpr MixerKind gdn = MixerKind::gdn, kda = MixerKind::kda;
  EXPECT_EQ(heads(gdn, DType::f32, 1), 264);
  EXPECT_EQ(heads(gdn, DType::bf16, 1), 264);
  EXPECT_EQ(heads(gdn, DType::f32, 2), 132);
  EXPECT_EQ(heads(gdn, DType::bf16, 8), 132);
  EXPECT_EQ(heads(kda, DType::f32, 1), 264);
  EXPECT_EQ(heads(kda, DType::f16, 1), 198);
  EXPECT_EQ(heads(kda, DType::f32, 2), 99);
  EXPECT_EQ(heads(kda, DType::bf16, 8), 99);
  EXPECT_EQ(heads(gdn, DType::f32, 2, Numerics::fast), 66);
  EXPECT_EQ(heads(gdn, DType::f32, 4, Numerics::fast), 0);
  EXPECT_EQ(heads(kda, DType::f32, 8, Numerics::fast), 99);
  EXPECT_EQ(heads(kda, DType::bf16, 8, Numerics::fast), 66);
  device.sms = 66;
  EXPECT_EQ(heads(gdn, DType::f32, 4), 66);
}

TEST(ExactBeatsFast, WithManyShortWindowsOfKda) {
  const DeviceProperties h200;
  const auto ahead = [&](MixerKind kind, DType state, int64_t B, int64_t T) {
    return exact_beats_fast(describe(Op::verify, kind, state, B, 32, T, 128, 128), h200);
  };
  EXPECT_TRUE(ahead(MixerKind::kda, DType::f32, 256, 1));
  EXPECT_TRUE(ahead(MixerKind::kda, DType::f32, 128, 2));
  EXPECT_FALSE(ahead(MixerKind::kda, DType::f32, 32, 1));
  EXPECT_FALSE(ahead(MixerKind::kda, DType::f32, 256, 4));
  EXPECT_FALSE(ahead(MixerKind::kda, DType::bf16, 256, 1));
  EXPECT_FALSE(ahead(MixerKind::gdn, DType::f32, 256, 1));
  Desc by_u = describe(Op::verify, MixerKind::kda, DType::f32, 256, 32, 1, 128, 128);
  by_u.fold_policy = FoldPolicy::lazy, by_u.ring_u = true;
  EXPECT_FALSE(exact_beats_fast(by_u, h200)) << "only cuda.fast keeps u";
}

TEST(DirectTiles, FaultsAreSeen) {
  const DeviceProperties h200;
  Desc d = describe(Op::verify, MixerKind::gdn, DType::f32, 1, 16, 2, 128, 128);
  const auto wrong = [&](int warps, int v_parts) { return fault(d, DirectTiles{warps, v_parts}, h200); };
  EXPECT_EQ(wrong(2, 8), "");
  EXPECT_EQ(wrong(4, 4), "idle multiprocessors");
  EXPECT_EQ(wrong(3, 6), "warps");
  EXPECT_EQ(wrong(2, 7), "parts of V do not cover it, or are too many");
  EXPECT_EQ(wrong(2, 9), "parts of V do not cover it, or are too many");
  d.window = 4;
  EXPECT_EQ(wrong(1, 16), "more tokens than the warps prepare");
  EXPECT_EQ(wrong(2, 8), "a warp prepares two tokens, where it need not");
  d.window = 2, d.rows = 8;
  EXPECT_EQ(wrong(2, 8), "small blocks without need");
}

// The checks above can fail.
TEST(ExactTiles, FaultsAreSeen) {
  const DeviceProperties h200;
  const Desc d = describe(Op::verify, MixerKind::gdn, DType::f32, 8, 32, 4, 128, 128);
  const ExactTiles good = exact_tiles(d, h200);
  ASSERT_EQ(fault(d, good, h200), "");
  const auto spoilt = [&](auto spoil) {
    ExactTiles t = good;
    spoil(t);
    return fault(d, t, h200);
  };
  EXPECT_EQ(spoilt([](ExactTiles& t) { t.blocks = 0; }), "refused, although it fits");
  EXPECT_EQ(spoilt([](ExactTiles& t) { t.v_parts += 1; }), "parts of V do not cover it");
  EXPECT_EQ(spoilt([](ExactTiles& t) { t.shared_bytes -= 16; }), "bytes of other tiles");
  EXPECT_EQ(spoilt([](ExactTiles& t) { t.raw_steps -= 1; }), "raw inputs of part of the warps");
  EXPECT_EQ(spoilt([&](ExactTiles& t) {
              t.heads_of_line = 0;
              t.shared_bytes = exact_shared_bytes(d, t);
            }),
            "heads of a line");
  EXPECT_EQ(most_heads_of_a_line(64, 2, 32), 32);
  EXPECT_EQ(most_heads_of_a_line(64, 1, 32), 32);
  EXPECT_EQ(most_heads_of_a_line(9, 4, 3), 3);
  EXPECT_EQ(most_heads_of_a_line(12, 5, 4), 3);
}

TEST(DirectRefusal, WhatIsLeftToOthers) {
  const Desc good = describe(Op::verify, MixerKind::kda, DType::bf16, 8, 32, 8, 128, 48);
  EXPECT_EQ(direct_refusal(good).needs, nullptr);
  const auto refused = [&](auto change) {
    Desc d = good;
    change(d);
    const char* needs = direct_refusal(d).needs;
    return std::string(needs == nullptr ? "" : needs);
  };
  EXPECT_EQ(refused([](Desc& d) { d.window = 9; }), "needs a window of at most 8 tokens");
  EXPECT_EQ(refused([](Desc& d) { d.fold_policy = FoldPolicy::lazy; }), "needs fold policy on_commit");
  EXPECT_EQ(refused([](Desc& d) { d.HV = 65536; }), "needs at most 65535 value heads");
  EXPECT_EQ(refused([](Desc& d) { d.K = 96; }), "needs K of 64 or 128");
  EXPECT_EQ(refused([](Desc& d) { d.snapshots = true; }), "writes no snapshots");
  EXPECT_EQ(refused([](Desc& d) { d.op = Op::decode, d.V = 24; }), "needs V to be a multiple of 16");
  EXPECT_EQ(refused([](Desc& d) { d.op = Op::fold, d.window = 16; }), "");  // a fold is cuda.exact's
}

TEST(DirectRefusal, WhatALayerInOneCallLeavesToOthers) {
  for (const Op op : {Op::verify_layer, Op::decode_layer}) {
    Desc good = describe(op, MixerKind::gdn, DType::f32, 4096, 32, 8, 128, 128);
    good.H = 16, good.channels = 2 * 16 * 128 + 32 * 128;
    EXPECT_EQ(direct_refusal(good).needs, nullptr);
    EXPECT_EQ(direct_yields(good).needs, nullptr) << "no other tuned kernel serves it";
    EXPECT_EQ(direct_plan(good).tasks, 4096 * 32);
    const auto refused = [&](auto change) {
      Desc d = good;
      change(d);
      const char* needs = direct_refusal(d).needs;
      return std::string(needs == nullptr ? "" : needs);
    };
    EXPECT_EQ(refused([](Desc& d) { d.window = 9; }), "needs a window of at most 8 tokens");
    EXPECT_EQ(refused([](Desc& d) { d.fold_policy = FoldPolicy::on_next_verify; }), "needs fold policy on_commit");
    EXPECT_EQ(refused([](Desc& d) { d.HV = 65536; }), "needs at most 65535 value heads");
    EXPECT_EQ(refused([](Desc& d) { d.V = 144; }), "needs V of at most 128");
    EXPECT_EQ(refused([](Desc& d) { d.V = 40; }), "needs V to be a multiple of 16");
    EXPECT_EQ(refused([](Desc& d) { d.channels = int64_t{65536} * 128; }), "needs at most 8388480 channels");
    EXPECT_EQ(refused([](Desc& d) { d.act_dtype = DType::f32; }), "needs bf16 or f16 activations");
    EXPECT_EQ(refused([](Desc& d) { d.input_alignment = 8; }), "needs q, k, v and ring rows aligned to 16 bytes");
  }
}

TEST(Divisor, DividesLikeTheMachine) {
  EXPECT_EQ(Divisor().divides(12345), 12345);
  for (const int divisor : {1, 2, 3, 4, 5, 7, 8, 12, 64, 255, 65535}) {
    for (int n = 0; n <= 65535; ++n) ASSERT_EQ(Divisor(divisor).divides(n), n / divisor) << divisor;
  }
}

TEST(ExactRefusal, WideStridesAreLeftToTheGeneralKernel) {
  Desc d = describe(Op::verify, MixerKind::gdn, DType::bf16, 8, 32, 4, 128, 128);
  d.widest_stride = INT32_MAX;
  EXPECT_EQ(exact_refusal(d).needs, nullptr);
  d.widest_stride += 1;
  ASSERT_NE(exact_refusal(d).needs, nullptr);
  EXPECT_EQ(exact_refusal(d).got, int64_t{INT32_MAX} + 1);
}

}  // namespace
}  // namespace ringfold::cuda
