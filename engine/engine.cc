#include "engine/engine.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "core/parallel.h"
#include "engine/thread_scope.h"
#include "engine/vector_ops.h"

namespace ringfold::engine {

namespace {

/// Copies row `row` of a weight matrix, widened to fp32.
void copy_row(const Matrix& m, int64_t row, float* out) {
  const TensorView view(m.data, m.dtype, {m.rows, m.cols});
  for (int64_t i = 0; i < m.cols; ++i) out[i] = widen(view, row * m.cols + i);
}

void enlarge(std::vector<float>* buffer, int64_t size) {
  if (static_cast<int64_t>(buffer->size()) < size) buffer->resize(static_cast<size_t>(size));
}

}  // namespace

/// A step's rows, flattened.
struct Engine::Batch {
  std::span<const StepRow> rows;
  int64_t tokens = 0;
  int64_t longest = 0;  ///< positions of the longest sequence, the window included
};

Engine::~Engine() = default;

Status Engine::load(const std::string& dir, const EngineOptions& options, std::unique_ptr<Engine>* engine) {
  std::unique_ptr<Engine> e(new Engine);
  if (Status s = read_config(dir, &e->config_); !s.ok()) return s;
  if (Status s = load_weights(dir, e->config_, &e->weights_); !s.ok()) return s;
  const ModelConfig& c = e->config_;
  if (options.max_context < 0 || options.max_context > c.max_position_embeddings) {
    return {Code::invalid_argument, fmt::format("max_context: expected 0 to max_position_embeddings = {}, found {}",
                                                c.max_position_embeddings, options.max_context)};
  }
  e->options_ = options;
  e->max_context_ = options.max_context > 0 ? options.max_context : c.max_position_embeddings;
  for (int64_t i = 0; i < c.rotary_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(c.rotary_dim);
    e->inverse_frequency_.push_back(1.0f / std::pow(c.rope_theta, exponent));
  }
  if (Status s = e->create_pool(); !s.ok()) return s;
  if (!options.impl.empty() && c.linear_layers() > 0) {  // refused here rather than at the first step
    Explanation explanation;
    Desc layer = e->describe(options.max_window);
    layer.op = Op::verify_layer;
    layer.channels = c.conv_channels();
    layer.conv_width = c.linear_conv_kernel_dim;
    if (Status s = explain(layer, options.impl, &explanation); !s.ok()) return s;
  }
  *engine = std::move(e);
  return {};
}

Status Engine::create_pool() {
  const ModelConfig& c = config_;
  PoolConfig p;
  p.layers = std::max<int64_t>(1, c.linear_layers());  // a model without linear layers still needs slots
  p.slots = options_.max_sequences;
  p.H = c.linear_num_key_heads;
  p.HV = c.linear_num_value_heads;
  p.K = c.linear_key_head_dim;
  p.V = c.linear_value_head_dim;
  // A ring of two windows lets commits move cursors only; a lazy one is as long as it may be.
  p.fold_policy = options_.fold_policy;
  p.max_window = options_.max_window;
  p.ring_rows = options_.max_window;
  if (p.fold_policy == FoldPolicy::on_next_verify) p.ring_rows = std::min<int64_t>(kMaxWindow, 2 * p.max_window);
  if (p.fold_policy == FoldPolicy::lazy) p.ring_rows = kMaxWindow;
  p.conv_channels = c.conv_channels();
  p.conv_width = c.linear_conv_kernel_dim;
  return Pool::create(p, &pool_);
}

Desc Engine::describe(int64_t window) const {
  Desc d;
  d.H = config_.linear_num_key_heads;
  d.HV = config_.linear_num_value_heads;
  d.K = config_.linear_key_head_dim;
  d.V = config_.linear_value_head_dim;
  d.window = window;
  d.fold_policy = options_.fold_policy;
  return d;
}

float* Engine::kv(Sequence* s, int64_t layer, int value, int64_t head) const {
  return s->kv_.data() + ((layer * 2 + value) * config_.num_key_value_heads + head) * s->capacity_ * config_.head_dim;
}

Status Engine::check(std::span<const StepRow> rows, Mode mode) const {
  const auto bad = [](size_t row, const std::string& what) {
    return Status(Code::invalid_argument, fmt::format("rows[{}]: {}", row, what));
  };
  if (rows.empty()) return {Code::invalid_argument, "rows: expected at least one, found none"};
  const int64_t longest = mode == Mode::verify ? options_.max_window : int64_t{kMaxWindow};
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto& [sequence, tokens] = rows[r];
    const int64_t count = static_cast<int64_t>(tokens.size());
    if (!sequence || sequence->pool_ != pool_.get()) return bad(r, "expected a sequence of this engine, found another");
    if (count < 1 || count > longest) return bad(r, fmt::format("expected 1 to {} tokens, found {}", longest, count));
    if (sequence->on_trial_ && mode == Mode::verify) return bad(r, "expected no trial during verify, found one");
    if (sequence->length_ + count > max_context_) {
      return bad(
          r, fmt::format("expected at most {} tokens of context, found {}", max_context_, sequence->length_ + count));
    }
    for (const int32_t id : tokens) {
      if (id < 0 || id >= config_.vocab_size) {
        return bad(r, fmt::format("expected token ids below {}, found {}", config_.vocab_size, id));
      }
    }
    for (size_t other = 0; other < r; ++other) {
      if (rows[other].sequence == sequence)
        return bad(r, fmt::format("expected another sequence than rows[{}]", other));
    }
  }
  return {};
}

