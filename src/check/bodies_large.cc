// C19: offsets past 2^31 elements, and more rows than 16 bits count.
#include <sys/mman.h>

#include <algorithm>
#include <memory>

#include "check/bodies.h"

namespace ringfold::check {
namespace {

/// Address space of which only the touched pages exist.
class Sparse {
 public:
  explicit Sparse(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw Skip{"no address space of " + std::to_string(bytes >> 30) + " GiB here"};
  }
  ~Sparse() { munmap(data_, bytes_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

/// The same tensor with its first dimension (of `view`) so far apart that the last entry lies past 2^31 elements.
TensorView spread(const TensorView& view, const Sparse& memory, int64_t pitch) {
  TensorView wide = view;
  wide.data = memory.data();
  wide.stride[0] = pitch;
  for (int d = view.rank - 1, next = 1; d > 0; --d) {
    wide.stride[d] = next;
    next *= static_cast<int>(view.shape[d]);
  }
  copy(view, wide);
  return wide;
}

void huge_pitch(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  const Store store = world.make_store();
  const int64_t slots = world.num_slots, pitch = (int64_t{1} << 31) / (slots - 2) + 7;
  const Ring ring = store.ring(0);
  const TensorView packed[] = {store.state(0), ring.k, ring.v, ring.g, ring.beta};
  std::vector<TensorView> wide;
  std::vector<std::unique_ptr<Sparse>> memory;
  for (const TensorView& view : packed) {
    memory.push_back(std::make_unique<Sparse>(static_cast<size_t>(slots * pitch) * size_of(view.dtype)));
    wide.push_back(spread(view, *memory.back(), pitch));
  }
  judge.that((slots - 1) * pitch > (int64_t{1} << 31), "the last slot does not lie past 2^31 elements");
  Batch near = world.batch(0), far = world.batch(0);
  world.verify(judge, store, 0, near);
  VerifyArgs args = world.verify_args(store, 0, far);
  args.state = wide[0];
  args.ring = {wide[1], wide[2], wide[3], wide[4]};
  judge.ok(mirrored::verify(args), "verify on a sparse pool");
  judge.same(far.out, near.out, "outputs of a pool past 2^31 elements");
  for (int i = 1; i < 5; ++i) judge.same(wide[i], packed[i], "ring past 2^31 elements");
  std::vector<int32_t> counts;
  for (int64_t length : world.lengths) counts.push_back(static_cast<int32_t>(length));
  const RowBuffers ids(world.slots), accepted(counts);
  FoldArgs fold_args = world.fold_args(store, ids, accepted);
  fold_args.state = wide[0];
  fold_args.ring = args.ring;
  fold_args.pending = {};
  judge.ok(mirrored::fold(fold_args), "fold on a sparse pool");
  world.fold(judge, store, world.slots, counts);
  judge.same(wide[0], packed[0], "states past 2^31 elements");
}

/// More rows x heads than 16 bits count, each with its own values; against the same rows in small batches.
void many_rows(Judge& judge, const Config& base, std::string_view impl) {
  Config config = base;
  config.H = 1, config.HV = 2, config.K = 2, config.V = 3, config.window = 1, config.layers = 1;
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
  const int64_t part = 6000;
  for (int64_t first = 0; first < B; first += part) step(parts, first, std::min(part, B - first), &in_parts);
  Bytes joined;
  for (const Bytes& bytes : in_parts) joined.insert(joined.end(), bytes.begin(), bytes.end());
  judge.same_bytes(at_once[0], joined, "outputs of 66,000 rows, against small batches");
  judge.same(whole.state(), parts.state(), "states of 66,000 rows, against small batches,");
  judge.finite(whole.state(), "states of 66,000 rows");
}

}  // namespace

void large_offsets(Judge& judge, const Config& config, std::string_view impl) {
  huge_pitch(judge, config, impl);
  many_rows(judge, config, impl);
}

}  // namespace ringfold::check
