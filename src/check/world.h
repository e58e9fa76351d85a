// The small world that a contract body runs in: parameters, token sequences, memory for states and rings, batches.
// Everything is hostile by default: poisoned, guarded, unused slots and gaps full of NaN.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check/check.h"
#include "check/judge.h"
#include "check/mirror.h"
#include "check/support.h"
#include "ref/oracle.h"

namespace ringfold::check {

/// What a ring keeps of the gate: a or g.
inline const TensorView& gate_of(const Ring& ring) { return ring.a.empty() ? ring.g : ring.a; }

/// Slots of a world's pool.
inline int64_t slots_of(const Config& config) { return config.rows + 2; }
/// With Config::by_row there are as many rings as slots, but a slot uses the one at the other end: an id that is taken
/// for the other kind is in range, and wrong. A slot that is none has no ring either.
inline int32_t ring_of(const Config& config, int32_t slot) {
  const auto slots = static_cast<int32_t>(slots_of(config));
  return slot < 0 || slot >= slots ? -7 : slots - 1 - slot;
}
std::vector<int32_t> rings_of(const Config& config, const std::vector<int32_t>& slots);
/// [rings,..] as [slots,..] and the other way round; the dimension is the d-th.
TensorView rings_by_slot(const Config& config, const TensorView& rings, int d);
/// Owners of rings keyed by request row, [layers,rings] and [layers,slots] (without `layers`: of one layer), poisoned.
struct OwnerBuffers {
  explicit OwnerBuffers(const Config& config, int64_t slots = 0, int64_t layers = 0);
  RingOwners views() const;
  RingOwners views(int64_t layer) const;
  void intact(Judge& judge) const;
  Buffer slot_of_ring, ring_of_slot;  ///< without by_row: none
};

/// Parameters of one layer, and what the implementation under test is called.
class Params {
 public:
  Params(const Config& config, int64_t layer);
  Mixer mixer() const;
  oracle::Layer oracle_layer() const;
  Buffer A_log, dt_bias;
  std::optional<float> lower_bound;
  float softplus_beta = 1.0f, softplus_threshold = 20.0f;

 private:
  Config config_;
};

/// n tokens of one layer, packed, in the dtypes of the config. All values differ per token, head and layer.
struct Sequence {
  Sequence(const Config& config, int64_t tokens, int64_t layer, int64_t stream);
  Buffer q, k, v, a, b;  ///< [n,H,K] .. [n,HV]
  int64_t tokens = 0;
  oracle::Token token(int64_t t) const;
};

/// Which tokens a row of a batch gets. `sequence` null: the row's inputs stay poisoned.
struct Row {
  const Sequence* sequence = nullptr;
  int64_t first = 0, count = 0;
  int32_t slot = -1;
};

/// The inputs, output and statuses of one call. Dense and strided batches need rows of equal length.
class Batch {
 public:
  Batch(const Config& config, Layout layout, std::vector<Row> rows, std::optional<DType> out_dtype = {});
  Window window;
  TensorView out;         ///< like v
  TensorView row_status;  ///< i32 [B]
  TensorView snapshots;   ///< state dtype, like v with K appended; absent until want_snapshots()
  const std::vector<Row>& rows() const { return rows_; }
  int64_t first_token(size_t row) const { return first_token_[row]; }
  /// [tokens,HV,V], whatever the layout.
  TensorView out_tokens() const;
  TensorView out_row(size_t row) const;              ///< [count,HV,V]
  TensorView snapshot(size_t row, int64_t t) const;  ///< [HV,V,K]
  void want_snapshots();
  void guards(Judge& judge) const;

 private:
  void place_inputs();
  Config config_;
  Layout layout_;
  std::vector<Row> rows_;
  std::vector<int64_t> first_token_;
  int64_t tokens_ = 0;
  std::vector<Buffer> buffers_;
};

/// States, rings and cursors of `layers` x `slots`, caller-owned (no Pool).
class Store {
 public:
  Store(const Config& config, int64_t slots, int64_t ring_rows);
  /// Random states in these slots of all layers; every other slot, and every ring row, poisoned; nothing pending.
  void fill(const std::vector<int32_t>& slots, int64_t stream = 0);
  TensorView state() const { return state_.view(); }
  TensorView state(int64_t layer) const { return state().at(layer); }
  TensorView state(int64_t layer, int64_t slot) const { return state(layer).at(slot); }
  /// By slot, also where rings are keyed by request row.
  Ring ring() const;
  Ring ring(int64_t layer) const;
  /// As calls take it.
  Ring ring_argument() const;
  Ring ring_argument(int64_t layer) const;
  RingOwners owners() const { return owners_.views(); }
  RingOwners owners(int64_t layer) const { return owners_.views(layer); }
  /// Row t of a slot's window: a Ring whose views are [H,K], [HV,V], ...
  Ring ring_row(int64_t layer, int64_t slot, int64_t t) const;
  TensorView pending() const { return pending_.view(); }
  TensorView pending(int64_t layer) const { return pending().at(layer); }
  int64_t slots() const { return slots_; }
  int64_t ring_rows() const { return ring_rows_; }
  /// Cursors of the fold policies that keep a history; no views with on_commit.
  History history() const;
  History history(int64_t layer) const;
  /// The state that a slot holds in truth, its history included, as it was when the store was made.
  TensorView logical(int64_t layer, int64_t slot) const;
  /// Where a slot's history begins and how long it is; zeros with on_commit.
  struct Cursors {
    int32_t base = 0, live = 0, cuts = 0;
  };
  Cursors cursors(int64_t layer, int64_t slot) const;
  void set_cursors(int64_t layer, int64_t slot, const Cursors& cursors) const;
  /// The part of a commit that moves cursors and folds nothing, by the kit's own reckoning. True where there was room:
  /// a window of the longest has to fit behind it.
  bool accept(int64_t layer, int64_t slot, int32_t n) const;
  void copy_from(const Store& other);
  /// Layer by layer, as far as both have layers.
  void copy_slot(const Store& other, int64_t from, int64_t to);
  /// All that calls may write, with names for messages.
  std::vector<std::pair<const char*, TensorView>> memory() const;
  void guards(Judge& judge) const;

 private:
  Config config_;
  int64_t slots_, ring_rows_;
  Buffer state_, ring_k_, ring_v_, ring_gate_, ring_beta_, pending_;
  Buffer base_, live_, cuts_, logical_;  ///< fold policies other than on_commit
  Buffer ring_u_;                        ///< where the config asks for it
  OwnerBuffers owners_;
  TensorView ring_k_view_, ring_v_view_, ring_gate_view_, ring_beta_view_;
};

struct RowBuffers {
  explicit RowBuffers(const std::vector<int32_t>& values, bool strided = false);
  Buffer buffer;
  TensorView view;
};

/// One config on one implementation: what most bodies start from.
class World {
 public:
  World(const Config& config, std::string_view impl);

  Config config;
  std::string impl;
  std::vector<Params> params;                    ///< per layer
  std::vector<std::vector<Sequence>> sequences;  ///< [layer][row], config.window tokens each
  std::vector<int32_t> slots;                    ///< of the rows: random order, slot 0 and the last slot among them
  std::vector<int64_t> lengths;                  ///< of the rows; all config.window unless ragged
  int64_t num_slots = 0;

  /// Does the implementation write snapshots at this config? Kernels for a device may leave them to others; a body then
  /// judges the rest.
  bool takes_snapshots() const;
  /// Random states. With a fold policy that keeps a history each slot has one, of several commits, of a length and at a
  /// place of its own in every layer.
  Store make_store(int64_t stream = 0) const;
  /// The same logical states as checkpoints, without a history: what on_commit would have.
  Store make_plain_store() const;
  bool has_history() const { return config.policy != FoldPolicy::on_commit; }
  /// Will a verify of row r fold the history? The kit's own reckoning.
  bool is_due(const Store& store, int64_t layer, size_t r) const;
  /// Points fold args of all layers at one layer.
  static void take_layer(const Store& store, int64_t layer, FoldArgs* args);
  std::vector<Row> rows(int64_t layer) const;
  Batch batch(int64_t layer) const { return Batch(config, config.layout, rows(layer)); }
  Batch batch(Layout layout, std::vector<Row> some_rows) const { return Batch(config, layout, std::move(some_rows)); }

  /// Arguments with everything bound; bodies drop or change what they test.
  VerifyArgs verify_args(const Store& store, int64_t layer, Batch& batch) const;
  DecodeArgs decode_args(const Store& store, int64_t layer, Batch& batch) const;
  FoldArgs fold_args(const Store& store, const RowBuffers& slot_ids, const RowBuffers& accepted) const;

  void verify(Judge& judge, const Store& store, int64_t layer, Batch& batch) const;
  void decode(Judge& judge, const Store& store, int64_t layer, Batch& batch) const;
  void fold(Judge& judge, const Store& store, const std::vector<int32_t>& slot_ids,
            const std::vector<int32_t>& counts) const;

  /// The state after the first n tokens of a row, by plain decoding from the store's state, [HV,V,K] packed. One token
  /// per call where rounding does not depend on grouping, one call of n tokens otherwise.
  Buffer decoded_state(Judge& judge, const Store& start, int64_t layer, size_t row, int64_t n) const;
  /// A word on where a failure is: "layer 1 row 0 token 2".
  static std::string where(int64_t layer, int64_t row, int64_t token = -1);
  bool grouping_matters() const { return config.state != DType::f32 && config.rounding == StateRounding::per_commit; }

 private:
  void add_histories(Store* store) const;
  /// The gates of the first layers, as fold takes them.
  Mixer gates(int64_t layers) const;

  Buffer A_log_, dt_bias_;                      ///< [layers,..], where the ring keeps the raw gate
  mutable std::deque<RowBuffers> ring_ids_;     ///< of fold_args
  mutable std::shared_ptr<const Store> start_;  ///< what make_store made first, where there are histories
};

}  // namespace ringfold::check
