// The smallest engine loop on ringfold: draft, verify, sample, commit. It then decodes the same text without drafts and
// compares text and states byte for byte.
//
// The model is a toy: two recurrent layers whose projections are tables of random numbers per token, and a random
// output head. The order of the calls is that of a real engine (engine/engine.cc is one).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "ringfold/ringfold.h"

namespace {

using namespace ringfold;
using Floats = std::vector<float>;

constexpr int kVocab = 6, kLayers = 2, kWindow = 5, kConvWidth = 4;
constexpr int kH = 2, kHV = 4, kK = 32, kV = 32;
constexpr int kKeyDim = kH * kK, kValueDim = kHV * kV, kChannels = 2 * kKeyDim + kValueDim;

void require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "engine_loop: %s\n", status.message().c_str());
  std::exit(1);
}

Floats random_floats(size_t count, float scale, std::mt19937* random) {
  std::uniform_real_distribution<float> uniform(-scale, scale);
  Floats values(count);
  for (float& value : values) value = uniform(*random);
  return values;
}

/// Weights of one layer. In place of projections: a row for each token of the vocabulary.
struct Layer {
  Floats qkv, a, b, conv_weight, A_log, dt_bias;
};

class Engine {
 public:
  Engine() {
    std::mt19937 random(11);
    for (Layer& layer : layers_) {
      layer.qkv = random_floats(kVocab * kChannels, 1.5f, &random);
      layer.a = random_floats(kVocab * kHV, 2, &random);
      layer.b = random_floats(kVocab * kHV, 2, &random);
      layer.conv_weight = random_floats(kChannels * kConvWidth, 0.7f, &random);
      layer.A_log = random_floats(kHV, 1, &random);
      layer.dt_bias = Floats(kHV, 3);  // forgets fast, so that the text repeats itself and lookup finds drafts
    }
    head_ = random_floats(kVocab * kLayers * kValueDim, 1, &random);
    PoolConfig config;
    config.layers = kLayers;
    config.slots = 2;
    config.H = kH, config.HV = kHV, config.K = kK, config.V = kV;
    config.ring_rows = kWindow;
    config.conv_channels = kChannels;
    config.conv_width = kConvWidth;
    require(Pool::create(config, &pool_));
  }

  Pool& pool() { return *pool_; }

  /// The most likely token after each of `tokens`. decode takes the tokens into the state at once; otherwise they wait
  /// for commit.
  std::vector<int> step(Slot slot, const std::vector<int>& tokens, bool decode_tokens) {
    const auto T = static_cast<int64_t>(tokens.size());
    Floats outputs(kLayers * tokens.size() * kValueDim);
    for (int l = 0; l < kLayers; ++l) {
      run_layer(l, slot, tokens, decode_tokens, outputs.data() + l * T * kValueDim);
    }
    std::vector<int> best(tokens.size());
    for (int64_t t = 0; t < T; ++t) {
      float highest = 0;
      for (int token = 0; token < kVocab; ++token) {
        float logit = 0;
        for (int l = 0; l < kLayers; ++l) {
          const float* weight = head_.data() + (token * kLayers + l) * kValueDim;
          const float* output = outputs.data() + (l * T + t) * kValueDim;
          for (int i = 0; i < kValueDim; ++i) logit += weight[i] * output[i];
        }
        if (token == 0 || logit > highest) highest = logit, best[t] = token;
      }
    }
    return best;
  }

  /// The first `accepted` tokens of the pending window become part of the state, in all layers; the others never
  /// happened.
  void commit_tokens(Slot slot, int32_t accepted) {
    CommitArgs args;
    args.slot_ids = {&slot.id, DType::i32, {1}};
    args.generations = {&slot.generation, DType::i32, {1}};
    args.num_accepted = {&accepted, DType::i32, {1}};
    require(commit(*pool_, args));
  }

