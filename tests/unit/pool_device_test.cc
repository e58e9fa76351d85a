// A pool on a CUDA device against one on the CPU that lives through the same: every byte has to be the same.
#include <gmock/gmock.h>

#include <algorithm>

#include "dispatch/select.h"
#include "ringfold/commit.h"
#include "unit/pool_helpers.h"

namespace ringfold::test {
namespace {

using ::testing::HasSubstr;

PoolConfig on_cuda(PoolConfig c) {
  c.device = Device::cuda;
  return c;
}

/// Why no pool can live on a CUDA device here; "" if one can.
std::string reason_against() {
  const detail::DeviceMemory* memory = detail::device_memory(Device::cuda);
  return memory == nullptr ? "the only device of this build" : memory->usable().message();
}

TEST(PoolDevice, IsRefusedWithTheReasonWhereThereIsNone) {
  const std::string reason = reason_against();
  if (reason.empty()) GTEST_SKIP() << "this machine has a CUDA device";
  std::unique_ptr<Pool> pool;
  const Status s = Pool::create(on_cuda(small()), &pool);
  EXPECT_EQ(s.code(), Code::unsupported);
  EXPECT_THAT(s.message(), HasSubstr("device: expected"));
  EXPECT_THAT(s.message(), HasSubstr("found cuda"));
  EXPECT_THAT(s.message(), HasSubstr(reason));
  EXPECT_EQ(pool, nullptr);
}

TEST(PoolDevice, BytesAndDescriptionsNeedNoDevice) {
  PoolBytes host, device;
  ASSERT_TRUE(succeeded(pool_bytes(small(), &host)));
  ASSERT_TRUE(succeeded(pool_bytes(on_cuda(small()), &device)));
  // The generations once more, and the indices of materialise.
  host.cursors += 5 * sizeof(int32_t);
  host.scratch += 4 * sizeof(int32_t);
  EXPECT_EQ(device, host);
  PoolConfig c = on_cuda(small());
  c.slots = 0;
  std::unique_ptr<Pool> pool;
  EXPECT_EQ(Pool::create(c, &pool).code(), Code::invalid_argument);
}

/// int32 values in device memory.
class DeviceInts {
 public:
  explicit DeviceInts(const std::vector<int32_t>& values) : memory_(*detail::device_memory(Device::cuda)) {
    const size_t bytes = values.size() * sizeof(int32_t);
    void* data = nullptr;
    EXPECT_TRUE(succeeded(memory_.allocate(bytes, &data)));
    EXPECT_TRUE(succeeded(memory_.copy(data, values.data(), bytes, nullptr)));
    EXPECT_TRUE(succeeded(memory_.synchronise(nullptr)));
    view_ = TensorView(data, DType::i32, {static_cast<int64_t>(values.size())});
    view_.device = Device::cuda;
  }
  DeviceInts(const DeviceInts&) = delete;
  DeviceInts& operator=(const DeviceInts&) = delete;
  ~DeviceInts() { memory_.release(view_.data); }

  const TensorView& view() const { return view_; }

 private:
  const detail::DeviceMemory& memory_;
  TensorView view_;
};

struct Shape {
  const char* name;
  PoolConfig config;
};

/// Words of 16, 4 and 2 bytes; with and without conv; one and several launches for all slots. The tests need 11 slots,
/// two layers and windows of four.
std::vector<Shape> shapes() {
  PoolConfig odd = small();
  odd.slots = 11;
  PoolConfig even = {.layers = 3, .slots = 11, .H = 2, .HV = 4, .K = 16, .V = 16, .ring_rows = 4, .conv_channels = 64};
  PoolConfig many = {.layers = 2, .slots = 400, .H = 1, .HV = 1, .K = 8, .V = 2, .ring_rows = 4};
  many.act_dtype = DType::bf16;
  // The cursors' place in the scratch is aligned to two bytes only, so that they are set in halves.
  PoolConfig halves = {.layers = 3, .slots = 11, .H = 1, .HV = 1, .K = 5, .V = 3, .ring_rows = 4, .conv_channels = 8};
  halves.state_dtype = halves.act_dtype = DType::bf16;
  return {{"odd", odd}, {"even", even}, {"many", many}, {"halves", halves}};
}

struct Parameter {
  Shape shape;
  void* stream;
  std::string name() const { return std::string(shape.name) + (stream == nullptr ? "" : "_own_stream"); }
  friend void PrintTo(const Parameter& p, std::ostream* out) { *out << p.name(); }
};

class PoolDeviceTest : public ::testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    if (const std::string reason = reason_against(); !reason.empty()) {
      GTEST_SKIP() << "no pool can live on a CUDA device: " << reason;
    }
    memory = detail::device_memory(Device::cuda);
    stream = GetParam().stream;
    host = make(config());
    device = make(on_cuda(config()));
    ASSERT_NE(device, nullptr);
    device->set_stream(stream);
  }

