// What a backend gets: plain structs of pointers and strides, everything already validated. CUDA kernels take them as
// they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "ringfold/status.h"
#include "ringfold/types.h"

namespace ringfold::detail {

/// Address = data + element size * (layer*layer_stride + row*row_stride + token*token_stride + head*head_stride),
/// innermost dimension packed. "row" is the batch row for inputs, Rows::ring_of for rings, the slot for states. Strides
/// in elements. Null data: absent.
struct Array {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  int64_t layer_stride = 0;
  int64_t row_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  RF_HD explicit operator bool() const { return data != nullptr; }
  RF_HD std::byte* at(int64_t layer, int64_t row, int64_t token, int64_t head) const {
    return data + static_cast<int64_t>(size_of(dtype)) *
                      (layer * layer_stride + row * row_stride + token * token_stride + head * head_stride);
  }
};

/// A strided int32 vector. Null data: absent.
struct Ints {
  int32_t* data = nullptr;
  int64_t stride = 1;

  RF_HD explicit operator bool() const { return data != nullptr; }
  RF_HD int32_t& operator[](int64_t i) const { return data[i * stride]; }
};

/// Window cursors: one int32 for each layer and slot (kNoWindow, kNotAcquired or a length). Null data: absent.
struct Cursors {
  int32_t* data = nullptr;
  int64_t layer_stride = 0;
  int64_t slot_stride = 1;

  RF_HD explicit operator bool() const { return data != nullptr; }
  RF_HD int32_t& at(int64_t layer, int64_t slot) const { return data[layer * layer_stride + slot * slot_stride]; }
};

/// Rings keyed by request row: which window lies where (RingOwners). No pointers: nobody asks.
struct OwnerParams {
  Cursors slot_of_ring;  ///< by layer and ring
  Cursors ring_of_slot;

  RF_HD explicit operator bool() const { return static_cast<bool>(slot_of_ring); }
  RF_HD void set(int64_t layer, int64_t slot, int64_t ring) const {
    write_unordered(slot_of_ring.at(layer, ring), static_cast<int32_t>(slot));
    write_unordered(ring_of_slot.at(layer, slot), static_cast<int32_t>(ring));
  }
  RF_HD bool agree(int64_t layer, int64_t slot, int64_t ring) const {
    return slot_of_ring.at(layer, ring) == slot && ring_of_slot.at(layer, slot) == ring;
  }
};

/// What becomes of a row's cursors when the call is done.
enum class CursorMove : uint8_t {
  keep,
  record,   ///< the window's length (verify)
  consume,  ///< kNoWindow (decode, fold, commit), in all layers of the call, of the track slot too
  settle,   ///< the history is in the checkpoint, the window goes on waiting (Pool::settle)
};

/// Accepted rows that are not in the checkpoint (ringfold/mixer.h). No cursors: fold policy on_commit.
struct HistoryParams {
  Cursors base, live, cuts;
  FoldPolicy policy = FoldPolicy::on_commit;
  int ring_rows = 0;
  int max_window = 0;      ///< 0: not known, and not needed
  bool by_commit = false;  ///< commit folds what is due, verify never (Ring::u)

  RF_HD explicit operator bool() const { return static_cast<bool>(base); }
};

/// The rows of a call: which slots, how many tokens each, which take part.
struct Rows {
  int64_t rows = 0;                     ///< B
  int64_t layers = 1;                   ///< number of entries of layer_list, or of all layers
  int64_t slots = 0;                    ///< of the pool
  int window = 0;                       ///< dense window length
  int64_t total_tokens = 0;             ///< of ragged inputs
  int64_t longest = 0;                  ///< longest window, or largest number of accepted rows, that a row may have
  const int32_t* layer_list = nullptr;  ///< in host memory; null: 0 .. layers-1
  void* stream = nullptr;               ///< CUDA only

  Ints slot_ids;
  Ints dst_slot_ids;              ///< optional: slot that is written instead (fold, conv_commit)
  Ints cu_seqlens;                ///< ragged windows; null: dense, `window` tokens each
  Ints num_accepted;              ///< fold, conv_commit
  Ints track_slots, track_steps;  ///< fold, conv_commit; optional
  Cursors pending;                ///< optional
  HistoryParams history;          ///< optional; then there is `pending`
  bool needs_window = true;       ///< accepted rows: a slot without a pending window is refused
  bool deferred = false;          ///< fold: a row whose history has room for the accepted rows is not folded
  /// Devices only, optional: number of lines that are folded, then each one's layer index * rows + row. Others are
  /// passed over.
  int32_t* due = nullptr;
  int64_t most_due = 0;                ///< lines that there is room for
  Cursors conv_pending;                ///< of a layer or of a pool with conv windows: judged together with `pending`
  Ints generations;                    ///< commit only, optional: those of the handles
  Ints current_generations;            ///< commit only: those of the slots
  CursorMove move = CursorMove::keep;  ///< of the rows that are done
  Ints row_status;                     ///< optional: where judging leaves its verdicts
  Ints judged;                         ///< optional: verdicts to go by; only rows that are done take part
  Ints ring_ids;                       ///< optional: rings keyed by request row. Null: by slot
  int64_t rings = 0;                   ///< with ring_ids: how many there are
  OwnerParams owners, conv_owners;     ///< with ring_ids and cursors

