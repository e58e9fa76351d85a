// A pool under random use, next to a model of what it must hold.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>

#include "trace/rig.h"

namespace ringfold::test {

inline bool refused(RowStatus s) { return s != RowStatus::done && s != RowStatus::null_row; }

inline std::vector<int32_t> as_ints(const std::vector<RowStatus>& statuses) {
  std::vector<int32_t> out;
  for (RowStatus s : statuses) out.push_back(static_cast<int32_t>(s));
  return out;
}

/// A slot of the pool and what has to be in it.
struct Tenant {
  Slot slot;
  Plain::State plain;
  std::optional<std::vector<int>> window;  ///< tokens of the last verify that nobody has committed
  int32_t ring = -1;                       ///< where it lies, with rings keyed by request row
};

class Tracer {
 public:
  Tracer(const RigConfig& config, std::string impl, uint64_t seed);

  /// One random act, then a look at every slot.
  void step(int number);
  /// How often each kind of act was done, for a test that nothing was left out.
  const std::map<std::string, int>& counts() const { return counts_; }

 private:
  void verify();
  void decode();
  void commit();
  void acquire();
  void release();
  void reset();
  void copy();
  void materialise();
  void export_one();
  void import_one();
  void misuse();
  void settle();

  /// One row of a commit. Its members are columns of one table, so that every index array has a stride of its own.
  struct CommitRow {
    int32_t slot = -1, generation = 0, accept = 0, track = -1, step = -1, ring = -1;
    bool tracks() const { return slot >= 0 && track >= 0 && step >= 0; }
  };
  std::vector<CommitRow> random_commit_rows();
  std::vector<RowStatus> judge(const std::vector<CommitRow>& rows, bool with_generations);
  void apply(const CommitRow& row);
  /// Of layer 0.
  struct HistoryOf {
    int64_t base = 0, live = 0;
    bool folded = false;
  };
  HistoryOf history_of(int32_t slot) const;
  /// What kinds of windows, due or not, a verify met; and that rows which are not due left the state alone.
  void count_history(int32_t slot, const HistoryOf& before, const Bytes& state_before);
  /// An empty history may begin anywhere: moves some, so that every wrap position comes up.
  void turn_rings();
  Bytes state_bytes(int32_t slot) const;
  /// The logical state of a slot, by way of another pool, so that the slot stays as it is.
  std::string compare_logical(const Tenant& tenant);

  /// With rings keyed by request row: gives the rows of a verify rings, or ids that are none, or one twice.
  void give_rings(std::vector<Row>* rows, std::vector<RowStatus>* want);
  /// Is the tenant's window where it was recorded, or has another slot's taken its place?
  bool has_its_ring(const Tenant& t) const {
    return !by_row_ || (t.window && owner_[static_cast<size_t>(t.ring)] == t.slot.id);
  }
  int32_t rings() const { return static_cast<int32_t>(owner_.size()); }
  int32_t no_ring();
  void poison_unused_rings();

  void check(int number);
  void check_free_slots();
  /// Rows outside of history and window may hold anything; here they hold NaN.
  void poison_stale_rows();
  /// A released slot holds NaN until somebody acquires it.
  void poison_slot(int32_t id);

  int below(int64_t n) { return static_cast<int>(rng_.below(n)); }
  bool chance(int percent) { return below(100) < percent; }
  std::vector<int> tokens(int64_t n);
  std::vector<int32_t> layer_order();
  /// A row that has to be refused or skipped, and its status.
  std::pair<Row, RowStatus> hostile_row(int64_t n_tokens, bool may_be_long);
  int32_t free_slot();
  Tenant* find(int32_t slot);
  void run_window(bool decode);
  /// The implementation of a window call with so many tokens.
  std::string_view impl_for(bool decode, int64_t tokens) const;

  struct Parcel {
    Bytes bytes;
    Plain::State plain;
    std::optional<std::vector<int>> window;
  };

  Rig rig_;
  Plain plain_;
  std::string impl_, plain_impl_;
  bool has_history_;  ///< the fold policy is not on_commit
  bool by_row_;       ///< rings are keyed by request row
  bool on_device_;    ///< refused rows without row_status are no error there, and a slot that comes twice is undefined
  Rng rng_;
  std::unique_ptr<Pool> pool_, second_;
  std::vector<Tenant> live_;
  std::vector<int32_t> owner_;  ///< by ring: the slot whose window was recorded there last; with rings by row
  std::vector<Slot> stale_;
  std::vector<Parcel> parcels_;
  std::set<int32_t> poisoned_;
  std::map<std::string, int> counts_;
};

}  // namespace ringfold::test
