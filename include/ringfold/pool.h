// The slot pool: states, rings, conv windows and cursors of all recurrent layers of one model.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "ringfold/conv.h"
#include "ringfold/decode.h"
#include "ringfold/fold.h"
#include "ringfold/layer.h"
#include "ringfold/verify.h"

namespace ringfold {

struct CommitArgs;

/// What a pool is made for. All layers of one pool have the same shape; a model that mixes shapes uses one pool for
/// each.
struct PoolConfig {
  int64_t layers = 1;
  int64_t slots = 0;
  int64_t H = 0, HV = 0, K = 0, V = 0;
  MixerKind kind = MixerKind::gdn;
  DType state_dtype = DType::f32;
  DType act_dtype = DType::f32;  ///< dtype of ring k and v, conv windows and conv inputs
  int64_t ring_rows = 0;         ///< 1 .. kMaxWindow; on_commit: the largest window (drafts + 1), else more than that
  /// 0: each slot has a ring of its own. More: that many rings, which calls name by `ring_ids` (the row of a request),
  /// so that slots which only hold a cached prefix need none (RingOwners). With fold policy on_commit alone.
  int64_t rings = 0;
  int64_t max_window = 0;     ///< largest window; 0: ring_rows with on_commit, half of them with other fold policies
  int64_t conv_channels = 0;  ///< C of the short conv; 0: the layers have none
  int64_t conv_width = 4;     ///< W, 2 .. 4
  bool qk_l2norm = true;
  StateRounding state_rounding = StateRounding::per_commit;
  FoldPolicy fold_policy = FoldPolicy::on_commit;
  bool ring_u = false;  ///< lazy only: the ring keeps u (Ring::u), for verify with `fast` numerics
  /// KDA only: the ring keeps the raw gate input in this dtype, that of window.a, in place of g (Ring::a). Then
  /// Pool::set_mixers comes before the first fold.
  std::optional<DType> ring_a = {};
  /// Where the slots live. cuda: in memory of the device that is current when the pool is created, which has to be
  /// current in every later call too.
  Device device = Device::cpu;
};

/// Handle of an acquired slot. The generation changes with every acquire, so an old handle is recognised.
struct Slot {
  int32_t id = -1;
  int32_t generation = 0;
  bool operator==(const Slot&) const = default;
};

/// Exact byte counts of a pool's buffers. Those of a CUDA pool are on the device, but for the list of free slots, a
/// copy of the generations and the three int32 per slot, which the host keeps.
struct PoolBytes {
  size_t state = 0;    ///< checkpoints of all layers and slots
  size_t ring = 0;     ///< k, v, g or a, beta, u rows; with `a` the gates' parameters, 4 HV (K+1) bytes for each layer
  size_t conv = 0;     ///< conv windows and recorded conv inputs
  size_t cursors = 0;  ///< pending lengths, histories, generations, the list of free slots
  size_t scratch = 0;  ///< one slot's worth and three int32 per slot, for cyclic copies; lists of due rows on a device
  size_t total() const { return state + ring + conv + cursors + scratch; }
  bool operator==(const PoolBytes&) const = default;
};

/// The bytes that a pool of this description allocates; asks no device. Errors: invalid_argument, unsupported as
/// Pool::create, but for a device that is not there.
Status pool_bytes(const PoolConfig& config, PoolBytes* bytes);

/// Owns the memory; allocates only in create(). Not thread-safe: calls on one pool, and compute calls on its views,
/// must be ordered by the caller. Slot 0 is an ordinary slot.
///
/// On a CUDA pool acquire, release, reset and copy launch a kernel for every 128 slots, whatever the number of layers,
/// in the pool's stream; they neither wait for it nor allocate. The bookkeeping of slots is done when they return, so
/// handles can be used at once. materialise, export_slot and import_slot wait for the stream. Any call may return
/// `internal` with the device's error; the bookkeeping is as before the call then.
class Pool {
 public:
  /// Errors: invalid_argument, unsupported (a device that is not there), out_of_memory.
  static Status create(const PoolConfig& config, std::unique_ptr<Pool>* pool);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const PoolConfig& config() const;
  PoolBytes bytes() const;
  int64_t free_slots() const;

  /// The stream (cudaStream_t) of all calls that move or read slots; null, as at first: the default stream. The caller
  /// orders it with the streams of compute calls on the pool, and with the stream set before. A CPU pool ignores it.
  void set_stream(void* stream);

  /// The gates of all layers, one mixer for each: with PoolConfig::ring_a they are copied into the pool, for commit,
  /// settle and materialise, which refuse to fold without them, and for bind(). A_log and dt_bias are on the pool's
  /// device; softplus_beta, softplus_threshold and lower_bound are the same in all. The call waits for the stream. What
  /// it replaces is lost, so no window or history may wait that other values wrote. Errors: invalid_argument (also
  /// without ring_a).
  Status set_mixers(std::span<const Mixer> mixers);

