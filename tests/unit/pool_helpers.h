// A small pool, and its bytes.
#pragma once

#include <memory>
#include <vector>

#include "ringfold/pool.h"
#include "support/buffers.h"

namespace ringfold::test {

inline PoolConfig small() {
  PoolConfig c;
  c.layers = 2;
  c.slots = 5;
  c.H = 1;
  c.HV = 2;
  c.K = 5;
  c.V = 3;
  c.kind = MixerKind::kda;
  c.state_dtype = DType::bf16;
  c.act_dtype = DType::f16;
  c.ring_rows = 4;
  c.conv_channels = 7;
  c.conv_width = 4;
  return c;
}

inline std::unique_ptr<Pool> make(const PoolConfig& c) {
  std::unique_ptr<Pool> pool;
  EXPECT_TRUE(succeeded(Pool::create(c, &pool)));
  return pool;
}

inline std::vector<TensorView> payload(const Pool& p) {
  std::vector<TensorView> views{p.state(), p.ring().k, p.ring().v, p.ring().g, p.ring().beta};
  if (!p.conv_state().empty()) views.insert(views.end(), {p.conv_state(), p.conv_ring()});
  return views;
}

inline std::vector<TensorView> cursors(const Pool& p) {
  std::vector<TensorView> views{p.pending()};
  if (!p.conv_pending().empty()) views.push_back(p.conv_pending());
  return views;
}

inline std::vector<TensorView> everything(const Pool& p) {
  std::vector<TensorView> views = payload(p);
  for (const TensorView& v : cursors(p)) views.push_back(v);
  return views;
}

/// All bytes of the pool, and its generations.
inline std::vector<Bytes> dump(const Pool& p) {
  std::vector<Bytes> all;
  for (const TensorView& v : everything(p)) all.push_back(pack(v));
  all.push_back(pack(p.generations()));
  return all;
}

/// All bytes of one slot, cursors included.
inline Bytes dump_slot(const Pool& p, int32_t id) {
  Bytes all;
  for (const TensorView& v : everything(p)) {
    for (int64_t layer = 0; layer < p.config().layers; ++layer) {
      const TensorView part = v.at(layer);
      const Bytes bytes = pack(slice(part, id, 1));
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
  }
  return all;
}

inline void set_window(const Pool& p, int32_t id, int32_t rows) {
  for (const TensorView& v : cursors(p)) {
    for (int64_t layer = 0; layer < p.config().layers; ++layer) set_ints(slice(v.at(layer), id, 1), {rows});
  }
}

/// Bytes of every float of a slot, distinct per slot and seed.
inline void scribble(const Pool& p, int32_t id, uint64_t seed) {
  for (const TensorView& v : payload(p)) {
    for (int64_t layer = 0; layer < p.config().layers; ++layer) {
      fill_normal(slice(v.at(layer), id, 1), mix({static_cast<int64_t>(seed), id, layer, v.shape[v.rank - 1]}));
    }
  }
}

inline std::vector<Slot> acquire_all(Pool& p) {
  std::vector<Slot> slots(static_cast<size_t>(p.free_slots()));
  EXPECT_TRUE(succeeded(p.acquire(slots)));
  return slots;
}

}  // namespace ringfold::test
