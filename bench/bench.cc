#include "bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "bench/check_case.h"
#include "bench/timer.h"
#include "core/check_view.h"

namespace ringfold::bench {
namespace {

/// Sets the number of threads, and puts back what it was.
class ThreadSetting {
 public:
  explicit ThreadSetting(int threads) : threads_(threads), before_(num_threads()) {
    if (threads_ > 0) set_num_threads(threads_);
  }
  ~ThreadSetting() {
    if (threads_ > 0) set_num_threads(before_);
  }
  ThreadSetting(const ThreadSetting&) = delete;
  ThreadSetting& operator=(const ThreadSetting&) = delete;

 private:
  int threads_, before_;
};

std::vector<Case> wanted_cases(const Options& options) {
  std::vector<Case> cases = standard_cases(options.device);
  if (options.filters.empty()) return cases;
  std::erase_if(cases, [&](const Case& c) {
    return std::none_of(options.filters.begin(), options.filters.end(),
                        [&](const std::string& f) { return c.key.find(f) != std::string::npos; });
  });
  return cases;
}

bool same_shape(const Desc& a, const Desc& b) {
  return a.kind == b.kind && a.state_dtype == b.state_dtype && a.act_dtype == b.act_dtype && a.H == b.H &&
         a.HV == b.HV && a.K == b.K && a.V == b.V && a.ring_a == b.ring_a;
}

Layout layout_of(const Case& c, const Timer& timer) {
  Layout layout;
  layout.desc = c.desc;
  layout.layers = c.layers();
  layout.sets = timer.sets(c);
  layout.out = c.desc.act_dtype;
  return layout;
}

/// What one case needs to run.
struct Chosen {
  Impls impls;
  Work work;
};

/// explain(), with the reasons of the device's own implementations alone where none serves.
Status ask(const Desc& desc, std::string_view impl, Explanation* explanation) {
  const Status status = explain(desc, impl, explanation);
  if (status.code() != Code::unsupported) return status;
  const std::vector<std::string_view> own = implementations(desc.device);
  std::string reasons;
  for (const Candidate& c : explanation->candidates) {
    if (std::find(own.begin(), own.end(), c.impl) == own.end() || c.serves) continue;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", c.impl, c.reason);
  }
  return reasons.empty() ? status : Status{Code::unsupported, reasons};
}

/// What a step of a pool costs, the mean over a flush cycle: its plans know nothing of cycles.
void count_cycle(const Case& c, Work* work, Row* row) {
  const PoolRig rig(c, {}, 1, Device::cpu, nullptr);
  const auto elements = static_cast<double>(c.state_bytes()) / static_cast<double>(size_of(c.desc.state_dtype));
  double replayed = 0;
  for (int64_t i = 0; i < rig.period(); ++i)
    replayed += static_cast<double>((c.desc.ring_u ? 0 : rig.history(i)) + rig.folds(i));
  replayed /= static_cast<double>(rig.period());
  work->fmas = static_cast<int64_t>(elements * (4.0 * static_cast<double>(c.desc.window) - 2 + 3 * replayed));
  for (const StepCost& cost : step_costs(c.desc, static_cast<double>(rig.accepted()), c.layers(),
                                         *machine(c.desc.device == Device::cpu ? "cpu" : "h200"))) {
    const bool ring = c.desc.fold_policy == FoldPolicy::on_commit || cost.ring_rows == c.desc.history_rows;
    if (cost.policy == c.desc.fold_policy && ring && cost.ring_u == c.desc.ring_u && cost.numerics == c.desc.numerics)
      row->bytes = cost.bytes;
  }
}

/// Chooses the implementations of a case and fills in what is known of its row before it runs. A whole step falls back
/// to `exact` where `fast` is not served.
Status choose(const Options& options, Case* c, Row* row, Chosen* chosen) {
  Explanation call, fold;
  Status status = ask(c->desc, options.impl, &call);
  if (status.code() == Code::unsupported && c->fold && !c->pool && c->desc.numerics == Numerics::fast) {
    c->desc.numerics = Numerics::exact;
    status = ask(c->desc, options.impl, &call);
  }
  row->key = c->key;
  row->desc = c->desc;
  RINGFOLD_RETURN_IF_ERROR(status);
  const Plan& p = call.plan;
  chosen->impls.call = row->impl = p.impl;
  row->threads = p.threads;
  chosen->work = {p.bytes_read, p.bytes_written, p.fmas};
  if (is_layer(c->desc.op)) {
    Explanation mixer;
    Desc part = c->desc;
    part.op = c->desc.op == Op::verify_layer ? Op::verify : Op::decode;
    RINGFOLD_RETURN_IF_ERROR(ask(part, {}, &mixer));
    chosen->impls.chain = row->chain_impl = mixer.plan.impl;
  }
  if (c->fold) {
    RINGFOLD_RETURN_IF_ERROR(ask(*c->fold, options.impl, &fold));
    const Plan& f = fold.plan;
    const int64_t L = c->layers();
    chosen->impls.fold = f.impl;
    chosen->work = {L * p.bytes_read + f.bytes_read, L * p.bytes_written + f.bytes_written, L * p.fmas + f.fmas};
  }
  row->bytes = static_cast<double>(chosen->work.bytes_read + chosen->work.bytes_written);
  if (c->fold) row->bytes /= static_cast<double>(c->layers());
  if (c->pool) count_cycle(*c, &chosen->work, row);
  return {};
}

/// The run's state: one set of tensors at a time.
class Runner {
 public:
  Runner(const std::vector<Case>& cases, Timer* timer)
      : cases_(cases), timer_(*timer), tensors_(cases.front().desc.device, timer->stream()) {}