  /// Folds the history of these slots into their checkpoints, in all layers: then `state()` holds the logical states. A
  /// pending window goes on waiting. With fold policy on_commit there is nothing to do. No slot twice is asked for.
  Status settle(std::span<const Slot> slots);

  /// Takes a free slot: state, conv window, ring and cursors are zero, nothing is pending. (Rings keyed by request row
  /// keep what they hold: no window of an earlier tenant is pending, so nobody reads it.)
  /// Error out_of_memory when none is free; the pool is unchanged then.
  template <class Pointer>
  requires std::is_same_v<std::remove_cvref_t<Pointer>, Slot*>  // an array would convert to that
      Status acquire(Pointer&& slot) {
    return acquire(std::span<Slot>(slot, 1));
  }
  /// All or none.
  Status acquire(std::span<Slot> slots);
  /// The same for an array.
  template <size_t N>
  Status acquire(Slot (&slots)[N]) {
    return acquire(std::span<Slot>(slots));
  }
  /// Gives a slot back. The handle, and any window pending in it, are void from here on.
  Status release(Slot slot);
  /// All or none; no slot twice.
  Status release(std::span<const Slot> slots);
  /// As if acquired anew, under the same handle: everything zero, nothing pending.
  Status reset(Slot slot);
  /// All or none.
  Status reset(std::span<const Slot> slots);

  /// Copies state, conv window, ring, pending window and history from src[i] to dst[i], all at once: every source is
  /// read as it was before the call, so chains (1->2, 2->3) and cycles (1->2, 2->1) do what they say. No dst twice.
  /// With rings keyed by request row: state and conv window; no window is pending in dst[i] then.
  Status copy(std::span<const Slot> src, std::span<const Slot> dst);

  /// Writes the logical state of `src` after `n` rows of its pending window to `dst` (state and conv window; nothing
  /// pending there, and no history). `src` is not disturbed. n = 0 is the state without the window. On a CUDA pool n >
  /// 0 is compared with the window on the host, so the call waits for the stream, then launches.
  Status materialise(Slot src, int32_t n, Slot dst);

  /// A slot as bytes: state, conv window, rows of history and window, and cursors, with a header that describes them.
  /// For off-load, pre-emption and hand-over between machines (little-endian), and between CPU and CUDA pools: the
  /// bytes do not depend on the device. `bytes` is host memory. With rings keyed by request row: state and conv window,
  /// and never a window; such bytes and those of other pools are not taken for each other.
  size_t export_size() const;
  Status export_slot(Slot slot, std::span<std::byte> bytes) const;
  /// The opposite, into an acquired slot of this or another pool of equal shape and dtypes. Everything in `bytes` is
  /// checked before the first byte of the pool changes. History and pending rows come along, so a commit may follow
  /// (with rings keyed by request row nothing is pending then).
  Status import_slot(std::span<const std::byte> bytes, Slot slot);

  /// Views for the compute calls. With a layer: [slots,...]; without: [layers,slots,...] (rings keyed by request row:
  /// [rings,...] for what is in a ring). With a fold policy other than
  /// on_commit `state` holds checkpoints: accepted rows of the history are missing in it (settle, materialise).
  TensorView state() const;
  TensorView state(int64_t layer) const;
  Ring ring() const;
  Ring ring(int64_t layer) const;
  TensorView pending() const;  ///< i32 [layers,slots]
  TensorView pending(int64_t layer) const;
  History history() const;  ///< views i32 [layers,slots]; none with on_commit
  History history(int64_t layer) const;
  RingOwners owners() const;  ///< none unless rings are keyed by request row
  RingOwners owners(int64_t layer) const;
  RingOwners conv_owners() const;  ///< those of the conv; likewise
  RingOwners conv_owners(int64_t layer) const;
  TensorView conv_state() const;  ///< [layers,slots,C,W-1]
  TensorView conv_state(int64_t layer) const;
  TensorView conv_ring() const;  ///< [layers,slots,max_window,C]
  TensorView conv_ring(int64_t layer) const;
  TensorView conv_pending() const;  ///< i32 [layers,slots]
  TensorView conv_pending(int64_t layer) const;
  TensorView generations() const;  ///< i32 [slots]

  /// Fills state, ring, pending, history (and what goes with them) of a call on `layer`; the caller adds the window
  /// (ring_ids too, where rings are keyed by request row) and
  /// the mixer. Where set_mixers gave its gate (A_log, dt_bias, softplus_.., lower_bound), that is filled in too.
  void bind(int64_t layer, VerifyArgs* args) const;
  void bind(int64_t layer, DecodeArgs* args) const;
  void bind(int64_t layer, ConvArgs* args) const;
  void bind(int64_t layer, LayerArgs* args) const;

 private:
  friend Status commit(Pool& pool, const CommitArgs& args);
  struct Impl;
  explicit Pool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringfold
