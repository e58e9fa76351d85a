// One benchmark's tensors, on any device, and its calls.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/buffer.h"
#include "bench/cases.h"
#include "ringfold/ringfold.h"

namespace ringfold::bench {

/// Those from qkv on belong to a whole layer, and are empty elsewhere.
enum class Field : uint8_t {
  q,
  k,
  v,
  a,
  b,
  out,
  state,
  ring_k,
  ring_v,
  ring_gate,
  ring_beta,
  conv_state,
  conv_ring,
  A_log,
  dt_bias,
  qkv,
  z,
  conv_weight,
  norm_weight,
  conv_out,  ///< of the chain of three calls, as is `mixed`
  mixed
};
inline constexpr int kFields = 21;
inline constexpr Field kInputs[] = {Field::q, Field::k, Field::v, Field::a, Field::b};
inline constexpr Field kRing[] = {Field::ring_k, Field::ring_v, Field::ring_gate, Field::ring_beta, Field::conv_ring};
const char* to_string(Field field);

/// How a case's tensors lie in memory: inputs and outputs [B,T,..], pools [layers,slots,..], all packed. The slots are
/// `sets` times those of one call.
struct Layout {
  Desc desc;  ///< `window` is also the number of ring rows
  int64_t layers = 1, sets = 1;
  DType out = DType::bf16;

  int64_t slots() const { return sets * desc.rows; }
  bool pooled(Field f) const { return f >= Field::state && f <= Field::conv_ring; }
  DType dtype(Field f) const;
  /// Bytes of one row's part (inputs, outputs), of one slot's (pools), or of all (parameters).
  int64_t item_bytes(Field f) const;
  int64_t items(Field f) const;
};

/// Memory for cases of one shape, which may share it: every field holds random values of its own range, whatever
/// the layout.
class Tensors {
 public:
  explicit Tensors(Device device = Device::cpu, void* stream = nullptr);
  /// Room for each of the layouts, which agree in shape, dtypes and device. Without `drawn` the contents are undefined.
  Status allocate(std::span<const Layout> layouts, bool drawn);
  Buffer& operator[](Field f) { return buffers_[static_cast<size_t>(f)]; }
  Device device() const { return device_; }
  void* stream() const { return stream_; }

 private:
  Device device_;
  void* stream_;
  std::vector<Buffer> buffers_;  // one for each field
};

/// Random bytes: `shift` plus or minus up to `scale`.
Status draw(Buffer* buffer, DType type, float scale, float shift, uint64_t seed, int64_t most_drawn);

/// Who computes: `fold` for the second half of a whole step, `chain` for the recurrence among the three calls that make
/// a layer (conv and norm are left to dispatch).
struct Impls {
  std::string call = {}, fold = {}, chain = {};
};

/// The calls of one case. Consecutive ones go to different slots, so that they find no state in the cache.
class Rig {
 public:
  Rig(const Case& c, const Layout& layout, const Impls& impls, Tensors* tensors);
  Status prepare();

  /// One call of the case, on set `index % sets`.
  Status call(int64_t index);
  /// The same layer by the best three calls, for a case that is one whole layer.
  Status chain(int64_t index);
  /// One of its operations: `part` is the case's `desc`, on one layer, or its `fold`, on all.
  Status operate(const Desc& part, std::string_view impl, int64_t set, int64_t layer);
  /// The set that the fold of a whole step takes when the verify takes `set`: one that is not in the cache.
  int64_t far_set(int64_t set) const { return case_.fold ? (set + layout_.sets / 2) % layout_.sets : set; }

  /// From now on, set i is what was set i + by.
  Status turn(int64_t by);
  int32_t slot(int64_t set, int64_t row) const { return slots_[static_cast<size_t>(set * layout_.desc.rows + row)]; }
  /// Where the calls read them.
  const int32_t* slot_ids(int64_t set) const;

  /// Which item of a field belongs to a row of a set.
  int64_t item(Field f, int64_t layer, int64_t set, int64_t row) const;
  const Case& subject() const { return case_; }
  const Layout& layout() const { return layout_; }
  const Impls& impls() const { return impls_; }
  Tensors& tensors() { return *tensors_; }
  /// act_dtype, unless set to f32.
  void set_out(DType out) { layout_.out = out; }

 private:
  TensorView view(Field f, std::initializer_list<int64_t> shape);
  TensorView ints(const Buffer& buffer, int64_t at, int64_t n) const;
  Status layer(const Desc& part, std::string_view impl, int64_t set);
  Ring ring();    ///< of all layers
  Mixer mixer();  ///< of any layer
  /// What verify and decode take, but for q, k and v.
  VerifyArgs window_args(const Desc& part, std::string_view impl, int64_t set, int64_t layer);
  Status fold(const Desc& part, std::string_view impl, int64_t set);

  Case case_;
  Layout layout_;
  Impls impls_;
  Tensors* tensors_;
  std::vector<int32_t> slots_;
  Buffer slot_ids_, accepted_;
};

}  // namespace ringfold::bench