 private:
  void run_layer(int l, Slot slot, const std::vector<int>& tokens, bool decode_tokens, float* out) {
    const Layer& layer = layers_[l];
    const auto T = static_cast<int64_t>(tokens.size());
    const auto gather = [&](const Floats& table, int width) {
      Floats rows;
      for (int token : tokens) rows.insert(rows.end(), &table[token * width], &table[token * width] + width);
      return rows;
    };
    const Floats x = gather(layer.qkv, kChannels), a = gather(layer.a, kHV), b = gather(layer.b, kHV);
    Floats qkv(x.size());
    const TensorView slot_ids(&slot.id, DType::i32, {1});

    ConvArgs conv;
    pool_->bind(l, &conv);
    conv.x = {x.data(), DType::f32, {1, T, kChannels}};
    conv.weight = {layer.conv_weight.data(), DType::f32, {kChannels, kConvWidth}};
    conv.out = {qkv.data(), DType::f32, {1, T, kChannels}};
    conv.slot_ids = slot_ids;
    require(decode_tokens ? conv_decode(conv) : conv_verify(conv));

    // q, k and v are views into the packed rows that the conv wrote.
    Window window;
    window.q = {qkv.data(), DType::f32, {1, T, kH, kK}, {0, kChannels, kK, 1}};
    window.k = {qkv.data() + kKeyDim, DType::f32, {1, T, kH, kK}, {0, kChannels, kK, 1}};
    window.v = {qkv.data() + 2 * kKeyDim, DType::f32, {1, T, kHV, kV}, {0, kChannels, kV, 1}};
    window.a = {a.data(), DType::f32, {1, T, kHV}};
    window.b = {b.data(), DType::f32, {1, T, kHV}};
    window.slot_ids = slot_ids;
    const auto run = [&](auto args, auto call) {
      pool_->bind(l, &args);
      args.mixer.A_log = {layer.A_log.data(), DType::f32, {kHV}};
      args.mixer.dt_bias = {layer.dt_bias.data(), DType::f32, {kHV}};
      args.window = window;
      args.out = {out, DType::f32, {1, T, kHV, kV}};
      require(call(args));
    };
    if (decode_tokens) {
      run(DecodeArgs(), decode);
    } else {
      run(VerifyArgs(), verify);
    }
  }

  Layer layers_[kLayers];
  Floats head_;
  std::unique_ptr<Pool> pool_;
};

/// Prompt lookup: what followed the latest earlier occurrence of the last two tokens.
std::vector<int> propose(const std::vector<int>& text, size_t most) {
  for (size_t i = text.size() - 1; i-- > 1;) {
    if (text[i] != text.back() || text[i - 1] != text[text.size() - 2]) continue;
    const size_t count = std::min(most, text.size() - 1 - i);
    return {text.begin() + static_cast<ptrdiff_t>(i) + 1, text.begin() + static_cast<ptrdiff_t>(i + 1 + count)};
  }
  return {};
}

/// Prompt and `count` further tokens. The state takes all of them but the last, which a next step would feed.
std::vector<int> generate(Engine& engine, Slot slot, std::vector<int> text, size_t count, bool with_drafts,
                          int* steps) {
  engine.step(slot, {text.begin(), text.end() - 1}, true);
  const size_t end = text.size() + count;
  for (*steps = 0; text.size() < end; ++*steps) {
    std::vector<int> window = {text.back()};
    if (with_drafts) {
      const auto drafts = propose(text, std::min<size_t>(kWindow - 1, end - text.size() - 1));
      window.insert(window.end(), drafts.begin(), drafts.end());
    }
    const std::vector<int> best = engine.step(slot, window, !with_drafts);
    // best[i] follows window[i], and counts as long as every draft up to window[i] was the token that was due.
    size_t accepted = 0;
    do {
      text.push_back(best[accepted++]);
    } while (accepted < window.size() && window[accepted] == text.back());
    if (with_drafts) engine.commit_tokens(slot, static_cast<int32_t>(accepted));
  }
  return text;
}

}  // namespace

int main() {
  Engine engine;
  std::vector<Slot> slots(2);
  require(engine.pool().acquire(slots));
  constexpr size_t kTokens = 200;
  int drafted_steps = 0, plain_steps = 0;
  const std::vector<int> prompt = {3, 1, 4, 1, 5};
  const auto drafted = generate(engine, slots[0], prompt, kTokens, true, &drafted_steps);
  const auto plain = generate(engine, slots[1], prompt, kTokens, false, &plain_steps);

  bool same = drafted == plain;
  for (int l = 0; l < kLayers; ++l) {
    const TensorView a = engine.pool().state(l).at(slots[0].id), b = engine.pool().state(l).at(slots[1].id);
    same = same && std::memcmp(a.data, b.data, static_cast<size_t>(a.elements()) * size_of(a.dtype)) == 0;
  }
  std::printf("%zu tokens: %d steps with drafts, %d without; text and states %s\n", kTokens, drafted_steps, plain_steps,
              same ? "identical" : "DIFFER");
  return same ? 0 : 1;
}
