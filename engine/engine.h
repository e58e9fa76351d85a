// A small inference engine for Qwen3.5 text checkpoints on top of ringfold's public API.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/weights.h"
#include "ringfold/ringfold.h"

namespace ringfold::engine {

struct EngineOptions {
  int64_t max_sequences = 4;  ///< live sequences; one that drafts in trials counts twice
  int64_t max_window = 8;     ///< largest verify window (drafts + 1), 1 .. kMaxWindow; below that but with on_commit
  int64_t max_context = 0;    ///< tokens per sequence; 0: max_position_embeddings
  int threads = 0;            ///< of a step; 0: the setting of set_num_threads()
  FoldPolicy fold_policy = FoldPolicy::on_commit;  ///< when accepted tokens reach the states; no bit depends on it
  std::string impl;                                ///< forces ringfold's implementation by name; empty: the best
};

/// One request: a slot of the pool for the linear layers, and a KV cache with a length for the attention layers. Both
/// sides follow one discipline: a window is appended by verify, and commit decides how much of it counts. Made by
/// Engine::create_sequence, and must not outlive its engine.
class Sequence {
 public:
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  /// Tokens that state and cache hold; a window that is not committed does not count.
  int64_t length() const { return length_; }
  /// Tokens of the window that waits for commit; 0: none.
  int64_t pending() const { return pending_; }

 private:
  friend class Engine;
  Sequence() = default;

  Pool* pool_ = nullptr;
  Slot slot_, trial_slot_;  ///< the trial's slot is taken at the first trial and kept
  bool on_trial_ = false;
  int64_t length_ = 0, pending_ = 0, trial_start_ = 0;
  int64_t capacity_ = 0;   ///< positions that kv_ has room for
  std::vector<float> kv_;  ///< [attention layers, keys and values, kv heads, capacity, head_dim]
};

/// decode: the tokens are certain; state and cache take them at once. verify: they wait for commit.
enum class Mode { decode, verify };
/// For which tokens of a step logits are computed: none, the last of each row, or all.
enum class Logits { none, last, all };

/// The part of one sequence in a step.
struct StepRow {
  Sequence* sequence = nullptr;
  std::span<const int32_t> tokens;  ///< 1 .. kMaxWindow (decode) or max_window (verify)
};

/// A model that is loaded, with its pool. A token's logits depend, bit for bit, on the tokens before it alone: not on
/// how they were cut into windows, on other sequences of the step, on threads or on the instruction set. Not
/// thread-safe. Buffers grow with the largest step and the longest sequence; nothing else is allocated while running.
class Engine {
 public:
  /// Reads the checkpoint in directory `dir`. Errors: those of read_config and load_weights; invalid_argument for the
  /// options, not_found or unsupported for an implementation that does not exist or does not serve the model.
  static Status load(const std::string& dir, const EngineOptions& options, std::unique_ptr<Engine>* engine);
  ~Engine();

  const ModelConfig& config() const { return config_; }
  const EngineOptions& options() const { return options_; }
  int64_t max_context() const { return max_context_; }
  /// Rows of each slot's ring.
  int64_t ring_rows() const { return pool_->config().ring_rows; }
  /// Description of a verify of `window` tokens of one sequence, for explain() and footprint(): one linear layer.
  Desc describe(int64_t window) const;

  /// Error out_of_memory: max_sequences are alive.
  Status create_sequence(std::unique_ptr<Sequence>* sequence);

  /// One forward pass over the windows of all rows, which may differ in length. `logits` is set to [rows' tokens,
  /// vocab] (Logits::all), [rows, vocab] (last) or null (none), valid until the next step. A pending window of a row is
  /// dropped. Errors (nothing changed): invalid_argument for empty or too long windows, tokens outside of the
  /// vocabulary, a sequence twice, a full context.
  Status step(std::span<const StepRow> rows, Mode mode, Logits which, const float** logits);

  /// Consumes the pending windows: the first num_accepted[i] tokens of sequence i's window become part of it, the
  /// others never happened. Errors as ringfold::commit, and then no sequence changes.
  Status commit(std::span<Sequence* const> sequences, std::span<const int32_t> num_accepted);

  /// From here to end_trial, steps of mode decode work on a copy of the state; end_trial takes them back. For drafting.
  /// Errors: invalid_argument (a trial or a pending window is open), out_of_memory (no slot is free).
  Status begin_trial(Sequence* sequence);
  void end_trial(Sequence* sequence);

  /// Whether states, conv windows and caches agree in every byte. Pending windows do not matter. Histories of the fold
  /// policy are folded first.
  bool same_state(const Sequence& a, const Sequence& b) const;

 private:
  struct Batch;

  Engine() = default;
  Status create_pool();
  Status check(std::span<const StepRow> rows, Mode mode) const;
  void reserve(int64_t tokens, int64_t length);
  void grow(Sequence* sequence, int64_t length);
  Status linear_mixer(const Batch& batch, const LayerWeights& w, int64_t index, Mode mode);
  void attention_mixer(const Batch& batch, const LayerWeights& w, int64_t index);
  void mlp(const Batch& batch, const LayerWeights& w);
  void norm_rows(const std::vector<float>& weight, int64_t tokens);
  float* kv(Sequence* sequence, int64_t layer, int value, int64_t head) const;

  ModelConfig config_;
  EngineOptions options_;
  Weights weights_;
  std::unique_ptr<Pool> pool_;
  int64_t max_context_ = 0;
  std::vector<float> inverse_frequency_;  ///< [rotary_dim / 2]

  // Buffers of one step, [tokens, ..] each.
  std::vector<float> x_, normed_, mixed_, mixer_out_, mlp_, cosine_, sine_, scores_, logits_;
  std::vector<int32_t> slots_, cu_seqlens_, accepted_, generations_;
};

}  // namespace ringfold::engine