  const PoolConfig& config() const { return GetParam().shape.config; }

  Bytes download(const TensorView& view) {
    Bytes bytes(static_cast<size_t>(view.elements()) * size_of(view.dtype));
    EXPECT_TRUE(succeeded(memory->copy(bytes.data(), view.data, bytes.size(), stream)));
    EXPECT_TRUE(succeeded(memory->synchronise(stream)));
    return bytes;
  }

  /// Everything but generations, from the host's pool to the device's.
  void upload() {
    const std::vector<TensorView> from = everything(*host), to = everything(*device);
    for (size_t i = 0; i < from.size(); ++i) {
      const Bytes bytes = pack(from[i]);
      ASSERT_TRUE(succeeded(memory->copy(to[i].data, bytes.data(), bytes.size(), stream)));
      ASSERT_TRUE(succeeded(memory->synchronise(stream)));
    }
  }

  void expect_same(const std::string& when) {
    const std::vector<Bytes> want = dump(*host);
    std::vector<TensorView> views = everything(*device);
    views.push_back(device->generations());
    ASSERT_EQ(views.size(), want.size());
    for (size_t i = 0; i < views.size(); ++i) {
      EXPECT_EQ(views[i].device, Device::cuda);
      const Bytes got = download(views[i]);
      const auto first = std::mismatch(got.begin(), got.end(), want[i].begin(), want[i].end()).first;
      EXPECT_TRUE(got == want[i]) << when << ": " << to_string(views[i]) << " differs at byte " << first - got.begin();
    }
    EXPECT_EQ(device->free_slots(), host->free_slots());
  }

  std::vector<Slot> acquire_everywhere() {
    const std::vector<Slot> slots = acquire_all(*host);
    EXPECT_EQ(acquire_all(*device), slots);
    return slots;
  }

  /// All slots acquired in both pools, and full of the same values; windows of 1, 2, .. rows, then none, then 1 again.
  std::vector<Slot> fill() {
    const std::vector<Slot> slots = acquire_everywhere();
    for (const Slot& s : slots) {
      scribble(*host, s.id, 7);
      set_window(*host, s.id, window_of(s.id));
    }
    upload();
    return slots;
  }
  int32_t window_of(int32_t slot) const {
    const auto rows = static_cast<int32_t>(config().ring_rows);
    return slot % (rows + 1) == rows ? kNoWindow : slot % (rows + 1) + 1;
  }

  const detail::DeviceMemory* memory = nullptr;
  void* stream = nullptr;
  std::unique_ptr<Pool> host, device;
};

TEST_P(PoolDeviceTest, StartsEmpty) {
  expect_same("new");
  EXPECT_EQ(device->bytes().state, host->bytes().state);
  EXPECT_EQ(device->state(1).device, Device::cuda);
}

TEST_P(PoolDeviceTest, AcquireHandsOutZeroedSlots) {
  for (int round = 0; round < 3; ++round) {
    for (const TensorView& v : payload(*host)) fill_poison(v);
    upload();
    const std::vector<Slot> slots = acquire_everywhere();
    expect_same("acquired");
    for (const TensorView& v : payload(*device)) {
      const Bytes bytes = download(v);
      EXPECT_EQ(bytes, Bytes(bytes.size())) << to_string(v);
    }
    if (round == 0) {
      for (const Slot& s : slots) EXPECT_TRUE(host->release(s).ok() && device->release(s).ok());
    } else {
      EXPECT_TRUE(host->release(slots).ok() && device->release(slots).ok());
    }
    expect_same("released");
  }
}

