// A pool under random use, next to a model of what it must hold.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <set>

#include "trace/rig.h"

namespace ringfold::test {

/// A slot of the pool and what has to be in it.
struct Tenant {
  Slot slot;
  Plain::State plain;
  std::optional<std::vector<int>> window;  ///< tokens of the last verify that nobody has committed
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

  void check(int number);
  void check_free_slots();
  /// Rows that no window covers may hold anything; here they hold NaN.
  void poison_stale_rows();
  /// A released slot holds NaN until somebody acquires it.
  void poison_slot(int32_t id);

  int below(int64_t n) { return static_cast<int>(rng_.below(n)); }
  bool chance(int percent) { return below(100) < percent; }
  std::vector<int> tokens(int64_t n);
  std::vector<int32_t> layer_order();
  /// Rows that have to be refused or skipped, as (row, status).
  std::pair<Row, RowStatus> hostile_row(int64_t n_tokens, bool may_be_long);
  int32_t free_slot();
  Tenant* find(int32_t slot);
  bool holds(const Tenant& t, const Plain::State& state, const std::optional<std::vector<int>>& window) const;
  void run_window(bool decode);

  struct Parcel {
    Bytes bytes;
    Plain::State plain;
    std::optional<std::vector<int>> window;
  };

  Rig rig_;
  Plain plain_;
  std::string impl_;
  Rng rng_;
  std::unique_ptr<Pool> pool_, second_;
  std::vector<Tenant> live_;
  std::vector<Slot> stale_;
  std::vector<Parcel> parcels_;
  std::set<int32_t> poisoned_;
  std::map<std::string, int> counts_;
};

}  // namespace ringfold::test