void Engine::reserve(int64_t tokens, int64_t length) {
  const ModelConfig& c = config_;
  const int64_t heads = c.num_attention_heads * c.head_dim, kv_heads = c.num_key_value_heads * c.head_dim;
  const int64_t linear = c.conv_channels() + c.value_dim() + 2 * c.linear_num_value_heads;
  enlarge(&x_, tokens * c.hidden_size);
  enlarge(&normed_, tokens * c.hidden_size);
  enlarge(&mixed_, tokens * std::max(linear, 2 * heads + 2 * kv_heads));
  enlarge(&mixer_out_, tokens * std::max(c.value_dim(), heads));
  enlarge(&mlp_, tokens * 2 * c.intermediate_size);
  enlarge(&cosine_, tokens * c.rotary_dim / 2);
  enlarge(&sine_, tokens * c.rotary_dim / 2);
  // Room for twice the length, so that a growing sequence does not allocate at every step.
  const int64_t scores = c.num_attention_heads * tokens * (length + 8);
  if (static_cast<int64_t>(scores_.size()) < scores) enlarge(&scores_, 2 * scores);
  enlarge(&logits_, tokens * c.vocab_size);
}

void Engine::norm_rows(const std::vector<float>& weight, int64_t tokens) {
  const int64_t n = config_.hidden_size;
  for (int64_t t = 0; t < tokens; ++t) {
    rms_norm(x_.data() + t * n, weight.data(), n, config_.rms_norm_eps, normed_.data() + t * n);
  }
}

