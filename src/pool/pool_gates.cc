// The gates' parameters that a pool keeps, where its rings hold raw gate inputs.
#include <fmt/format.h>

#include "core/check_view.h"
#include "pool/pool_impl.h"

namespace ringfold {

using detail::check_device;
using detail::check_dtype;
using detail::check_view;

namespace {

/// What fold takes from a mixer but its views.
bool same_formula(const Mixer& a, const Mixer& b) {
  return a.softplus_beta == b.softplus_beta && a.softplus_threshold == b.softplus_threshold &&
         a.lower_bound == b.lower_bound;
}

Status check_one(const Pool& pool, const Mixer& m, const Mixer& first) {
  const PoolConfig& c = pool.config();
  if (m.kind != c.kind) return detail::invalid("kind", to_string(c.kind), to_string(m.kind));
  RINGFOLD_RETURN_IF_ERROR(check_view("A_log", m.A_log, {{"HV", c.HV}}));
  RINGFOLD_RETURN_IF_ERROR(check_dtype("A_log", m.A_log, DType::f32));
  if (!m.dt_bias.empty()) {
    RINGFOLD_RETURN_IF_ERROR(check_view("dt_bias", m.dt_bias, {{"HV", c.HV}, {"K", c.K}}));
    RINGFOLD_RETURN_IF_ERROR(check_dtype("dt_bias", m.dt_bias, DType::f32));
  }
  RINGFOLD_RETURN_IF_ERROR(check_device({{"the pool", pool.state()}, {"A_log", m.A_log}, {"dt_bias", m.dt_bias}}));
  if (same_formula(m, first)) return {};
  return detail::invalid("softplus_beta, softplus_threshold, lower_bound", "those of mixers[0]", "others");
}

}  // namespace

Status Pool::set_mixers(std::span<const Mixer> mixers) {
  PoolStore& p = *impl_;
  const PoolConfig& c = p.config;
  if (!c.ring_a) return detail::invalid("mixers", "a pool with ring_a (others need none)", "a pool without");
  if (mixers.size() != static_cast<size_t>(c.layers)) {
    return detail::invalid("mixers", fmt::format("{} of them, one for each layer", c.layers),
                           fmt::format("{}", mixers.size()));
  }
  for (size_t i = 0; i < mixers.size(); ++i) {
    if (const Status s = check_one(*this, mixers[i], mixers[0]); !s.ok()) {
      return {s.code(), fmt::format("mixers[{}].{}", i, s.message())};
    }
  }
  Mixer all = mixers[0];
  auto* const memory = reinterpret_cast<float*>(p.gates.get());
  all.A_log = TensorView(memory, DType::f32, {c.layers, c.HV});
  all.dt_bias = TensorView(memory + c.layers * c.HV, DType::f32, {c.layers, c.HV, c.K});
  all.A_log.device = all.dt_bias.device = c.device;
  p.mixer.reset();  // until all of it is there
  const auto heads = static_cast<size_t>(c.HV), row = static_cast<size_t>(c.K) * sizeof(float);
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const Mixer& m = mixers[static_cast<size_t>(layer)];
    RINGFOLD_RETURN_IF_ERROR(p.memory->copy(all.A_log.at(layer).data, m.A_log.data, heads * sizeof(float), p.stream));
    void* const bias = all.dt_bias.at(layer).data;
    if (m.dt_bias.empty()) {
      RINGFOLD_RETURN_IF_ERROR(p.memory->fill(bias, 0, heads * row, p.stream));
    } else {
      const size_t pitch = static_cast<size_t>(m.dt_bias.stride[0]) * sizeof(float);
      RINGFOLD_RETURN_IF_ERROR(p.memory->copy_rows(bias, row, m.dt_bias.data, pitch, row, heads, p.stream));
    }
  }
  RINGFOLD_RETURN_IF_ERROR(p.memory->synchronise(p.stream));
  p.mixer = all;
  return {};
}

Status PoolStore::check_mixers() const {
  if (!config.ring_a || mixer) return {};
  return detail::invalid("mixers", "set_mixers before the first fold of a pool with ring_a", "none");
}

void PoolStore::bind_gate(int64_t layer, Mixer* to) const {
  if (!mixer || layer < 0 || layer >= config.layers) return;
  to->A_log = mixer->A_log.at(layer);
  to->dt_bias = mixer->dt_bias.at(layer);
  to->softplus_beta = mixer->softplus_beta;
  to->softplus_threshold = mixer->softplus_threshold;
  to->lower_bound = mixer->lower_bound;
}

}  // namespace ringfold
