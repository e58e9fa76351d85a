// The pool's handle, its calls, and its tensors as DLPack has them.
#include "ringfold/pool.h"

#include <fmt/format.h>

#include <cstddef>

#include "capi/arguments.h"
#include "capi/error.h"
#include "capi/handles.h"

namespace ringfold::capi {
namespace {

// Arrays of slots are passed on where they lie.
static_assert(sizeof(ringfold_slot) == sizeof(Slot) && alignof(ringfold_slot) == alignof(Slot) &&
              offsetof(ringfold_slot, id) == offsetof(Slot, id) &&
              offsetof(ringfold_slot, generation) == offsetof(Slot, generation));

std::span<Slot> slots_of(Arguments& in, const char* name, ringfold_slot* slots, size_t count) {
  const auto given = in.array(name, slots, count);
  return {reinterpret_cast<Slot*>(given.data()), given.size()};
}

std::span<const Slot> slots_of(Arguments& in, const char* name, const ringfold_slot* slots, size_t count) {
  const auto given = in.array(name, slots, count);
  return {reinterpret_cast<const Slot*>(given.data()), given.size()};
}

Slot slot_of(ringfold_slot slot) { return {.id = slot.id, .generation = slot.generation}; }

PoolConfig read(Arguments& in, const ringfold_pool_config* pointer) {
  const ringfold_pool_config c = in.required("config", pointer);
  PoolConfig config;
  if (c.layers != 0) config.layers = c.layers;
  config.slots = c.slots;
  config.H = c.H, config.HV = c.HV, config.K = c.K, config.V = c.V;
  config.ring_rows = c.ring_rows;
  config.max_window = c.max_window;
  config.conv_channels = c.conv_channels;
  if (c.conv_width != 0) config.conv_width = c.conv_width;
  config.kind = in.choice("kind", c.kind, MixerKind::kda);
  config.state_dtype = in.choice("state_dtype", c.state_dtype, DType::i32);
  config.act_dtype = in.choice("act_dtype", c.act_dtype, DType::i32);
  config.qk_l2norm = !in.flag("qk_norm", c.qk_norm);
  config.state_rounding = in.choice("state_rounding", c.state_rounding, StateRounding::per_token);
  config.fold_policy = in.choice("fold_policy", c.fold_policy, FoldPolicy::lazy);
  config.device = in.choice("device", c.device, Device::cuda);
  in.in_range("device_id", c.device_id, config.device == Device::cuda ? INT32_MAX : 0);
  config.ring_u = in.flag("ring_u", c.ring_u);
  in.in_range("reserved", c.reserved, 0);
  const DType a_dtype = in.choice("a_dtype", c.a_dtype, DType::i32);
  if (in.flag("ring_a", c.ring_a)) {
    config.ring_a = a_dtype;
  } else if (c.a_dtype != 0) {
    in.fail(invalid("a_dtype", "0 without ring_a", fmt::format("{}", c.a_dtype)));
  }
  config.rings = c.rings;
  return config;
}

ringfold_pool_config to_c(const ringfold_pool& pool) {
  const PoolConfig& c = pool.pool->config();
  ringfold_pool_config config = {};
  config.layers = c.layers;
  config.slots = c.slots;
  config.H = c.H, config.HV = c.HV, config.K = c.K, config.V = c.V;
  config.ring_rows = c.ring_rows;
  config.max_window = c.max_window;
  config.conv_channels = c.conv_channels;
  config.conv_width = c.conv_width;
  config.kind = static_cast<int32_t>(c.kind);
  config.state_dtype = static_cast<int32_t>(c.state_dtype);
  config.act_dtype = static_cast<int32_t>(c.act_dtype);
  config.qk_norm = c.qk_l2norm ? RINGFOLD_QK_L2NORM : RINGFOLD_QK_AS_GIVEN;
  config.state_rounding = static_cast<int32_t>(c.state_rounding);
  config.fold_policy = static_cast<int32_t>(c.fold_policy);
  config.device = static_cast<int32_t>(c.device);
  config.device_id = c.device == Device::cuda ? pool.device_id : 0;
  config.ring_u = c.ring_u ? 1 : 0;
  config.ring_a = c.ring_a ? 1 : 0;
  config.a_dtype = c.ring_a ? static_cast<int32_t>(*c.ring_a) : 0;
  config.rings = c.rings;
  return config;
}

ringfold_pool_bytes to_c(const PoolBytes& b) {
  ringfold_pool_bytes bytes = {};
  bytes.state = b.state;
  bytes.ring = b.ring;
  bytes.conv = b.conv;
  bytes.cursors = b.cursors;
  bytes.scratch = b.scratch;
  bytes.total = b.total();
  return bytes;
}

DLDataType to_c(DType type) {
  switch (type) {
    case DType::f32: return {kDLFloat, 32, 1};
    case DType::bf16: return {kDLBfloat, 16, 1};
    case DType::f16: return {kDLFloat, 16, 1};
    case DType::i32: break;
  }
  return {kDLInt, 32, 1};
}

/// The pool's tensors in the order of RINGFOLD_POOL_STATE, ..
std::array<TensorView, kPoolTensors> views(const Pool& pool) {
  const Ring ring = pool.ring();
  const History history = pool.history();
  const RingOwners owners = pool.owners(), conv_owners = pool.conv_owners();
  return {pool.state(),
          ring.k,
          ring.v,
          ring.g,
          ring.beta,
          pool.pending(),
          history.base,
          history.live,
          history.cuts,
          pool.conv_state(),
          pool.conv_ring(),
          pool.conv_pending(),
          pool.generations(),
          ring.u,
          ring.a,
          owners.slot_of_ring,
          owners.ring_of_slot,
          conv_owners.slot_of_ring,
          conv_owners.ring_of_slot};
}

void make_tensors(ringfold_pool* pool) {
  const auto all = views(*pool->pool);
  for (int which = 0; which < kPoolTensors; ++which) {
    const TensorView& view = all[which];
    if (view.empty()) continue;
    auto& tensors = pool->tensors[which];
    tensors.push_back({.view = view});
    const bool layered = which != RINGFOLD_POOL_GENERATIONS;
    for (int64_t i = 0; layered && i < view.shape[0]; ++i) tensors.push_back({.view = view.at(i)});
    for (PoolTensor& t : tensors) {
      t.dl.data = t.view.data;
      t.dl.device = {view.device == Device::cuda ? kDLCUDA : kDLCPU, view.device == Device::cuda ? pool->device_id : 0};
      t.dl.ndim = t.view.rank;
      t.dl.dtype = to_c(t.view.dtype);
      t.dl.shape = t.view.shape.data();
      t.dl.strides = t.view.stride.data();
    }
  }
}

/// A call on a handle, which must be there.
template <class Handle, class Call>
ringfold_status on(Handle* pool, const Call& call) {
  return guarded([&]() -> Status {
    if (pool == nullptr) return invalid("pool", "a handle", "NULL");
    return call(*pool->pool);
  });
}

template <class T>
Status missing(const char* name, const T* pointer) {
  return pointer == nullptr ? invalid(name, "a place for the result", "NULL") : Status();
}

/// A call on an array of slots.
template <class T, class Call>
ringfold_status on_slots(ringfold_pool* pool, T* slots, size_t count, const Call& call) {
  return on(pool, [&](Pool& p) -> Status {
    Arguments in;
    const auto all = slots_of(in, "slots", slots, count);
    return in.ok() ? call(p, all) : in.status();
  });
}

}  // namespace
}  // namespace ringfold::capi

