// The life of sequences: made, committed, tried and compared. The forward pass is in engine.cc.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "engine/engine.h"
#include "engine/thread_scope.h"

namespace ringfold::engine {

Sequence::~Sequence() {
  if (!pool_) return;
  if (trial_slot_.id >= 0) (void)pool_->release(trial_slot_);
  (void)pool_->release(slot_);
}

Status Engine::create_sequence(std::unique_ptr<Sequence>* sequence) {
  std::unique_ptr<Sequence> s(new Sequence);
  if (Status status = pool_->acquire(&s->slot_); !status.ok()) return status;
  s->pool_ = pool_.get();
  *sequence = std::move(s);
  return {};
}

void Engine::grow(Sequence* s, int64_t length) {
  if (length <= s->capacity_) return;
  const int64_t blocks = config_.attention_layers() * 2 * config_.num_key_value_heads;
  const int64_t old = s->capacity_ * config_.head_dim;
  s->capacity_ = std::min(max_context_, std::max<int64_t>({256, length, 2 * s->capacity_}));
  std::vector<float> larger(static_cast<size_t>(blocks * s->capacity_ * config_.head_dim));
  for (int64_t b = 0; b < blocks; ++b) {
    std::copy_n(s->kv_.data() + b * old, old, larger.data() + b * s->capacity_ * config_.head_dim);
  }
  s->kv_ = std::move(larger);
}

Status Engine::commit(std::span<Sequence* const> sequences, std::span<const int32_t> num_accepted) {
  if (sequences.size() != num_accepted.size()) {
    return {Code::invalid_argument, fmt::format("num_accepted: expected one for each of {} sequences, found {}",
                                                sequences.size(), num_accepted.size())};
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i]->pending_ == 0 || num_accepted[i] < 0 || num_accepted[i] > sequences[i]->pending_) {
      return {Code::invalid_argument, fmt::format("num_accepted[{}]: expected 0 to {} of a pending window, found {}", i,
                                                  sequences[i]->pending_, num_accepted[i])};
    }
  }
  slots_.clear();
  generations_.clear();
  accepted_.assign(num_accepted.begin(), num_accepted.end());
  for (const Sequence* s : sequences) {
    slots_.push_back(s->slot_.id);
    generations_.push_back(s->slot_.generation);
  }
  const ThreadScope threads(options_.threads);
  const int64_t B = static_cast<int64_t>(sequences.size());
  CommitArgs args;
  args.slot_ids = TensorView(slots_.data(), DType::i32, {B});
  args.generations = TensorView(generations_.data(), DType::i32, {B});
  args.num_accepted = TensorView(accepted_.data(), DType::i32, {B});
  args.impl = options_.impl;
  if (config_.linear_layers() > 0) {
    if (Status s = ringfold::commit(*pool_, args); !s.ok()) return s;
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i]->length_ += accepted_[i];
    sequences[i]->pending_ = 0;
  }
  return {};
}

Status Engine::begin_trial(Sequence* s) {
  if (s->on_trial_ || s->pending_ > 0) {
    return {Code::invalid_argument, "sequence: expected neither a trial nor a pending window, found one"};
  }
  if (s->trial_slot_.id < 0) {
    if (Status status = pool_->acquire(&s->trial_slot_); !status.ok()) return status;
  }
  if (Status status = pool_->materialise(s->slot_, 0, s->trial_slot_); !status.ok()) return status;
  s->on_trial_ = true;
  s->trial_start_ = s->length_;
  return {};
}

void Engine::end_trial(Sequence* s) {
  if (!s->on_trial_) return;
  s->on_trial_ = false;
  s->length_ = s->trial_start_;
}

bool Engine::same_state(const Sequence& a, const Sequence& b) const {
  if (a.length_ != b.length_) return false;
  const Slot slots[] = {a.slot_, b.slot_};
  if (!pool_->settle(slots).ok()) return false;
  const auto equal_slots = [&](const TensorView& all) {  // a slot of one layer is packed
    const int64_t bytes = all.elements() / all.shape[0] * static_cast<int64_t>(size_of(all.dtype));
    return std::memcmp(all.at(a.slot_.id).data, all.at(b.slot_.id).data, static_cast<size_t>(bytes)) == 0;
  };
  for (int64_t l = 0; l < config_.linear_layers(); ++l) {
    if (!equal_slots(pool_->state(l)) || !equal_slots(pool_->conv_state(l))) return false;
  }
  const int64_t blocks = config_.attention_layers() * 2 * config_.num_key_value_heads;
  const size_t bytes = static_cast<size_t>(a.length_ * config_.head_dim) * sizeof(float);
  for (int64_t i = 0; i < blocks && bytes > 0; ++i) {
    const float* x = a.kv_.data() + i * a.capacity_ * config_.head_dim;
    const float* y = b.kv_.data() + i * b.capacity_ * config_.head_dim;
    if (std::memcmp(x, y, bytes) != 0) return false;
  }
  return true;
}

}  // namespace ringfold::engine