  RF_HD int64_t layer(int64_t i) const { return layer_list ? layer_list[i] : i; }
  RF_HD bool live(int64_t row) const { return slot_ids[row] >= 0 && (!judged || judged[row] == 0); }
  /// Tokens of a row; 0 where the row was refused for its bounds, so that nobody touches what they point at.
  RF_HD int64_t tokens(int64_t row) const {
    if (judged && judged[row] == static_cast<int32_t>(RowStatus::bad_window_bounds)) return 0;
    return asked_tokens(row);
  }
  /// The same by the caller's arrays alone.
  RF_HD int64_t asked_tokens(int64_t row) const {
    if (num_accepted) return num_accepted[row];
    return cu_seqlens ? cu_seqlens[row + 1] - cu_seqlens[row] : window;
  }
  /// Where row `row` of a window argument begins: (row, token) for Array::at.
  RF_HD int64_t window_row(int64_t row) const { return cu_seqlens ? 0 : row; }
  RF_HD int64_t window_token(int64_t row) const { return cu_seqlens ? cu_seqlens[row] : 0; }
  /// Where a row's ring lies: what stands for the slot in the address of all that is in a ring.
  RF_HD int64_t ring_of(int64_t row) const { return ring_ids ? ring_ids[row] : slot_ids[row]; }
  /// The slot that is written.
  RF_HD int64_t destination(int64_t row) const { return dst_slot_ids ? dst_slot_ids[row] : slot_ids[row]; }
  /// The slot that gets a snapshot; negative: none.
  RF_HD int64_t track_slot(int64_t row) const {
    return slot_ids[row] >= 0 && track_slots && track_slots[row] >= 0 && track_steps[row] >= 0 ? track_slots[row] : -1;
  }
};

/// verify, snapshot verify, decode and fold are one recurrence with different sources and sinks.
struct RecurrenceParams : Rows {
  int H = 0, HV = 0, K = 0, V = 0;
  int max_window = 0;  ///< upper bound of every row's tokens, a history apart
  int threads = 0;
  int v_parts = 1;  ///< from the plan

  // Gate and normalisation.
  MixerKind kind = MixerKind::gdn;
  bool qk_l2norm = true;
  bool safe_gate = false;
  float softplus_beta = 1, softplus_threshold = 20, lower_bound = 0, scale = 1;
  const float* A_log = nullptr;    ///< [HV]; null for a fold of rings that keep g
  const float* dt_bias = nullptr;  ///< [HV] or [HV,K], packed; may be null
  int64_t dt_bias_head_stride = 0;
  int64_t A_log_layer_stride = 0, dt_bias_layer_stride = 0;  ///< fold; 0 otherwise

  // Source: a window (q, k, v, a, b) or, for fold, the ring alone.
  bool from_ring = false;
  Array q, k, v, a, b;  ///< a: head_stride is 1 for GDN
  // Ring: written from a window (may be absent), or read by fold. With a history it is read by all.
  Array ring_k, ring_v, ring_beta;
  Array ring_gate;        ///< g, or a
  bool raw_gate = false;  ///< ring_gate holds a (KDA)
  Array ring_u;           ///< optional

  // Sinks.
  Array out;        ///< absent for fold
  Array snapshots;  ///< [tokens,HV,V,K] as (row, token, head); rows of V are V-strided below
  int64_t snapshot_v_stride = 0;
  bool write_state = false;  ///< decode and fold; verify writes where a history is due (core/history.h)

  // The pool. Row v of head h of slot s: data + size * (layer*layer_stride + s*row_stride + h*head_stride +
  // v*v_stride).
  Array state;
  int64_t state_v_stride = 0;
  StateRounding rounding = StateRounding::per_commit;

  RF_HD const float* A_log_of(int64_t layer) const { return A_log + layer * A_log_layer_stride; }
  RF_HD const float* dt_bias_of(int64_t layer) const {
    return dt_bias ? dt_bias + layer * dt_bias_layer_stride : nullptr;
  }
  /// Does the window go to the ring?
  RF_HD bool records() const { return ring_k && move == CursorMove::record; }
};

struct ConvParams : Rows {
  int64_t channels = 0;
  int width = 4;
  bool silu = true;
  bool write_state = false;  ///< conv_decode
  int threads = 0;

  Array x, out;  ///< (row, token); channels packed
  const std::byte* weight = nullptr;
  DType weight_dtype = DType::f32;
  int64_t weight_stride = 0;        ///< between channels
  const std::byte* bias = nullptr;  ///< packed; may be null
  DType bias_dtype = DType::f32;

  Array state;  ///< (layer, slot); then channel and tap strides
  int64_t state_channel_stride = 0, state_tap_stride = 0;
  Array ring;  ///< (layer, ring, ring row); channels packed; may be absent
};

/// Neighbouring channels of one row of a conv.
struct ConvPiece {
  int64_t slot = 0, ring = 0, tokens = 0;
  int64_t first = 0;             ///< channel
  int n = 0;                     ///< channels
  const std::byte* x = nullptr;  ///< input of token 0 and channel `first`
  int64_t x_step = 0;            ///< bytes from token to token
  std::byte* out = nullptr;
  int64_t out_step = 0;
};

struct NormParams {
  void* stream = nullptr;  ///< CUDA only
  int64_t tokens = 0, heads = 0;
  int V = 0;
  bool silu_gate = true;
  float eps = 1e-6f;
  int threads = 0;
  Array x, z, out;  ///< (token, head)
  const std::byte* weight = nullptr;
  DType weight_dtype = DType::f32;
};

/// verify_layer, decode_layer: a recurrence whose q, k and v are projections that the conv has yet to see, and whose
/// `out` is the norm's.
struct LayerParams : RecurrenceParams {
  /// Its rows are those of the recurrence. `x` is absent; of `out` only the dtype is set, which the recurrence reads.
  ConvParams conv;
  /// z and out are (row, token, head). Of `x` only the dtype is set: what the mixer's output is rounded to.
  NormParams norm;
};

}  // namespace ringfold::detail