using namespace ringfold;        // NOLINT(google-build-using-namespace): this file is the border
using namespace ringfold::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

ringfold_status ringfold_pool_bytes_of(const ringfold_pool_config* config, ringfold_pool_bytes* bytes) {
  return guarded([&]() -> Status {
    Arguments in;
    const PoolConfig c = read(in, config);
    in.fail(check_writable("bytes", bytes));
    if (!in.ok()) return in.status();
    PoolBytes b;
    Status status = pool_bytes(c, &b);
    if (status.ok()) write(to_c(b), bytes);
    return status;
  });
}

ringfold_status ringfold_pool_create(const ringfold_pool_config* config, ringfold_pool** pool) {
  if (pool != nullptr) *pool = nullptr;
  return guarded([&]() -> Status {
    Arguments in;
    in.fail(missing("pool", pool));
    const PoolConfig c = read(in, config);
    if (!in.ok()) return in.status();
    auto handle = std::make_unique<ringfold_pool>();
    if (Status s = Pool::create(c, &handle->pool); !s.ok()) return s;
    if (c.device == Device::cuda) handle->device_id = in.required("config", config).device_id;
    make_tensors(handle.get());
    *pool = handle.release();
    return {};
  });
}

void ringfold_pool_destroy(ringfold_pool* pool) { delete pool; }

