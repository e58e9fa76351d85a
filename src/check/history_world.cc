// Histories for the contract's bodies: accepted rows that wait in the ring, made by verifies of on_commit and placed by
// the kit's own reckoning, so that the code under test is not asked where they lie.
#include <algorithm>
#include <utility>

#include "check/world.h"

namespace ringfold::check {
namespace {

int32_t at(const TensorView& cursor, int64_t slot) { return ints(slice(cursor, slot, 1))[0]; }

/// Commits of one, two, one, .. tokens.
int64_t next_commit(int64_t first, int64_t total) { return std::min<int64_t>(1 + first % 3 % 2, total - first); }

}  // namespace

History Store::history() const {
  if (config_.policy == FoldPolicy::on_commit) return {};
  return {base_.view(), live_.view(), cuts_.view(), config_.policy, config_.window};
}

History Store::history(int64_t layer) const {
  History h = history();
  if (h.empty()) return h;
  for (TensorView* view : {&h.base, &h.live, &h.cuts}) *view = view->at(layer);
  return h;
}

TensorView Store::logical(int64_t layer, int64_t slot) const {
  return config_.policy == FoldPolicy::on_commit ? state(layer, slot) : logical_.view().at(layer).at(slot);
}

Store::Cursors Store::cursors(int64_t layer, int64_t slot) const {
  const History h = history(layer);
  if (h.empty()) return {};
  return {at(h.base, slot), at(h.live, slot), at(h.cuts, slot)};
}

void Store::set_cursors(int64_t layer, int64_t slot, const Cursors& c) const {
  const History h = history(layer);
  if (h.empty()) return;
  set_ints(slice(h.base, slot, 1), {c.base});
  set_ints(slice(h.live, slot, 1), {c.live});
  set_ints(slice(h.cuts, slot, 1), {c.cuts});
}

bool Store::accept(int64_t layer, int64_t slot, int32_t n) const {
  Cursors c = cursors(layer, slot);
  const int32_t waiting = at(pending(layer), slot);
  if (waiting < n) return false;
  if (waiting >= kFolded) c = {.base = static_cast<int32_t>((c.base + c.live) % ring_rows_)};
  if (c.live + n + config_.window > ring_rows_) return false;
  if (n > 0) c.cuts |= static_cast<int32_t>(uint32_t{1} << (c.base + c.live + n - 1) % ring_rows_);
  c.live += n;
  set_cursors(layer, slot, c);
  set_ints(slice(pending(layer), slot, 1), {kNoWindow});
  return true;
}

std::vector<std::pair<const char*, TensorView>> Store::memory() const {
  const Ring r = ring();
  std::vector<std::pair<const char*, TensorView>> all = {{" state", state()},    {" ring k", r.k},
                                                         {" ring v", r.v},       {" ring gate", gate_of(r)},
                                                         {" ring beta", r.beta}, {" pending", pending()}};
  if (config_.by_row) {
    const RingOwners o = owners();
    all.insert(all.end(),
               {{" slot of ring", rings_by_slot(config_, o.slot_of_ring, 1)}, {" ring of slot", o.ring_of_slot}});
  }
  if (config_.policy != FoldPolicy::on_commit) {
    all.insert(all.end(), {{" base", base_.view()}, {" live", live_.view()}, {" cuts", cuts_.view()}});
  }
  return all;
}

void Store::copy_slot(const Store& other, int64_t from, int64_t to) {
  const auto theirs = other.memory(), mine = memory();
  for (int64_t l = 0; l < std::min(config_.layers, other.config_.layers); ++l) {
    for (size_t i = 0; i < mine.size(); ++i) {
      copy(slice(theirs[i].second.at(l), from, 1), slice(mine[i].second.at(l), to, 1));
    }
    if (config_.policy != FoldPolicy::on_commit) {
      copy(other.logical_.view().at(l).at(from), logical_.view().at(l).at(to));
    }
  }
}

bool World::is_due(const Store& store, int64_t layer, size_t r) const {
  const int64_t live = store.cursors(layer, slots[r]).live;
  if (live == 0 || at(store.pending(layer), slots[r]) >= kFolded) return false;
  return config.policy == FoldPolicy::on_next_verify || live + lengths[r] + config.window > store.ring_rows();
}

void World::take_layer(const Store& store, int64_t layer, FoldArgs* args) {
  for (TensorView* view : {&args->mixer.A_log, &args->mixer.dt_bias}) {
    if (!view->empty()) *view = view->at(layer);
  }
  args->state = store.state(layer);
  args->ring = store.ring_argument(layer);
  args->owners = store.owners(layer);
  args->pending = store.pending(layer);
  args->history = store.history(layer);
}

Store World::make_store(int64_t stream) const {
  // A row to spare, as in an engine's ring; or a ring of two windows or three.
  int64_t rows = config.window + 1;
  if (has_history()) rows = config.seed % 2 == 0 ? 2 * config.window : 3 * config.window + 2;
  Store s(config, num_slots, std::min<int64_t>(rows, kMaxWindow));
  if (!has_history()) {
    s.fill(slots, stream);
    return s;
  }
  if (start_ == nullptr || stream != 0) {
    s.fill(slots, stream);
    add_histories(&s);
    if (stream != 0) return s;
    start_ = std::make_shared<const Store>(std::move(s));
    s = Store(config, num_slots, start_->ring_rows());
  }
  s.copy_from(*start_);
  return s;
}

Store World::make_plain_store() const {
  Config plain = config;
  plain.policy = FoldPolicy::on_commit;
  const Store start = make_store();
  Store s(plain, num_slots, std::min<int64_t>(config.window + 1, kMaxWindow));
  s.fill({});
  for (int64_t l = 0; l < config.layers; ++l) {
    for (int32_t slot : slots) copy(start.logical(l, slot), s.state(l, slot));
  }
  return s;
}

void World::add_histories(Store* store) const {
  Config one = config;
  one.layout = Layout::dense;
  one.layers = 1;
  one.policy = FoldPolicy::on_commit;
  Judge judge(device_of(impl));
  const auto seed = static_cast<int64_t>(config.seed);
  const int64_t R = store->ring_rows(), room = R - config.window;
  for (int64_t l = 0; l < config.layers; ++l) {
    for (size_t r = 0; r < slots.size(); ++r) {
      const auto row = static_cast<int64_t>(r);
      Store::Cursors c;
      c.base = static_cast<int32_t>((7 * seed + 5 * row + 3 * l) % R);
      // The first row has a full one, others any, none too.
      c.live = static_cast<int32_t>(r == 0 ? room - l % 2 * (room - 1) : (seed + 3 * row + 2 * l) % (room + 1));
      const Sequence tokens(config, std::max<int64_t>(c.live, 1), l, 300 + row);
      Store own(one, 1, kMaxWindow);
      own.fill({0});
      copy(store->state(l, slots[r]), own.state(0, 0));
      for (int64_t first = 0, n = 0; first < c.live; first += n) {
        n = next_commit(first, c.live);
        Batch recorded(one, Layout::dense, {{&tokens, first, n, 0}}),
            decoded(one, Layout::dense, {{&tokens, first, n, 0}});
        VerifyArgs verify = verify_args(own, 0, recorded);
        DecodeArgs decode = decode_args(own, 0, decoded);
        verify.mixer = decode.mixer = params[l].mixer();
        judge.ok(mirrored::verify(verify), "verify of a history");
        for (int64_t t = 0; t < n; ++t) {
          const Ring from = own.ring_row(0, 0, t), all = store->ring(l);
          const int64_t to = (c.base + first + t) % R;
          copy(from.k, all.k.at(slots[r]).at(to));
          copy(from.v, all.v.at(slots[r]).at(to));
          copy(gate_of(from), gate_of(all).at(slots[r]).at(to));
          copy(from.beta, all.beta.at(slots[r]).at(to));
        }
        judge.ok(mirrored::decode(decode), "decode of a history");
        c.cuts |= static_cast<int32_t>(uint32_t{1} << (c.base + first + n - 1) % R);
      }
      copy(own.state(0, 0), store->logical(l, slots[r]));
      store->set_cursors(l, slots[r], c);
    }
  }
}

}  // namespace ringfold::check