TEST_P(PoolDeviceTest, ReleaseAndResetTouchOnlyTheirSlots) {
  const std::vector<Slot> slots = fill();
  const Slot two[] = {slots[4], slots[1]};
  for (Pool* pool : {host.get(), device.get()}) {
    EXPECT_TRUE(succeeded(pool->reset(slots[2])));
    EXPECT_TRUE(succeeded(pool->reset(two)));
    EXPECT_TRUE(succeeded(pool->release(slots[3])));
    EXPECT_EQ(pool->release(slots[3]).code(), Code::invalid_argument);
    EXPECT_EQ(pool->reset(slots[3]).code(), Code::invalid_argument);
    Slot again;
    EXPECT_TRUE(succeeded(pool->acquire(&again)));
    EXPECT_EQ(again, (Slot{.id = slots[3].id, .generation = 2}));
    EXPECT_TRUE(succeeded(pool->release(two)));
  }
  expect_same("reset and released");
}

TEST_P(PoolDeviceTest, CopiesHappenAllAtOnce) {
  using Pairs = std::vector<std::pair<int, int>>;
  const Pairs cases[] = {{{0, 4}},
                         {{1, 2}, {2, 3}, {3, 4}},
                         {{3, 4}, {2, 3}, {1, 2}},
                         {{0, 1}, {1, 0}},
                         {{0, 1}, {1, 2}, {2, 0}, {3, 4}, {4, 3}},
                         {{0, 1}, {1, 0}, {0, 2}, {2, 3}, {1, 4}, {5, 5}}};
  const std::vector<Slot> slots = fill();
  const auto copy_both = [&](const Pairs& pairs) {
    std::vector<Slot> src, dst;
    for (const auto& [from, to] : pairs) src.push_back(slots[from]), dst.push_back(slots[to]);
    EXPECT_TRUE(succeeded(host->copy(src, dst)));
    EXPECT_TRUE(succeeded(device->copy(src, dst)));
    expect_same("copied " + ::testing::PrintToString(pairs));
  };
  for (const Pairs& pairs : cases) copy_both(pairs);
  const auto n = static_cast<int>(slots.size());
  Pairs turn;  // one cycle through all slots
  for (int i = 0; i < n; ++i) turn.emplace_back(i, (i + 1) % n);
  copy_both(turn);
  Rng rng(3);
  for (int round = 0; round < 20; ++round) {
    Pairs any;
    for (const int32_t to : rng.permutation(n)) any.emplace_back(static_cast<int>(rng.below(n)), to);
    copy_both(any);
  }
}

TEST_P(PoolDeviceTest, ExportedSlotsAreTheSameBytes) {
  const std::vector<Slot> slots = fill();
  ASSERT_EQ(device->export_size(), host->export_size());
  const auto other_host = make(config());
  const std::vector<Slot> other_slots = acquire_all(*other_host);
  for (int32_t i = 0; i < 6; ++i) {
    Bytes want(host->export_size()), got(want.size());
    ASSERT_TRUE(succeeded(host->export_slot(slots[i], want)));
    ASSERT_TRUE(succeeded(device->export_slot(slots[i], got)));
    EXPECT_TRUE(got == want) << "slot " << i;
    // From the device to a CPU pool and back, into another slot.
    ASSERT_TRUE(succeeded(other_host->import_slot(got, other_slots[i])));
    ASSERT_TRUE(succeeded(other_host->export_slot(other_slots[i], got)));
    EXPECT_TRUE(got == want) << "slot " << i;
    ASSERT_TRUE(succeeded(device->import_slot(got, slots[(i + 2) % 9])));
    ASSERT_TRUE(succeeded(host->import_slot(got, slots[(i + 2) % 9])));
    expect_same("imported");
  }
  Bytes bytes(host->export_size());
  ASSERT_TRUE(succeeded(host->export_slot(slots[0], bytes)));
  bytes[bytes.size() / 2] ^= std::byte{1};
  EXPECT_EQ(device->import_slot(bytes, slots[1]).code(), Code::invalid_argument);
  bytes.pop_back();
  EXPECT_EQ(device->import_slot(bytes, slots[1]).code(), Code::invalid_argument);
  EXPECT_EQ(device->export_slot(slots[1], bytes).code(), Code::invalid_argument);
  expect_same("refused");
}