ringfold_status ringfold_pool_get_config(const ringfold_pool* pool, ringfold_pool_config* config) {
  return on(pool, [&](const Pool&) -> Status {
    Status status = check_writable("config", config);
    if (status.ok()) write(to_c(*pool), config);
    return status;
  });
}

ringfold_status ringfold_pool_get_bytes(const ringfold_pool* pool, ringfold_pool_bytes* bytes) {
  return on(pool, [&](const Pool& p) -> Status {
    Status status = check_writable("bytes", bytes);
    if (status.ok()) write(to_c(p.bytes()), bytes);
    return status;
  });
}

ringfold_status ringfold_pool_free_slots(const ringfold_pool* pool, int64_t* count) {
  return on(pool, [&](const Pool& p) -> Status {
    Status status = missing("count", count);
    if (status.ok()) *count = p.free_slots();
    return status;
  });
}

ringfold_status ringfold_pool_set_stream(ringfold_pool* pool, void* stream) {
  return on(pool, [&](Pool& p) -> Status {
    p.set_stream(stream);
    return {};
  });
}

ringfold_status ringfold_pool_acquire(ringfold_pool* pool, ringfold_slot* slots, size_t count) {
  return on_slots(pool, slots, count, [](Pool& p, std::span<Slot> all) { return p.acquire(all); });
}

ringfold_status ringfold_pool_release(ringfold_pool* pool, const ringfold_slot* slots, size_t count) {
  return on_slots(pool, slots, count, [](Pool& p, std::span<const Slot> all) { return p.release(all); });
}

ringfold_status ringfold_pool_reset(ringfold_pool* pool, const ringfold_slot* slots, size_t count) {
  return on_slots(pool, slots, count, [](Pool& p, std::span<const Slot> all) { return p.reset(all); });
}

ringfold_status ringfold_pool_settle(ringfold_pool* pool, const ringfold_slot* slots, size_t count) {
  return on_slots(pool, slots, count, [](Pool& p, std::span<const Slot> all) { return p.settle(all); });
}

ringfold_status ringfold_pool_copy(ringfold_pool* pool, const ringfold_slot* src, const ringfold_slot* dst,
                                   size_t count) {
  return on(pool, [&](Pool& p) -> Status {
    Arguments in;
    const auto from = slots_of(in, "src", src, count), to = slots_of(in, "dst", dst, count);
    return in.ok() ? p.copy(from, to) : in.status();
  });
}

ringfold_status ringfold_pool_materialise(ringfold_pool* pool, ringfold_slot src, int32_t rows, ringfold_slot dst) {
  return on(pool, [&](Pool& p) { return p.materialise(slot_of(src), rows, slot_of(dst)); });
}

ringfold_status ringfold_pool_export_size(const ringfold_pool* pool, size_t* size) {
  return on(pool, [&](const Pool& p) -> Status {
    Status status = missing("size", size);
    if (status.ok()) *size = p.export_size();
    return status;
  });
}

ringfold_status ringfold_pool_export_slot(const ringfold_pool* pool, ringfold_slot slot, void* bytes, size_t size) {
  return on(pool, [&](const Pool& p) -> Status {
    Arguments in;
    const auto all = in.array("bytes", static_cast<std::byte*>(bytes), size);
    return in.ok() ? p.export_slot(slot_of(slot), all) : in.status();
  });
}

ringfold_status ringfold_pool_import_slot(ringfold_pool* pool, const void* bytes, size_t size, ringfold_slot slot) {
  return on(pool, [&](Pool& p) -> Status {
    Arguments in;
    const auto all = in.array("bytes", static_cast<const std::byte*>(bytes), size);
    return in.ok() ? p.import_slot(all, slot_of(slot)) : in.status();
  });
}

ringfold_status ringfold_pool_tensor(const ringfold_pool* pool, int32_t which, int64_t layer, const DLTensor** tensor) {
  return on(pool, [&](const Pool& p) -> Status {
    Arguments in;
    in.fail(missing("tensor", tensor));
    in.in_range("which", which, kPoolTensors - 1);
    if (layer != RINGFOLD_ALL_LAYERS) {
      if (which == RINGFOLD_POOL_GENERATIONS) in.fail(invalid("layer", "RINGFOLD_ALL_LAYERS", std::to_string(layer)));
      in.in_range("layer", layer, p.config().layers - 1);
    }
    if (!in.ok()) return in.status();
    const auto& tensors = pool->tensors[which];
    *tensor = tensors.empty() ? nullptr : &tensors[static_cast<size_t>(layer + 1)].dl;
    return {};
  });
}

}  // extern "C"
