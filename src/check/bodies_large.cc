// C19: offsets past 2^31 elements, and more rows than 16 bits count.
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "check/bodies.h"

namespace ringfold::check {
namespace {

/// Memory of which only the ends of wide gaps are used: address space whose untouched pages do not exist, or, on a
/// device, poisoned memory.
class Sparse {
 public:
  Sparse(size_t bytes, Device device) : bytes_(bytes), device_(device) {
    const std::string gib = std::to_string(bytes >> 30) + " GiB";
    if (device != Device::cpu) {
      block_.emplace(memory_of(device));
      if (!block_->reserve(bytes).ok()) throw Skip{"no " + gib + " of device memory here"};
      require(memory_of(device).fill(block_->data(), 0xFF, bytes, nullptr));
      data_ = block_->data();
      return;
    }
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw Skip{"no address space of " + gib + " here"};
  }
  ~Sparse() {
    if (device_ == Device::cpu) munmap(data_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  void* data() const { return data_; }

 private:
  size_t bytes_;
  Device device_;
  std::optional<DeviceBlock> block_;
  void* data_ = nullptr;
};

/// The same tensor elsewhere, with its first dimension so far apart that the last entry lies past 2^31 elements. On a
/// device every entry is aligned, since kernels may be made for that.
class Spread {
 public:
  Spread(const TensorView& near, Device device)
      : pitch_((int64_t{1} << 31) / (near.shape[0] - 2) / 8 * 8 + (device == Device::cpu ? 7 : 8)),
        memory_(static_cast<size_t>((near.shape[0] - 1) * pitch_ + near.at(0).elements()) * size_of(near.dtype),
                device) {
    view_ = near;
    view_.data = memory_.data();
    view_.device = device;
    view_.stride[0] = pitch_;
    for (int64_t d = near.rank - 1, next = 1; d > 0; --d) {
      view_.stride[d] = next;
      next *= near.shape[d];
    }
    for (int64_t i = 0; i < near.shape[0]; ++i) copy(near.at(i), view_.at(i));
  }
  const TensorView& view() const { return view_; }
  void same(Judge& judge, const TensorView& near, const std::string& what) const {
    for (int64_t i = 0; i < near.shape[0]; ++i) judge.same(view_.at(i), near.at(i), what);
  }
  bool is_far() const { return (view_.shape[0] - 1) * pitch_ > (int64_t{1} << 31); }

 private:
  int64_t pitch_;
  Sparse memory_;
  TensorView view_;
};

constexpr int kTensors = 5;  // state, ring k, v, g, beta

/// verify and fold with some of these tensors spread, against the same with none.
void huge_pitch(Judge& judge, const Config& config, std::string_view impl, const std::vector<int>& which) {
  const World world(config, impl);
  const Store near = world.make_store(), far = world.make_store();
  const Ring near_ring = near.ring(0), far_ring = far.ring(0);
  const TensorView expected[kTensors] = {near.state(0), near_ring.k, near_ring.v, near_ring.g, near_ring.beta};
  TensorView tensors[kTensors] = {far.state(0), far_ring.k, far_ring.v, far_ring.g, far_ring.beta};
  std::vector<std::unique_ptr<Spread>> spread(kTensors);
  for (int i : which) {
    spread[i] = std::make_unique<Spread>(tensors[i], device_of(impl));
    judge.that(spread[i]->is_far(), "the last slot does not lie past 2^31 elements");
    tensors[i] = spread[i]->view();
  }
  const auto compare = [&](int i, const std::string& what) {
    if (spread[i]) {
      spread[i]->same(judge, expected[i], what);
    } else {
      judge.same(tensors[i], expected[i], what);
    }
  };
  Batch batch = world.batch(0), far_batch = world.batch(0);
  world.verify(judge, near, 0, batch);
  VerifyArgs args = world.verify_args(far, 0, far_batch);
  args.state = tensors[0];
  args.ring = {tensors[1], tensors[2], tensors[3], tensors[4]};
  judge.ok(mirrored::verify(args), "verify on a sparse pool");
  judge.same(far_batch.out, batch.out, "outputs of a pool past 2^31 elements");
  for (int i = 1; i < kTensors; ++i) compare(i, "ring past 2^31 elements");
  std::vector<int32_t> counts;
  for (int64_t length : world.lengths) counts.push_back(static_cast<int32_t>(length));
  const RowBuffers ids(world.slots), accepted(counts);
  FoldArgs fold_args = world.fold_args(far, ids, accepted);
  fold_args.state = tensors[0];
  fold_args.ring = args.ring;
  fold_args.pending = {};
  judge.ok(mirrored::fold(fold_args), "fold on a sparse pool");
  world.fold(judge, near, world.slots, counts);
  compare(0, "states past 2^31 elements");
}

/// More rows x heads than 16 bits count, each with its own values; against the same rows in small batches.
void many_rows(Judge& judge, const Config& base, std::string_view impl) {
  Config config = base;
  config.H = 1, config.HV = 2, config.K = 2, config.V = 3, config.window = 1, config.layers = 1;
  if (judge.on_device() && base.K % 64 == 0) config.HV = 1, config.K = 64, config.V = 16;  // for tuned kernels
  config.rows = 66000;
  config.layout = Layout::dense;
  const int64_t B = config.rows;
  const Sequence tokens(config, B, 0, 0);
  const Params params(config, 0);
  Store whole(config, B, 1), parts(config, B, 1);
  Rng rng(config.seed);
  const std::vector<int32_t> order = rng.permutation(B);
  whole.fill(order);
  parts.copy_from(whole);
  const auto step = [&](const Store& store, int64_t first, int64_t count, std::vector<Bytes>* outs) {
    std::vector<Row> rows;
    std::vector<int32_t> slots;
    for (int64_t r = first; r < first + count; ++r) {
      rows.push_back({&tokens, r, 1, order[r]});
      slots.push_back(order[r]);
    }
    Batch batch(config, Layout::dense, rows);
    VerifyArgs args;
    args.mixer = params.mixer();
    args.window = batch.window;
    args.state = store.state(0);
    args.ring = store.ring(0);
    args.out = batch.out;
    args.pending = store.pending(0);
    args.impl = impl;
    judge.ok(mirrored::verify(args), "verify of many rows");
    batch.guards(judge);
    outs->push_back(pack(batch.out));
    const RowBuffers ids(slots), accepted(std::vector<int32_t>(slots.size(), 1));
    FoldArgs fold_args;
    fold_args.qk_l2norm = config.qk_l2norm;
    fold_args.state = store.state(0);
    fold_args.ring = store.ring(0);
    fold_args.slot_ids = ids.view;
    fold_args.num_accepted = accepted.view;
    fold_args.pending = store.pending(0);
    fold_args.impl = impl;
    judge.ok(mirrored::fold(fold_args), "fold of many rows");
    store.guards(judge);
  };
  std::vector<Bytes> at_once, in_parts;
  step(whole, 0, B, &at_once);
  const int64_t part = judge.on_device() ? 22000 : 6000;  // all of the store travels with every call
  for (int64_t first = 0; first < B; first += part) step(parts, first, std::min(part, B - first), &in_parts);
  Bytes joined;
  for (const Bytes& bytes : in_parts) joined.insert(joined.end(), bytes.begin(), bytes.end());
  judge.same_bytes(at_once[0], joined, "outputs of 66,000 rows, against small batches");
  judge.same(whole.state(), parts.state(), "states of 66,000 rows, against small batches,");
  judge.finite(whole.state(), "states of 66,000 rows");
}

}  // namespace

void large_offsets(Judge& judge, const Config& config, std::string_view impl) {
  if (judge.on_device()) {  // what is spread is there, so one at a time
    for (int i = 0; i < kTensors; ++i) huge_pitch(judge, config, impl, {i});
  } else {
    huge_pitch(judge, config, impl, {0, 1, 2, 3, 4});
  }
  many_rows(judge, config, impl);
}

}  // namespace ringfold::check
