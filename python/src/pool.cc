// The pool: lifecycle of slots, transfers, and views of its memory that keep it alive.
#include "python/src/pool.h"

#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace ringfold::python {
namespace {

using Handle = std::pair<int32_t, int32_t>;

std::vector<Slot> slots_of(const std::vector<Handle>& handles) {
  std::vector<Slot> slots;
  for (const auto& [id, generation] : handles) slots.push_back({.id = id, .generation = generation});
  return slots;
}

PoolConfig config_of(const nb::dict& values) {
  Arguments in(values);
  PoolConfig c;
  in.integer("layers", &c.layers);
  in.integer("slots", &c.slots);
  in.integer("H", &c.H);
  in.integer("HV", &c.HV);
  in.integer("K", &c.K);
  in.integer("V", &c.V);
  in.name("kind", kKindNames, &c.kind);
  in.name("state_dtype", kFloatNames, &c.state_dtype);
  in.name("act_dtype", kFloatNames, &c.act_dtype);
  in.integer("ring_rows", &c.ring_rows);
  in.integer("max_window", &c.max_window);
  in.integer("rings", &c.rings);
  in.integer("conv_channels", &c.conv_channels);
  in.integer("conv_width", &c.conv_width);
  in.flag("qk_l2norm", &c.qk_l2norm);
  in.name("state_rounding", kRoundingNames, &c.state_rounding);
  in.name("fold_policy", kPolicyNames, &c.fold_policy);
  in.flag("ring_u", &c.ring_u);
  if (in.has("ring_a")) in.name("ring_a", kFloatNames, &c.ring_a.emplace());
  in.name("device", kDeviceNames, &c.device);
  return c;
}

nb::dict config_as_dict(const PoolConfig& c) {
  nb::dict d;
  d["slots"] = c.slots;
  d["H"] = c.H;
  d["HV"] = c.HV;
  d["K"] = c.K;
  d["V"] = c.V;
  d["ring_rows"] = c.ring_rows;
  d["layers"] = c.layers;
  d["kind"] = to_string(c.kind);
  d["state_dtype"] = to_string(c.state_dtype);
  d["act_dtype"] = to_string(c.act_dtype);
  d["max_window"] = c.max_window;
  d["rings"] = c.rings;
  d["conv_channels"] = c.conv_channels;
  d["conv_width"] = c.conv_width;
  d["qk_l2norm"] = c.qk_l2norm;
  d["state_rounding"] = to_string(c.state_rounding);
  d["fold_policy"] = to_string(c.fold_policy);
  d["ring_u"] = c.ring_u;
  d["ring_a"] = c.ring_a ? nb::object(nb::str(to_string(*c.ring_a))) : nb::none();
  d["device"] = to_string(c.device);
  return d;
}

nb::dict bytes_as_dict(const PoolBytes& bytes) {
  nb::dict d;
  d["state"] = bytes.state;
  d["ring"] = bytes.ring;
  d["conv"] = bytes.conv;
  d["cursors"] = bytes.cursors;
  d["scratch"] = bytes.scratch;
  return d;
}

/// The pool's memory of that name, of one layer or (layer < 0) of all; empty where the pool has none of it.
TensorView view_named(const PoolObject& object, const std::string& name, int64_t layer) {
  const Pool& pool = *object.pool;
  const auto one = [&](const TensorView& all) {
    if (layer < 0 || all.empty()) return all;
    object.check_layer(layer);
    return all.at(layer);
  };
  if (name == "state") return one(pool.state());
  if (name == "ring.k") return one(pool.ring().k);
  if (name == "ring.v") return one(pool.ring().v);
  if (name == "ring.g") return one(pool.ring().g);
  if (name == "ring.beta") return one(pool.ring().beta);
  if (name == "ring.u") return one(pool.ring().u);
  if (name == "ring.a") return one(pool.ring().a);
  if (name == "pending") return one(pool.pending());
  if (name == "history.base") return one(pool.history().base);
  if (name == "history.live") return one(pool.history().live);
  if (name == "history.cuts") return one(pool.history().cuts);
  if (name == "owners.slot_of_ring") return one(pool.owners().slot_of_ring);
  if (name == "owners.ring_of_slot") return one(pool.owners().ring_of_slot);
  if (name == "conv_owners.slot_of_ring") return one(pool.conv_owners().slot_of_ring);
  if (name == "conv_owners.ring_of_slot") return one(pool.conv_owners().ring_of_slot);
  if (name == "conv_state") return one(pool.conv_state());
  if (name == "conv_ring") return one(pool.conv_ring());
  if (name == "conv_pending") return one(pool.conv_pending());
  if (name == "generations") return pool.generations();
  refuse("view", "the name of a view", "'" + name + "'");
}

nb::dlpack::dtype dtype_of(DType dtype, bool bf16_as_bits) {
  using nb::dlpack::dtype_code;
  const auto make = [](dtype_code code, uint8_t bits) {
    return nb::dlpack::dtype{static_cast<uint8_t>(code), bits, 1};
  };
  switch (dtype) {
    case DType::f32: return make(dtype_code::Float, 32);
    case DType::f16: return make(dtype_code::Float, 16);
    case DType::bf16: return make(bf16_as_bits ? dtype_code::UInt : dtype_code::Bfloat, 16);
    case DType::i32: break;
  }
  return make(dtype_code::Int, 32);
}

/// An object with DLPack and, on the CPU, the buffer protocol, or None. It keeps `self` alive. `bf16_as_bits`: as
/// uint16, for NumPy.
nb::object view(nb::handle self, const std::string& name, int64_t layer, bool bf16_as_bits, int device_id) {
  const TensorView v = view_named(nb::cast<const PoolObject&>(self), name, layer);
  if (v.empty()) return nb::none();
  size_t shape[TensorView::kMaxRank];
  for (int i = 0; i < v.rank; ++i) shape[i] = static_cast<size_t>(v.shape[i]);
  const int device = v.device == Device::cpu ? nb::device::cpu::value : nb::device::cuda::value;
  const nb::ndarray<nb::array_api> array(v.data, static_cast<size_t>(v.rank), shape, self, v.stride.data(),
                                         dtype_of(v.dtype, bf16_as_bits), device,
                                         v.device == Device::cpu ? 0 : device_id);
  return nb::cast(array);
}

template <class Call>
void unlocked(Call call) {
  Status status;
  {
    const nb::gil_scoped_release release;
    status = call();
  }
  require(status);
}

std::vector<Handle> acquire(PoolObject& self, int64_t count) {
  if (count < 0) refuse("count", "0 or more", std::to_string(count));
  if (count > self.pool->config().slots) {  // before memory for as many handles is asked for
    raise(Code::out_of_memory, fmt::format("slots: expected {} free slots, found {} of {}", count,
                                           self.pool->free_slots(), self.pool->config().slots));
  }
  std::vector<Slot> slots(static_cast<size_t>(count));
  unlocked([&] { return self.pool->acquire(std::span<Slot>(slots)); });
  std::vector<Handle> handles;
  for (const Slot& slot : slots) handles.emplace_back(slot.id, slot.generation);
  return handles;
}

void copy(PoolObject& self, const std::vector<Handle>& src, const std::vector<Handle>& dst) {
  const std::vector<Slot> from = slots_of(src), to = slots_of(dst);
  unlocked([&] { return self.pool->copy(from, to); });
}

nb::bytes export_slot(const PoolObject& self, Handle handle) {
  const size_t size = self.pool->export_size();
  nb::object result = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!result.is_valid()) throw nb::python_error();
  const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(PyBytes_AsString(result.ptr())), size);
  unlocked([&] { return self.pool->export_slot({.id = handle.first, .generation = handle.second}, bytes); });
  return nb::borrow<nb::bytes>(result);
}

