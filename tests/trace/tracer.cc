#include "trace/tracer.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

namespace ringfold::test {
namespace {

using check::fill_poison;
using check::pack;
using check::slice;

bool all_zero(const TensorView& view) {
  const Bytes bytes = pack(view);
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

Tracer::Tracer(const RigConfig& config, std::string impl, uint64_t seed)
    : rig_(config),
      plain_(rig_),
      impl_(std::move(impl)),
      plain_impl_(config.pool.device == Device::cpu ? impl_ : std::string(implementations()[0])),
      has_history_(config.pool.fold_policy != FoldPolicy::on_commit),
      by_row_(config.pool.rings > 0),
      on_device_(config.pool.device != Device::cpu),
      rng_(seed),
      pool_(rig_.make_pool()),
      owner_(static_cast<size_t>(config.pool.rings), -1) {
  PoolConfig other = rig_.pool_config();
  other.slots = 2;
  other.device = Device::cpu;  // what is exported does not depend on it
  EXPECT_TRUE(Pool::create(other, &second_).ok());
  rig_.give_mixers(second_.get());
  Slot unused[2];
  EXPECT_TRUE(second_->acquire(std::span<Slot>(unused)).ok());
  for (int32_t id = 0; id < rig_.pool_config().slots; ++id) poison_slot(id);
}

void Tracer::step(int number) {
  const std::pair<int, void (Tracer::*)()> acts[] = {
      {30, &Tracer::verify},    {28, &Tracer::commit},    {8, &Tracer::decode}, {7, &Tracer::acquire},
      {4, &Tracer::release},    {2, &Tracer::reset},      {6, &Tracer::copy},   {5, &Tracer::materialise},
      {4, &Tracer::export_one}, {4, &Tracer::import_one}, {2, &Tracer::misuse}};
  int roll = below(100);
  for (const auto& [weight, act] : acts) {
    if (roll < weight) {
      (this->*act)();
      break;
    }
    roll -= weight;
  }
  if (has_history_ && chance(4)) settle();
  if (has_history_) turn_rings();
  if (by_row_) {
    poison_unused_rings();
  } else {
    poison_stale_rows();
  }
  check(number);
}

std::vector<int> Tracer::tokens(int64_t n) {
  std::vector<int> list;
  for (int64_t i = 0; i < n; ++i) list.push_back(below(rig_.config().vocab));
  return list;
}

std::vector<int32_t> Tracer::layer_order() { return rng_.permutation(rig_.layers()); }

int32_t Tracer::free_slot() {
  for (int32_t id = 0; id < rig_.pool_config().slots; ++id) {
    if (find(id) == nullptr) return id;
  }
  return -1;
}

Tenant* Tracer::find(int32_t slot) {
  for (Tenant& t : live_) {
    if (t.slot.id == slot) return &t;
  }
  return nullptr;
}

std::pair<Row, RowStatus> Tracer::hostile_row(int64_t n_tokens, bool may_be_long) {
  const auto slots = static_cast<int32_t>(rig_.pool_config().slots);
  Row row;
  row.tokens.assign(static_cast<size_t>(n_tokens), Row::kNaN);
  switch (below(5)) {
    case 0: row.slot = chance(50) ? slots : INT_MAX; return {row, RowStatus::slot_out_of_range};
    case 1:
      if (free_slot() >= 0) {
        row.slot = free_slot();
        return {row, RowStatus::slot_not_acquired};
      }
      break;
    case 2:
      if (may_be_long && !live_.empty()) {
        row.slot = live_[below(static_cast<int64_t>(live_.size()))].slot.id;
        row.tokens = tokens(pool_->config().max_window + 1 + below(3));
        return {row, RowStatus::window_too_long};
      }
      break;
    default: break;
  }
  row.slot = chance(50) ? -1 : INT_MIN;
  return {row, RowStatus::null_row};
}

namespace {

/// Within the bound of `fast` numerics, 2e-5 of fp64 by norm, and what exact outputs are off from it themselves. Both
/// begin at the same checkpoint, so that is the error of history and window, 18 tokens at most: measured at up to
/// 1.65e-6 over 1,440 random windows of 1 to 18 tokens at these shapes; three times that is allowed. `want`: float32,
/// packed.
bool is_near(const TensorView& got, const Bytes& want) {
  const std::vector<float> values = check::floats(got);
  std::vector<float> expected(values.size());
  if (!expected.empty())
    std::memcpy(expected.data(), want.data(), std::min(want.size(), expected.size() * sizeof(float)));
  double error = 0, norm = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double difference = static_cast<double>(values[i]) - expected[i];
    error += difference * difference;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(error) <= 2.5e-5 * std::sqrt(norm);
}

}  // namespace

void Tracer::verify() { run_window(false); }
void Tracer::decode() { run_window(true); }

std::string_view Tracer::impl_for(bool decode, int64_t tokens) const {
  if (!on_device_ || !decode) return impl_;
  // Kernels for a device may be made for short windows, and what is ragged may be one long one. Those are left to the
  // library to give to somebody.
  Desc desc = describe(rig_.pool_config(), Op::decode);
  desc.window = std::clamp<int64_t>(tokens, 1, kMaxWindow);
  Explanation explanation;
  return explain(desc, impl_, &explanation).ok() ? std::string_view(impl_) : std::string_view();
}

void Tracer::run_window(bool decode) {
  counts_[decode ? "decode" : "verify"]++;
  const int64_t most = pool_->config().max_window + (decode ? 2 : 0);
  const bool dense = chance(25);
  const int64_t dense_length = 1 + below(most);
  const auto length = [&] { return dense ? dense_length : decode ? 1 + below(most) : below(most + 1); };
  std::vector<std::pair<Row, RowStatus>> wanted;
  for (const Tenant& t : live_) {
    if (chance(55)) wanted.push_back({{.slot = t.slot.id, .tokens = tokens(length())}, RowStatus::done});
  }
  while (chance(30)) wanted.push_back(hostile_row(length(), !dense && !decode));
  if (!live_.empty() && chance(10)) {
    const int32_t id = live_[below(static_cast<int64_t>(live_.size()))].slot.id;
    for (int i = 0; i < 2; ++i) wanted.push_back({{.slot = id, .tokens = tokens(length())}, RowStatus::done});
  }
  if (on_device_) {
    std::set<int32_t> used;
    std::erase_if(wanted, [&](const auto& row) {
      return find(row.first.slot) != nullptr && !used.insert(row.first.slot).second;
    });
  }
  std::vector<Row> rows;
  std::vector<RowStatus> want;
  for (int32_t i : rng_.permutation(static_cast<int64_t>(wanted.size()))) {
    rows.push_back(wanted[i].first);
    want.push_back(wanted[i].second);
  }
  std::map<int32_t, int> uses;
  for (const Row& row : rows) uses[row.slot]++;
  if (by_row_ && !decode) give_rings(&rows, &want);
  bool any_refused = false;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (want[r] == RowStatus::done && uses[rows[r].slot] > 1) want[r] = RowStatus::duplicate_slot;
  }
  std::map<int32_t, int> writers;
  for (size_t r = 0; r < rows.size(); ++r) writers[rows[r].ring] += want[r] == RowStatus::done;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (by_row_ && !decode && want[r] == RowStatus::done && writers[rows[r].ring] > 1) {
      want[r] = RowStatus::duplicate_ring;
    }
    any_refused |= refused(want[r]);
  }
  int64_t tokens_of_call = 0;
  for (const Row& row : rows) tokens_of_call += static_cast<int64_t>(row.tokens.size());
  StepOptions options{.impl = impl_for(decode, dense ? dense_length : tokens_of_call),
                      .dense = dense && !rows.empty(),
                      .with_status = chance(80),
                      .layers = layer_order()};
  std::map<int32_t, std::pair<HistoryOf, Bytes>> before;
  for (const Tenant& t : live_) {
    if (has_history_) before[t.slot.id] = {history_of(t.slot.id), state_bytes(t.slot.id)};
  }
  const StepResult result =
      decode ? rig_.decode(target_of(*pool_), rows, options) : rig_.verify(target_of(*pool_), rows, options);
  EXPECT_EQ(result.trouble, "");
  if (any_refused && !options.with_status && !on_device_) {
    counts_["refused call"]++;
    EXPECT_EQ(result.status.code(), Code::invalid_argument);
    return;
  }
  ASSERT_TRUE(result.status.ok()) << result.status.message();
  if (options.with_status) {
    EXPECT_EQ(result.row_status, as_ints(want));
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    counts_[to_string(want[r])]++;
    if (want[r] != RowStatus::done) {
      for (int64_t layer = 0; layer < rig_.layers(); ++layer)
        EXPECT_TRUE(all_zero(result.row(layer, r))) << "row " << r;
      continue;
    }
    Tenant& t = *find(rows[r].slot);
    Plain::State after = t.plain;
    const std::vector<Bytes> out = plain_.decode(&after, rows[r].tokens, plain_impl_);
    for (int64_t layer = 0; layer < rig_.layers(); ++layer) {
      if (decode || !pool_->config().ring_u) {
        EXPECT_EQ(check::changed(result.row(layer, r), out[layer]), "")
            << "outputs of row " << r << ", layer " << layer;
      } else if (pool_->config().state_dtype == DType::f32) {  // a 16-bit state is rounded within the history
        EXPECT_TRUE(is_near(result.row(layer, r), out[layer])) << "outputs of row " << r << ", layer " << layer;
      }
    }
    if (decode) {
      t.plain = std::move(after);
      t.window.reset();
    } else {
      if (t.window) counts_["window replaced"]++;
      t.window = rows[r].tokens;
      if (by_row_) {
        int32_t& owner = owner_[static_cast<size_t>(rows[r].ring)];
        const Tenant* before_it = find(owner);
        if (owner != t.slot.id && before_it != nullptr && before_it->window && before_it->ring == rows[r].ring) {
          counts_["ring taken"]++;
        }
        owner = t.slot.id, t.ring = rows[r].ring;
      }
      if (has_history_) count_history(t.slot.id, before[t.slot.id].first, before[t.slot.id].second);
    }
  }
}

void Tracer::acquire() {
  counts_["acquire"]++;
  std::vector<Slot> slots(static_cast<size_t>(1 + below(2)));
  const bool fits = static_cast<int64_t>(slots.size()) <= pool_->free_slots();
  EXPECT_EQ(pool_->acquire(slots).ok(), fits);
  if (!fits) return;
  for (const Slot& s : slots) {
    poisoned_.erase(s.id);
    live_.push_back({.slot = s, .plain = plain_.zero(), .window = {}});
  }
}

void Tracer::release() {
  if (live_.empty()) return;
  counts_["release"]++;
  const auto at = live_.begin() + below(static_cast<int64_t>(live_.size()));
  EXPECT_TRUE(pool_->release(at->slot).ok());
  stale_.push_back(at->slot);
  poison_slot(at->slot.id);
  live_.erase(at);
}

void Tracer::reset() {
  if (live_.empty()) return;
  counts_["reset"]++;
  Tenant& t = live_[below(static_cast<int64_t>(live_.size()))];
  EXPECT_TRUE(pool_->reset(t.slot).ok());
  t.plain = plain_.zero();
  t.window.reset();
}

void Tracer::copy() {
  if (live_.empty()) return;
  counts_["copy"]++;
  const auto n = static_cast<int64_t>(live_.size());
  const std::vector<int32_t> order = rng_.permutation(n);
  std::vector<Slot> src, dst;
  std::vector<Tenant> next = live_;
  for (int64_t i = 0, pairs = 1 + below(n); i < pairs; ++i) {
    const int from = below(n);
    src.push_back(live_[from].slot);
    dst.push_back(live_[order[i]].slot);
    next[order[i]].plain = live_[from].plain;
    if (!by_row_) next[order[i]].window = live_[from].window;
    if (by_row_ && from != order[i]) next[order[i]].window.reset();
  }
  EXPECT_TRUE(pool_->copy(src, dst).ok());
  live_ = std::move(next);
}

void Tracer::materialise() {
  if (live_.size() < 2) return;
  const std::vector<int32_t> order = rng_.permutation(static_cast<int64_t>(live_.size()));
  const Tenant& src = live_[order[0]];
  Tenant& dst = live_[order[1]];
  const auto rows = static_cast<int64_t>(src.window && has_its_ring(src) ? src.window->size() : 0);
  const int n = chance(10) ? static_cast<int>(rows) + 1 : below(rows + 1);
  const Status s = pool_->materialise(src.slot, n, dst.slot);
  if (n > rows) {
    counts_["materialise refused"]++;
    EXPECT_EQ(s.code(), Code::invalid_argument);
    return;
  }
  counts_["materialise"]++;
  ASSERT_TRUE(s.ok()) << s.message();
  dst.plain = src.plain;
  if (n > 0) plain_.decode(&dst.plain, {src.window->begin(), src.window->begin() + n}, plain_impl_);
  dst.window.reset();
}

void Tracer::export_one() {
  if (live_.empty()) return;
  counts_["export"]++;
  const Tenant& t = live_[below(static_cast<int64_t>(live_.size()))];
  Parcel parcel{.bytes = Bytes(pool_->export_size()), .plain = t.plain, .window = t.window};
  if (by_row_) parcel.window.reset();
  EXPECT_TRUE(pool_->export_slot(t.slot, parcel.bytes).ok());
  if (chance(50)) {  // by way of another pool
    const Slot there{.id = 0, .generation = 1};
    EXPECT_TRUE(second_->import_slot(parcel.bytes, there).ok());
    Bytes again(second_->export_size());
    EXPECT_TRUE(second_->export_slot(there, again).ok());
    EXPECT_EQ(again, parcel.bytes);
    parcel.bytes = std::move(again);
  }
  parcels_.push_back(std::move(parcel));
  if (parcels_.size() > 4) parcels_.erase(parcels_.begin());
}

void Tracer::import_one() {
  if (live_.empty() || parcels_.empty()) return;
  counts_["import"]++;
  Tenant& t = live_[below(static_cast<int64_t>(live_.size()))];
  const Parcel& parcel = parcels_[below(static_cast<int64_t>(parcels_.size()))];
  if (chance(20)) {
    Bytes bad = parcel.bytes;
    bad[below(static_cast<int64_t>(bad.size()))] ^= std::byte{0x10};
    EXPECT_EQ(pool_->import_slot(bad, t.slot).code(), Code::invalid_argument);
    return;
  }
  EXPECT_TRUE(pool_->import_slot(parcel.bytes, t.slot).ok());
  t.plain = parcel.plain;
  t.window = parcel.window;
}

void Tracer::misuse() {
  if (stale_.empty() || live_.empty()) return;
  counts_["misuse"]++;
  const Slot bad = stale_[below(static_cast<int64_t>(stale_.size()))];
  const Slot good = live_[below(static_cast<int64_t>(live_.size()))].slot;
  Bytes bytes(pool_->export_size());
  EXPECT_FALSE(pool_->release(bad).ok());
  EXPECT_FALSE(pool_->reset(bad).ok());
  EXPECT_FALSE(pool_->copy({&bad, 1}, {&good, 1}).ok());
  EXPECT_FALSE(pool_->copy({&good, 1}, {&bad, 1}).ok());
  EXPECT_FALSE(pool_->materialise(bad, 0, good).ok());
  EXPECT_FALSE(pool_->export_slot(bad, bytes).ok());
  EXPECT_FALSE(pool_->import_slot(bytes, good).ok());
  EXPECT_FALSE(pool_->settle({&bad, 1}).ok());
}

void Tracer::settle() {
  if (live_.empty()) return;
  const Tenant& t = live_[below(static_cast<int64_t>(live_.size()))];
  if (history_of(t.slot.id).live > 0) counts_["settle"]++;
  EXPECT_TRUE(pool_->settle({&t.slot, 1}).ok());
  EXPECT_EQ(compare_slot(*pool_, t.slot.id, t.plain), "") << "settled";
}

void Tracer::poison_slot(int32_t id) {
  const Ring ring = by_row_ ? Ring() : pool_->ring();
  for (const TensorView& v : {pool_->state(), ring.k, ring.v, ring.g, ring.a, ring.beta, pool_->conv_state(),
                              by_row_ ? TensorView() : pool_->conv_ring()}) {
    for (int64_t layer = 0; !v.empty() && layer < v.shape[0]; ++layer) fill_poison(slice(v.at(layer), id, 1));
  }
  poisoned_.insert(id);
}

void Tracer::check(int number) {
  for (const Tenant& t : live_) {
    // By way of another pool each slot gets its turn: a wrong state does not heal.
    if (!has_history_) {
      EXPECT_EQ(compare_slot(*pool_, t.slot.id, t.plain), "");
    } else if ((number + t.slot.id) % 3 == 0) {
      EXPECT_EQ(compare_logical(t), "");
    }
    const int32_t want = t.window ? static_cast<int32_t>(t.window->size()) : kNoWindow;
    for (const TensorView& v : {pool_->pending(), pool_->conv_pending()}) {
      for (int64_t layer = 0; !v.empty() && layer < v.shape[0]; ++layer) {
        const int32_t found = check::ints(slice(v.at(layer), t.slot.id, 1))[0];
        EXPECT_EQ(has_history_ && found >= 0 ? found & ~kFolded : found, want) << "pending of slot " << t.slot.id;
      }
    }
  }
  check_free_slots();
  EXPECT_EQ(pool_->free_slots() + static_cast<int64_t>(live_.size()), rig_.pool_config().slots);
  if (number % 40 == 39 && !live_.empty()) {
    counts_["replay"]++;
    const Tenant& t = live_[below(static_cast<int64_t>(live_.size()))];
    EXPECT_EQ(plain_.replay(t.plain, "reference"), t.plain) << "slot " << t.slot.id << " replayed from its first token";
  }
}

void Tracer::check_free_slots() {
  for (int32_t id : poisoned_) {
    for (const TensorView& v : {pool_->state(), by_row_ ? TensorView() : pool_->ring().v, pool_->conv_state(),
                                by_row_ ? TensorView() : pool_->conv_ring()}) {
      for (int64_t layer = 0; !v.empty() && layer < v.shape[0]; ++layer) {
        const Bytes bytes = pack(slice(v.at(layer), id, 1));
        EXPECT_EQ(bytes, Bytes(bytes.size(), std::byte{0xFF})) << "free slot " << id << " was written";
      }
    }
    EXPECT_EQ(check::ints(slice(pool_->pending(0), id, 1))[0], kNotAcquired);
  }
}

}  // namespace ringfold::test