TEST_P(PoolDeviceTest, MaterialiseGivesTheBitsOfTheCpu) {
  const std::vector<Slot> slots = fill();
  for (int32_t src = 0; src < 5; ++src) {
    for (int32_t n = -1; n <= 5; ++n) {
      const Status want = host->materialise(slots[src], n, slots[6]);
      const Status got = device->materialise(slots[src], n, slots[6]);
      EXPECT_EQ(got.code(), want.code()) << src << " " << n << " " << got.message();
      EXPECT_EQ(got.message(), want.message());
      EXPECT_EQ(want.ok(), n == 0 || (n > 0 && n <= window_of(src)));
      expect_same("materialised");
    }
  }
}

/// The rows of a commit, for the host and for the device.
struct CommitRows {
  std::vector<int32_t> slot_ids, generations, num_accepted, track_slots, track_steps;
  std::vector<int32_t> CommitRows::*const all[5] = {&CommitRows::slot_ids, &CommitRows::generations,
                                                    &CommitRows::num_accepted, &CommitRows::track_slots,
                                                    &CommitRows::track_steps};

  void add(int32_t slot, int32_t generation, int32_t accepted, int32_t track_slot = -1, int32_t track_step = -1) {
    const int32_t values[] = {slot, generation, accepted, track_slot, track_step};
    for (int i = 0; i < 5; ++i) (this->*all[i]).push_back(values[i]);
  }
};

constexpr TensorView CommitArgs::*kArguments[] = {&CommitArgs::slot_ids, &CommitArgs::generations,
                                                  &CommitArgs::num_accepted, &CommitArgs::track_slots,
                                                  &CommitArgs::track_steps};

TEST_P(PoolDeviceTest, CommitGivesTheBitsOfTheCpu) {
  const std::vector<Slot> slots = fill();
  for (Pool* pool : {host.get(), device.get()}) {
    ASSERT_TRUE(succeeded(pool->release(slots[8])));
    Slot again;
    ASSERT_TRUE(succeeded(pool->acquire(&again)));
    ASSERT_TRUE(succeeded(pool->release(slots[7])));
    ASSERT_TRUE(succeeded(pool->release(slots[9])));
  }
  CommitRows rows;  // windows: 1 2 3 4 none 1 2; slots 7 and 9 are free, slot 8 was acquired again
  rows.add(3, 1, 4, 10, 2);
  rows.add(1, 1, 3);
  rows.add(2, 1, 0);
  rows.add(4, 1, 0);
  rows.add(-1, 0, 1);
  rows.add(100000, 1, 1);
  rows.add(8, 1, 0);
  rows.add(7, 1, 1);
  rows.add(6, 1, 2, 100000, 0);
  rows.add(0, 1, 1, 9, 0);
  rows.add(5, 1, 1, -1, 0);
  const std::vector<RowStatus> expected = {RowStatus::done,
                                           RowStatus::accept_out_of_range,
                                           RowStatus::done,
                                           RowStatus::no_pending_window,
                                           RowStatus::null_row,
                                           RowStatus::slot_out_of_range,
                                           RowStatus::stale_generation,
                                           RowStatus::stale_generation,
                                           RowStatus::track_out_of_range,
                                           RowStatus::slot_not_acquired,
                                           RowStatus::done};
  const auto B = static_cast<int64_t>(expected.size());
  for (int round = 0; round < 2; ++round) {
    CommitArgs on_host, on_device;
    std::vector<std::unique_ptr<DeviceInts>> uploads;
    for (int i = 0; i < 5; ++i) {
      const std::vector<int32_t>& values = rows.*rows.all[i];
      uploads.push_back(std::make_unique<DeviceInts>(values));
      on_host.*kArguments[i] = TensorView(values.data(), DType::i32, {B});
      on_device.*kArguments[i] = uploads.back()->view();
    }
    std::vector<int32_t> status(expected.size(), 99);
    const DeviceInts device_status(status);
    on_host.row_status = TensorView(status.data(), DType::i32, {B});
    on_device.row_status = device_status.view();
    on_device.stream = stream;
    ASSERT_TRUE(succeeded(commit(*host, on_host)));
    ASSERT_TRUE(succeeded(commit(*device, on_device)));
    EXPECT_EQ(download(device_status.view()), pack(on_host.row_status));
    for (size_t row = 0; round == 0 && row < expected.size(); ++row) {
      EXPECT_EQ(status[row], static_cast<int32_t>(expected[row])) << "row " << row;
    }
    expect_same(round == 0 ? "committed" : "committed again");
  }
}