void import_slot(PoolObject& self, nb::object data, Handle handle) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(data.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(buffer.buf), static_cast<size_t>(buffer.len));
  Status status;
  {
    const nb::gil_scoped_release release;
    status = self.pool->import_slot(bytes, {.id = handle.first, .generation = handle.second});
  }
  PyBuffer_Release(&buffer);
  require(status);
}

}  // namespace

PoolObject::PoolObject(const nb::dict& config) {
  const PoolConfig c = config_of(config);
  unlocked([&] { return Pool::create(c, &pool); });
}

void PoolObject::check_layer(int64_t layer) const {
  const int64_t layers = pool->config().layers;
  if (layer < 0 || layer >= layers) refuse("layer", fmt::format("0 .. {}", layers - 1), std::to_string(layer));
}

void bind_pool(nb::module_& m) {
  using namespace nb::literals;
  m.def(
      "pool_bytes",
      [](const nb::dict& config) {
        PoolBytes bytes;
        require(pool_bytes(config_of(config), &bytes));
        return bytes_as_dict(bytes);
      },
      "config"_a);
  nb::class_<PoolObject>(m, "Pool", nb::is_weak_referenceable())
      .def(nb::init<const nb::dict&>(), "config"_a)
      .def("config", [](const PoolObject& self) { return config_as_dict(self.pool->config()); })
      .def("bytes", [](const PoolObject& self) { return bytes_as_dict(self.pool->bytes()); })
      .def("free_slots", [](const PoolObject& self) { return self.pool->free_slots(); })
      .def("set_stream",
           [](PoolObject& self, int64_t stream) { self.pool->set_stream(reinterpret_cast<void*>(stream)); })
      .def("view", [](nb::handle self, const std::string& name, int64_t layer, bool bf16_as_bits,
                      int device_id) { return view(self, name, layer, bf16_as_bits, device_id); })
      .def("acquire", &acquire, "count"_a)
      .def("release",
           [](PoolObject& self, const std::vector<Handle>& handles) {
             const std::vector<Slot> slots = slots_of(handles);
             unlocked([&] { return self.pool->release(std::span<const Slot>(slots)); });
           })
      .def("reset",
           [](PoolObject& self, const std::vector<Handle>& handles) {
             const std::vector<Slot> slots = slots_of(handles);
             unlocked([&] { return self.pool->reset(std::span<const Slot>(slots)); });
           })
      .def("settle",
           [](PoolObject& self, const std::vector<Handle>& handles) {
             const std::vector<Slot> slots = slots_of(handles);
             unlocked([&] { return self.pool->settle(slots); });
           })
      .def("copy", &copy)
      .def("materialise",
           [](PoolObject& self, Handle src, int32_t n, Handle dst) {
             unlocked([&] {
               return self.pool->materialise({.id = src.first, .generation = src.second}, n,
                                             {.id = dst.first, .generation = dst.second});
             });
           })
      .def("export", &export_slot)
      .def("import_", &import_slot);
}

}  // namespace ringfold::python
