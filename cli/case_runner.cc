#include "cli/case_runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "check/mirror.h"
#include "check/support.h"
#include "cli/commands.h"
#include "ringfold/commit.h"
#include "ringfold/registry.h"

namespace ringfold::cli {
namespace {

CaseTensor zeros(DType dtype, std::vector<int64_t> shape) {
  size_t bytes = size_of(dtype);
  for (int64_t size : shape) bytes *= static_cast<size_t>(size);
  return CaseTensor(dtype, std::move(shape), std::vector<std::byte>(bytes));
}

std::vector<int64_t> shape_of(const TensorView& view) { return {view.shape.begin(), view.shape.begin() + view.rank}; }

/// [tokens,...] as [rows,tokens/rows,...].
TensorView split_tokens(const TensorView& view, int64_t rows) {
  TensorView result = view;
  result.rank = view.rank + 1;
  result.shape[0] = rows;
  result.shape[1] = view.shape[0] / rows;
  result.stride[0] = view.stride[0] * result.shape[1];
  for (size_t i = 1; i < static_cast<size_t>(result.rank); ++i) {
    result.stride[i] = view.stride[i - 1];
    if (i > 1) result.shape[i] = view.shape[i - 1];
  }
  return result;
}

Op library_op(StepOp op) {
  if (op == StepOp::commit) return Op::fold;
  return op == StepOp::decode ? Op::decode : Op::verify;
}

class Runner {
 public:
  Runner(const Case& input, const RunOptions& options, std::string where)
      : case_(input), options_(options), where_(std::move(where)) {}

  std::vector<NamedOutput> run() {
    refuse_what_cannot_run();
    create_pool();
    for (size_t i = 0; i < case_.steps.size(); ++i) {
      const CaseStep& step = case_.steps[i];
      index_ = i;
      status_ = zeros(DType::i32, {step.rows});
      switch (step.op) {
        case StepOp::verify:
        case StepOp::verify_snapshot:
        case StepOp::decode: compute(step); break;
        case StepOp::commit: commit_rows(step); break;
        case StepOp::reset: reset_rows(step); break;
        case StepOp::copy: copy_rows(step); break;
      }
      emit(fmt::format("{}.status", i), std::move(status_));
    }
    require(pool_->settle(handles_), where_);
    emit_view("state", pool_->state());
    if (options_.dump_ring) {
      const Ring ring = pool_->ring();
      emit_view("ring.k", ring.k);
      emit_view("ring.v", ring.v);
      emit_view("ring.g", ring.g);
      emit_view("ring.beta", ring.beta);
    }
    return std::move(outputs_);
  }

 private:
  std::string where() const {
    return fmt::format("{}: step {} ({})", where_, index_, to_string(case_.steps[index_].op));
  }

  /// Asks the library about every step before the first one runs, so that a case runs whole or not at all.
  void refuse_what_cannot_run() {
    for (size_t i = 0; i < case_.steps.size(); ++i) {
      const CaseStep& step = case_.steps[i];
      if (step.op == StepOp::reset || step.op == StepOp::copy) continue;
      index_ = i;
      Desc desc;
      desc.op = library_op(step.op);
      desc.device = options_.device;
      desc.kind = case_.pool.kind;
      desc.numerics = case_.numerics;
      desc.state_rounding = case_.pool.state_rounding;
      desc.fold_policy = case_.pool.fold_policy;
      desc.state_dtype = case_.pool.state_dtype;
      desc.act_dtype = case_.pool.act_dtype;
      desc.H = case_.pool.H;
      desc.HV = case_.pool.HV;
      desc.K = case_.pool.K;
      desc.V = case_.pool.V;
      desc.rows = std::max<int64_t>(step.rows, 1);
      desc.window = step.op == StepOp::decode ? 1 : case_.pool.ring_rows;  // bounds the windows too
      if (desc.fold_policy != FoldPolicy::on_commit) desc.history_rows = case_.pool.ring_rows;
      desc.layers = step.op == StepOp::commit ? case_.pool.layers : 1;
      Explanation explanation;
      require(explain(desc, options_.impl, &explanation), where());
    }
  }

  /// All slots acquired; handles_[id] is the handle of slot id.
  void create_pool() {
    PoolConfig config = case_.pool;
    config.device = options_.device;
    require(Pool::create(config, &pool_), where_);
    std::vector<Slot> acquired(static_cast<size_t>(case_.pool.slots));
    require(pool_->acquire(acquired), where_);
    handles_.resize(acquired.size());
    for (const Slot& slot : acquired) handles_[static_cast<size_t>(slot.id)] = slot;
    const TensorView state = pool_->state();
    check::copy(case_.state.view(), case_.layered ? state : state.at(0));
  }

  TensorView layer_of(const CaseTensor& tensor, int64_t layer) const {
    const TensorView view = tensor.view();
    return case_.layered && !view.empty() ? view.at(layer) : view;
  }

  std::vector<int64_t> layered(std::vector<int64_t> shape) const {
    if (case_.layered) shape.insert(shape.begin(), case_.pool.layers);
    return shape;
  }

  Mixer mixer_of(int64_t layer) const {
    Mixer mixer = case_.mixer;
    mixer.A_log = layer_of(case_.A_log, layer);
    mixer.dt_bias = layer_of(case_.dt_bias, layer);
    return mixer;
  }

  /// A token tensor of one layer, dense or ragged as the step says.
  TensorView tokens_of(const CaseStep& step, const CaseTensor& tensor, int64_t layer) const {
    const TensorView view = layer_of(tensor, layer);
    return step.cu_seqlens.absent() ? split_tokens(view, step.rows) : view;
  }