Status Engine::step(std::span<const StepRow> rows, Mode mode, Logits which, const float** logits) {
  if (Status s = check(rows, mode); !s.ok()) return s;
  const ThreadScope threads(options_.threads);
  const detail::FpGuard guard;
  Batch batch{rows, 0, 0};
  slots_.clear();
  cu_seqlens_.assign(1, 0);
  for (const StepRow& row : rows) {
    Sequence& s = *row.sequence;
    const int64_t count = static_cast<int64_t>(row.tokens.size());
    batch.tokens += count;
    batch.longest = std::max(batch.longest, s.length_ + count);
    slots_.push_back(s.on_trial_ ? s.trial_slot_.id : s.slot_.id);
    cu_seqlens_.push_back(static_cast<int32_t>(batch.tokens));
    grow(&s, s.length_ + count);
  }
  reserve(batch.tokens, batch.longest);

  const int64_t hidden = config_.hidden_size, half = config_.rotary_dim / 2;
  int64_t t = 0;
  for (const StepRow& row : rows) {
    for (size_t i = 0; i < row.tokens.size(); ++i, ++t) {
      copy_row(weights_.embedding, row.tokens[i], x_.data() + t * hidden);
      for (int64_t f = 0; f < half; ++f) {
        const float position = static_cast<float>(row.sequence->length_ + static_cast<int64_t>(i));
        const double angle = position * inverse_frequency_[static_cast<size_t>(f)];
        cosine_[static_cast<size_t>(t * half + f)] = static_cast<float>(std::cos(angle));
        sine_[static_cast<size_t>(t * half + f)] = static_cast<float>(std::sin(angle));
      }
    }
  }

  int64_t linear = 0, attention = 0;
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    const LayerWeights& w = weights_.layers[l];
    norm_rows(w.input_norm, batch.tokens);
    if (config_.full_attention[l]) {
      attention_mixer(batch, w, attention++);
    } else if (Status s = linear_mixer(batch, w, linear++, mode); !s.ok()) {
      return s;
    }
    norm_rows(w.post_norm, batch.tokens);
    mlp(batch, w);
  }

  for (const StepRow& row : rows) {
    const int64_t count = static_cast<int64_t>(row.tokens.size());
    row.sequence->pending_ = mode == Mode::verify ? count : 0;
    if (mode == Mode::decode) row.sequence->length_ += count;
  }
  if (logits) *logits = nullptr;
  if (which == Logits::none) return {};
  int64_t wanted = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int64_t i = which == Logits::all ? cu_seqlens_[r] : cu_seqlens_[r + 1] - 1; i < cu_seqlens_[r + 1]; ++i) {
      rms_norm(x_.data() + i * hidden, weights_.final_norm.data(), hidden, config_.rms_norm_eps,
               normed_.data() + wanted++ * hidden);
    }
  }
  const Product product{weights_.head, logits_.data(), config_.vocab_size, false};
  matmul({&product, 1}, normed_.data(), hidden, wanted);
  if (logits) *logits = logits_.data();
  return {};
}

Status Engine::linear_mixer(const Batch& batch, const LayerWeights& w, int64_t index, Mode mode) {
  const ModelConfig& c = config_;
  const int64_t n = batch.tokens, B = static_cast<int64_t>(batch.rows.size());
  const int64_t HV = c.linear_num_value_heads, V = c.linear_value_head_dim;
  const int64_t C = c.conv_channels(), width = C + c.value_dim() + 2 * HV;
  // One packed row per token: qkv, z, b, a. The library takes views of it.
  float* qkv = mixed_.data();
  float* z = qkv + C;
  float* b = z + c.value_dim();
  float* a = b + HV;
  const Product projections[] = {
      {w.in_qkv, qkv, width, false}, {w.in_z, z, width, false}, {w.in_b, b, width, false}, {w.in_a, a, width, false}};
  matmul(projections, normed_.data(), c.hidden_size, n);

  LayerArgs layer;
  pool_->bind(index, &layer);
  layer.mixer.A_log = TensorView(w.A_log.data(), DType::f32, {HV});
  layer.mixer.dt_bias = TensorView(w.dt_bias.data(), DType::f32, {HV});
  layer.qkv = TensorView(qkv, DType::f32, {n, C}, {width, 1});
  layer.window.a = TensorView(a, DType::f32, {n, HV}, {width, 1});
  layer.window.b = TensorView(b, DType::f32, {n, HV}, {width, 1});
  layer.window.slot_ids = TensorView(slots_.data(), DType::i32, {B});
  layer.window.cu_seqlens = TensorView(cu_seqlens_.data(), DType::i32, {B + 1});
  layer.conv_weight = w.conv_weight;
  layer.z = TensorView(z, DType::f32, {n, HV, V}, {width, V, 1});
  layer.norm_weight = TensorView(w.mixer_norm.data(), DType::f32, {V});
  layer.norm_eps = c.rms_norm_eps;
  layer.out = TensorView(mixer_out_.data(), DType::f32, {n, HV, V});
  layer.impl = options_.impl;
  if (Status s = mode == Mode::verify ? verify_layer(layer) : decode_layer(layer); !s.ok()) return s;

  const Product out_proj{w.out_proj, x_.data(), c.hidden_size, true};
  matmul({&out_proj, 1}, mixer_out_.data(), c.value_dim(), n);
  return {};
}

