// Whole steps of a pool: a verify of each layer and a commit of all, under any fold policy.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/rig.h"

namespace ringfold::bench {

/// A pool, a window that every step verifies anew, and a constant number of accepted tokens. A flush cycle is the
/// steps after which a slot's history is as long as it was.
class PoolRig {
 public:
  /// `c.desc` names policy, ring rows and u; `c.fold` the accepted tokens and the layers.
  PoolRig(const Case& c, const Impls& impls, int64_t sets, Device device, void* stream);
  Status prepare(DType out);
  /// One step of the slots of a set.
  Status step(int64_t set);

  int64_t period() const;
  /// Rows of history in front of step i of a cycle, and whether the checkpoint takes them in its verify.
  int64_t history(int64_t i) const;
  bool stores(int64_t i) const;
  /// Rows that the commit of step i folds; 0: it moves cursors alone.
  int64_t folds(int64_t i) const;

  const Desc& desc() const { return case_.desc; }
  int64_t layers() const { return case_.layers(); }
  int64_t accepted() const { return case_.fold->window; }
  int64_t sets() const { return sets_; }
  int64_t slots() const { return sets_ * case_.desc.rows; }
  Pool& pool() { return *pool_; }
  int32_t slot(int64_t set, int64_t row) const { return ids_[static_cast<size_t>(set * case_.desc.rows + row)]; }
  const int32_t* slot_ids(int64_t set) const {
    return reinterpret_cast<const int32_t*>(slot_ids_.data()) + set * case_.desc.rows;
  }
  /// Bytes of the inputs, of the outputs, and of ring rows (all that a verify writes; all that one reads) of a row.
  int64_t input_bytes() const;
  int64_t output_bytes() const;
  int64_t ring_row_bytes() const;

  /// Two steps more than a cycle on set 0, and on the first and the last row those of the plain reference under
  /// on_commit. Logical states must agree byte for byte, `exact` outputs as well, `fast` ones to 2e-5 of their norm.
  Status check(std::string* difference);

 private:
  Status place(Field f, int64_t rows);
  TensorView view(Field f, std::initializer_list<int64_t> shape) const;
  Status read(const TensorView& from, int64_t at, int64_t bytes, std::byte* to) const;

  Case case_;
  Impls impls_;
  int64_t sets_;
  Device device_;
  void* stream_;
  Layout layout_;
  std::unique_ptr<Pool> pool_;
  std::vector<Slot> handles_;
  std::vector<int32_t> ids_;
  std::vector<Buffer> fields_;
  Buffer slot_ids_, accepted_;
};

}  // namespace ringfold::bench