TEST_P(PoolDeviceTest, CommitWantsEverythingWhereThePoolIs) {
  const std::vector<Slot> slots = fill();
  const std::vector<int32_t> values = {0};
  const DeviceInts there(values);
  const TensorView here(values.data(), DType::i32, {1});
  const char* const names[] = {"slot_ids", "generations", "num_accepted", "track_slots", "track_steps"};
  for (int wrong = 0; wrong < 5; ++wrong) {
    for (Pool* pool : {host.get(), device.get()}) {
      const bool on_device = pool == device.get();
      CommitArgs args;
      for (int i = 0; i < 5; ++i) args.*kArguments[i] = on_device != (i == wrong) ? there.view() : here;
      const Status s = commit(*pool, args);
      EXPECT_EQ(s.code(), Code::invalid_argument);
      EXPECT_THAT(s.message(), HasSubstr(names[wrong]));
      EXPECT_THAT(s.message(), HasSubstr(on_device ? "found memory of device cpu" : "found memory of device cuda"));
    }
  }
  expect_same("refused");
}

TEST_P(PoolDeviceTest, LivesLikeAPoolOnTheCpu) {
  Rng rng(11);
  std::vector<Slot> live = fill();
  for (int step = 0; step < 200; ++step) {
    const auto any = [&] { return static_cast<size_t>(rng.below(static_cast<int64_t>(live.size()))); };
    const int64_t act = live.size() < 3 ? 0 : rng.below(5);
    if (act == 0) {
      std::vector<Slot> more(static_cast<size_t>(rng.below(host->free_slots() + 1))), same(more.size());
      ASSERT_TRUE(host->acquire(more).ok() && device->acquire(same).ok());
      ASSERT_EQ(more, same);
      live.insert(live.end(), more.begin(), more.end());
    } else if (act == 1) {
      const size_t at = any();
      ASSERT_TRUE(host->release(live[at]).ok() && device->release(live[at]).ok());
      live.erase(live.begin() + static_cast<int64_t>(at));
    } else if (act == 2) {
      const Slot slot = live[any()];
      ASSERT_TRUE(host->reset(slot).ok() && device->reset(slot).ok());
    } else if (act == 3) {
      std::vector<Slot> src(live.size());
      for (Slot& s : src) s = live[any()];
      ASSERT_TRUE(host->copy(src, live).ok() && device->copy(src, live).ok());
    } else {
      const Slot src = live[any()], dst = live[any()];
      EXPECT_EQ(host->materialise(src, 1, dst).code(), device->materialise(src, 1, dst).code());
    }
    if (step % 10 == 9) expect_same("step " + std::to_string(step));
  }
}

std::vector<Parameter> parameters() {
  void* const per_thread = reinterpret_cast<void*>(uintptr_t{2});  // cudaStreamPerThread
  std::vector<Parameter> all;
  for (const Shape& shape : shapes()) {
    all.push_back({shape, nullptr});
    all.push_back({shape, per_thread});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Shapes, PoolDeviceTest, ::testing::ValuesIn(parameters()),
                         [](const auto& one) { return one.param.name(); });

}  // namespace
}  // namespace ringfold::test