void Engine::attention_mixer(const Batch& batch, const LayerWeights& w, int64_t index) {
  const ModelConfig& c = config_;
  const int64_t n = batch.tokens, dim = c.head_dim, heads = c.num_attention_heads, kv_heads = c.num_key_value_heads;
  const int64_t width = 2 * (heads + kv_heads) * dim, half = c.rotary_dim / 2;
  // One packed row per token: query and gate of each head in turn, then keys, then values.
  float* q = mixed_.data();
  float* k = q + 2 * heads * dim;
  float* v = k + kv_heads * dim;
  const Product projections[] = {{w.q_proj, q, width, false}, {w.k_proj, k, width, false}, {w.v_proj, v, width, false}};
  matmul(projections, normed_.data(), c.hidden_size, n);

  int64_t t = 0;
  for (const StepRow& row : batch.rows) {
    for (size_t i = 0; i < row.tokens.size(); ++i, ++t) {
      const float* cosine = cosine_.data() + t * half;
      const float* sine = sine_.data() + t * half;
      for (int64_t h = 0; h < heads; ++h) {
        float* head = q + t * width + 2 * h * dim;
        rms_norm(head, w.q_norm.data(), dim, c.rms_norm_eps, head);
        rope(head, cosine, sine, half);
      }
      const int64_t position = row.sequence->length_ + static_cast<int64_t>(i);
      for (int64_t h = 0; h < kv_heads; ++h) {
        float* key = kv(row.sequence, index, 0, h) + position * dim;
        rms_norm(k + t * width + h * dim, w.k_norm.data(), dim, c.rms_norm_eps, key);
        rope(key, cosine, sine, half);
        std::copy_n(v + t * width + h * dim, dim, kv(row.sequence, index, 1, h) + position * dim);
      }
    }
  }

  const int64_t ld_scores = batch.longest + 8;
  const int threads = threads_for(2 * n * batch.longest * heads * dim);
  detail::parallel_for(static_cast<int64_t>(batch.rows.size()) * heads, threads, [&](int64_t task) {
    const int64_t r = task / heads, h = task % heads, begin = cu_seqlens_[static_cast<size_t>(r)];
    Sequence* s = batch.rows[static_cast<size_t>(r)].sequence;
    HeadAttention a;
    a.tokens = cu_seqlens_[static_cast<size_t>(r) + 1] - begin;
    a.length = s->length_ + a.tokens;
    a.dim = dim;
    a.q = q + begin * width + 2 * h * dim;
    a.ldq = width;
    a.keys = kv(s, index, 0, h / (heads / kv_heads));
    a.values = kv(s, index, 1, h / (heads / kv_heads));
    a.scale = 1.0f / std::sqrt(static_cast<float>(dim));
    a.scores = scores_.data() + (h * n + begin) * ld_scores;
    a.ld_scores = ld_scores;
    a.out = mixer_out_.data() + begin * heads * dim + h * dim;
    a.ldo = heads * dim;
    attend(a);
    for (int64_t i = 0; i < a.tokens; ++i) sigmoid_gate(a.q + i * width + dim, dim, a.out + i * a.ldo);
  });
  const Product o_proj{w.o_proj, x_.data(), c.hidden_size, true};
  matmul({&o_proj, 1}, mixer_out_.data(), heads * dim, n);
}

void Engine::mlp(const Batch& batch, const LayerWeights& w) {
  const int64_t n = batch.tokens, inner = config_.intermediate_size, hidden = config_.hidden_size;
  float* gate = mlp_.data();
  float* up = gate + n * inner;
  detail::parallel_chunks(
      inner, rows_per_task(inner), threads_for(2 * n * inner * hidden), [&](int64_t begin, int64_t end) {
        matmul_rows(w.gate_proj, begin, end, normed_.data(), hidden, n, gate, inner, false);
        matmul_rows(w.up_proj, begin, end, normed_.data(), hidden, n, up, inner, false);
        for (int64_t t = 0; t < n; ++t) {
          silu_mul(gate + t * inner + begin, up + t * inner + begin, end - begin, gate + t * inner + begin);
        }
      });
  const Product down{w.down_proj, x_.data(), hidden, true};
  matmul({&down, 1}, gate, inner, n);
}

}  // namespace ringfold::engine