  Status time(const Case& c, const Chosen& chosen, Row* row) {
    if (c.pool) return time_pool(c, chosen, row);
    RINGFOLD_RETURN_IF_ERROR(provide(c.desc));
    Rig rig(c, layout_of(c, timer_), chosen.impls, &tensors_);
    RINGFOLD_RETURN_IF_ERROR(rig.prepare());
    RINGFOLD_RETURN_IF_ERROR(check_case(rig, &row->failed));
    return row->failed.empty() ? timer_.measure(rig, chosen.work, row) : Status{};
  }

 private:
  Status time_pool(const Case& c, const Chosen& chosen, Row* row) {
    held_.reset();
    tensors_ = Tensors(c.desc.device, timer_.stream());
    {
      Case two_layers = c;  // the plain reference is slow
      two_layers.fold->layers = std::min<int64_t>(2, c.layers());
      PoolRig rig(two_layers, chosen.impls, 1, c.desc.device, timer_.stream());
      RINGFOLD_RETURN_IF_ERROR(rig.prepare(DType::f32));
      RINGFOLD_RETURN_IF_ERROR(rig.check(&row->failed));
    }
    if (!row->failed.empty()) return {};
    PoolRig rig(c, chosen.impls, timer_.sets(c), c.desc.device, timer_.stream());
    RINGFOLD_RETURN_IF_ERROR(rig.prepare(c.desc.act_dtype));
    return timer_.measure(rig, chosen.work, row);
  }

  /// Tensors large enough for all cases of this shape.
  Status provide(const Desc& shape) {
    if (held_ && same_shape(*held_, shape)) return {};
    held_.reset();
    std::vector<Layout> layouts;
    for (const Case& c : cases_) {
      if (!c.pool && same_shape(c.desc, shape)) layouts.push_back(layout_of(c, timer_));
    }
    RINGFOLD_RETURN_IF_ERROR(tensors_.allocate(layouts, true));
    held_ = shape;
    return {};
  }

  const std::vector<Case>& cases_;
  Timer& timer_;
  Tensors tensors_;
  std::optional<Desc> held_;
};

Status make_timer(const Options& options, std::unique_ptr<Timer>* timer) {
  if (options.device == Device::cuda) {
#if defined(RINGFOLD_CUDA)
    return cuda_timer(options, timer);
#else
    return {Code::unsupported, "this build has no CUDA backend; use device cpu"};
#endif
  }
  *timer = cpu_timer(options);
  return {};
}

/// What this machine or this build cannot do is listed with its reason, and the other rows go on; whoever reads the
/// result sees which rows are missing. Any other error ends the run.
bool is_skip(const Status& status) {
  return status.code() == Code::unsupported || status.code() == Code::out_of_memory;
}

}  // namespace

Status run(const Options& options, std::vector<Row>* rows) {
  const std::vector<Case> cases = wanted_cases(options);
  if (cases.empty()) return {Code::not_found, "filter: no benchmark's key contains it (list them)"};
  const ThreadSetting threads(options.threads);
  std::unique_ptr<Timer> timer;
  std::optional<Runner> runner;
  if (!options.list_only) {
    RINGFOLD_RETURN_IF_ERROR(make_timer(options, &timer));
    runner.emplace(cases, timer.get());
  }
  for (Case c : cases) {
    Row row;
    Chosen chosen;
    Status status = choose(options, &c, &row, &chosen);
    if (status.ok() && runner) status = runner->time(c, chosen, &row);
    if (is_skip(status)) {
      row.skipped = status.message();
    } else if (!status.ok()) {
      return status;
    }
    rows->push_back(row);
    if (options.progress) options.progress(static_cast<int>(rows->size()), static_cast<int>(cases.size()), row);
  }
  return {};
}

}  // namespace ringfold::bench
