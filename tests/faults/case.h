// One layer with every tensor in a guarded buffer, for tests that set single values; and loops over implementations.
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <string_view>
#include <vector>

#include "ringfold/ringfold.h"
#include "support/buffers.h"
#include "trace/rig.h"

namespace ringfold::test {

struct CaseShape {
  MixerKind kind = MixerKind::gdn;
  int64_t H = 1, HV = 1, K = 8, V = 8;
  int64_t B = 1, T = 1;
  int64_t slots = 1, rows = 0;  ///< rows of the ring; 0: T
  DType act = DType::f32, gates = DType::f32, state = DType::f32, out = DType::f32;
  uint64_t seed = 1;
};

/// Row r works on slot r unless told otherwise. Inputs and states are random, the ring and the output are poisoned.
struct Case {
  explicit Case(const CaseShape& shape);

  VerifyArgs verify(std::string_view impl) const;
  DecodeArgs decode(std::string_view impl) const;
  FoldArgs fold(std::string_view impl) const;

  /// Every element of a tensor set to one value.
  static void set(const Buffer& buffer, float value) {
    fill(buffer.view(), [value] { return value; });
  }
  /// No decay at all: g = -0.
  void no_decay() { set(A_log, -200.0f); }
  /// "" if no guard word of any buffer was written.
  std::string damage() const;

  CaseShape n;
  Mixer mixer;
  Buffer q, k, v, a, b, A_log, dt_bias;
  Buffer state, out;
  Buffer ring_k, ring_v, ring_g, ring_beta;
  Buffer slot_ids, accept, status;
};

/// Every implementation of this machine, the reference included.
inline std::vector<std::string_view> impls() { return implementations(); }

/// A pool with one acquired slot per request, and what each must hold.
struct Bench {
  explicit Bench(const RigConfig& config, size_t requests);

  /// verify rows; expects success.
  StepResult verify(const std::vector<Row>& rows, std::string_view impl = {});
  StepResult decode(const std::vector<Row>& rows, std::string_view impl = {});
  /// commit; returns the statuses.
  std::vector<int32_t> commit(const std::vector<int32_t>& slots, const std::vector<int32_t>& accept,
                              const std::vector<int32_t>& track_slots = {},
                              const std::vector<int32_t>& track_steps = {}, std::string_view impl = {});
  /// State and conv window of a slot, all layers.
  Plain::State state(int32_t slot) const;
  /// What plain decoding of these tokens from zero gives.
  Plain::State plain(const std::vector<int>& tokens) const;
  std::string compare(int32_t slot, const std::vector<int>& tokens) const {
    return compare_slot(*pool, slot, plain(tokens));
  }

  Rig rig;
  Plain plain_model;
  std::unique_ptr<Pool> pool;
  std::vector<Slot> slots;
};

/// A small pool with conv for tests of whole steps.
RigConfig small_rig(MixerKind kind = MixerKind::gdn, bool safe_gate = false);

inline std::vector<int32_t> statuses(std::initializer_list<RowStatus> list) {
  std::vector<int32_t> out;
  for (RowStatus s : list) out.push_back(static_cast<int32_t>(s));
  return out;
}

}  // namespace ringfold::test