  Window window_of(const CaseStep& step, int64_t layer) const {
    Window window;
    window.q = tokens_of(step, step.q, layer);
    window.k = tokens_of(step, step.k, layer);
    window.v = tokens_of(step, step.v, layer);
    window.a = tokens_of(step, step.a, layer);
    window.b = tokens_of(step, step.b, layer);
    window.slot_ids = step.slot_ids.view();
    window.cu_seqlens = step.cu_seqlens.view();
    return window;
  }

  /// What verify and decode have in common.
  template <class Args>
  void fill(const CaseStep& step, const CaseTensor& out, int64_t layer, Args* args) const {
    pool_->bind(layer, args);
    args->mixer = mixer_of(layer);
    args->window = window_of(step, layer);
    args->out = tokens_of(step, out, layer);
    args->row_status = status_.view();
    args->numerics = case_.numerics;
    args->impl = options_.impl;
  }

  void compute(const CaseStep& step) {
    const PoolConfig& pool = case_.pool;
    CaseTensor out = zeros(pool.act_dtype, layered({step.tokens, pool.HV, pool.V}));
    CaseTensor states;
    if (step.op == StepOp::verify_snapshot) {
      states = zeros(pool.state_dtype, layered({step.tokens, pool.HV, pool.V, pool.K}));
    }
    // Layers judge rows alike: slots, windows and cursors move together, so the last layer's statuses are everyone's.
    for (int64_t layer = 0; layer < pool.layers; ++layer) {
      if (step.op == StepOp::decode) {
        DecodeArgs args;
        fill(step, out, layer, &args);
        require(check::mirrored::decode(args), where());
        continue;
      }
      VerifyArgs args;
      fill(step, out, layer, &args);
      if (!states.absent()) args.snapshots = tokens_of(step, states, layer);
      require(check::mirrored::verify(args), where());
    }
    emit(fmt::format("{}.o", index_), std::move(out));
    if (!states.absent()) emit(fmt::format("{}.states", index_), std::move(states));
  }

  void commit_rows(const CaseStep& step) {
    CommitArgs args;
    args.slot_ids = step.slot_ids.view();
    args.num_accepted = step.accept.view();
    args.track_slots = step.track_slots.view();
    args.track_steps = step.track_steps.view();
    args.row_status = status_.view();
    args.impl = options_.impl;
    require(check::mirrored::commit(*pool_, args), where());
  }

  RowStatus judge_slot(int32_t slot) const {
    if (slot < 0) return RowStatus::null_row;
    return slot < case_.pool.slots ? RowStatus::done : RowStatus::slot_out_of_range;
  }

  void set_status(int64_t row, RowStatus status) {
    static_cast<int32_t*>(status_.view().data)[row] = static_cast<int32_t>(status);
  }

  void reset_rows(const CaseStep& step) {
    for (int64_t row = 0; row < step.rows; ++row) {
      const int32_t slot = step.slot_ids.value(row);
      const RowStatus status = judge_slot(slot);
      set_status(row, status);
      if (status == RowStatus::done) require(pool_->reset(handles_[static_cast<size_t>(slot)]), where());
    }
  }

  /// Rows that write one slot twice are all refused; the others are copied at once.
  void copy_rows(const CaseStep& step) {
    std::vector<int> writers(handles_.size());
    for (int64_t row = 0; row < step.rows; ++row) {
      if (judge_copy(step, row) == RowStatus::done) ++writers[static_cast<size_t>(step.dst.value(row))];
    }
    std::vector<Slot> src, dst;
    for (int64_t row = 0; row < step.rows; ++row) {
      RowStatus status = judge_copy(step, row);
      if (status == RowStatus::done && writers[static_cast<size_t>(step.dst.value(row))] > 1) {
        status = RowStatus::duplicate_slot;
      }
      set_status(row, status);
      if (status != RowStatus::done) continue;
      src.push_back(handles_[static_cast<size_t>(step.src.value(row))]);
      dst.push_back(handles_[static_cast<size_t>(step.dst.value(row))]);
    }
    require(pool_->copy(src, dst), where());
  }

  RowStatus judge_copy(const CaseStep& step, int64_t row) const {
    const RowStatus src = judge_slot(step.src.value(row)), dst = judge_slot(step.dst.value(row));
    if (src == RowStatus::null_row || dst == RowStatus::null_row) return RowStatus::null_row;
    return src == RowStatus::done ? dst : src;
  }

  void emit(std::string name, CaseTensor tensor) { outputs_.push_back({std::move(name), std::move(tensor)}); }

  /// A copy of a pool tensor [layers,...], without the layers where the case has none.
  void emit_view(std::string name, const TensorView& all) {
    const TensorView view = case_.layered ? all : all.at(0);
    CaseTensor tensor = zeros(view.dtype, shape_of(view));
    check::copy(view, tensor.view());
    emit(std::move(name), std::move(tensor));
  }

  const Case& case_;
  const RunOptions& options_;
  std::string where_;
  size_t index_ = 0;
  std::unique_ptr<Pool> pool_;
  std::vector<Slot> handles_;
  CaseTensor status_;
  std::vector<NamedOutput> outputs_;
};

}  // namespace

std::vector<NamedOutput> run_case(const Case& input, const RunOptions& options, const std::string& where) {
  return Runner(input, options, where).run();
}

}  // namespace ringfold::cli
