// A case file (docs/case-files.md): a reproducible sequence of steps with all of its inputs, in one safetensors file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ringfold/pool.h"

namespace ringfold::cli {

/// A tensor copied out of the file, so that its memory is aligned. Absent: rank 0.
class CaseTensor {
 public:
  CaseTensor() = default;
  CaseTensor(DType dtype, std::vector<int64_t> shape, std::vector<std::byte> bytes)
      : dtype_(dtype), shape_(std::move(shape)), bytes_(std::move(bytes)) {}

  bool absent() const { return shape_.empty(); }
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  /// Of the int32 tensors.
  int32_t value(int64_t index) const;
  /// Packed view; an empty view if absent.
  TensorView view() const;

 private:
  DType dtype_ = DType::f32;
  std::vector<int64_t> shape_;
  std::vector<std::byte> bytes_;
};

enum class StepOp : uint8_t { verify, commit, decode, verify_snapshot, reset, copy };
const char* to_string(StepOp op);

/// One step. Tensors of other operations are absent.
struct CaseStep {
  StepOp op = StepOp::verify;
  int64_t rows = 0;                     ///< B
  int64_t tokens = 0;                   ///< verify, decode, verify_snapshot: tokens of all rows
  CaseTensor q, k, v, a, b;             ///< [layers?,tokens,...]
  CaseTensor slot_ids;                  ///< i32 [B]; a commit without them takes those of the last verify
  CaseTensor cu_seqlens;                ///< i32 [B+1], optional
  CaseTensor accept;                    ///< i32 [B]
  CaseTensor track_slots, track_steps;  ///< i32 [B], both or none
  CaseTensor src, dst;                  ///< i32 [B]

  bool computes() const { return op == StepOp::verify || op == StepOp::decode || op == StepOp::verify_snapshot; }
};

struct Case {
  PoolConfig pool;       ///< shape, dtypes, ring rows (the largest window where the file says null), policies
  bool layered = false;  ///< tensors have a leading [layers]
  Numerics numerics = Numerics::exact;
  Mixer mixer;  ///< parameters; A_log and dt_bias are set per layer by the runner
  CaseTensor state, A_log, dt_bias;
  std::vector<CaseStep> steps;
  std::vector<std::string> unused;  ///< tensors of the file that no step reads
};

/// Reads and checks a case file. Throws CommandError, which names the tensor or key, what was expected and what was
/// found.
Case read_case(const std::string& path);

}  // namespace ringfold::cli
