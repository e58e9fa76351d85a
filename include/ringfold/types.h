// The enumerations that describe what is asked for. Every one has a stable name for files, errors and programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ringfold {

enum class DType : uint8_t { f32, bf16, f16, i32 };
enum class Device : uint8_t { cpu, cuda };

/// Which gate the layer has. GDN: one decay per value head (Qwen3-Next, Qwen3.5).
/// KDA: one decay per value head and key channel (Kimi-Linear, Kimi K3).
enum class MixerKind : uint8_t { gdn, kda };

/// `exact`: the bits of docs/math.md, the same on every machine. `fast` (verify): outputs within a stated bound of
/// fp64, ring and state still those of `exact`.
enum class Numerics : uint8_t { exact, fast };

/// When a 16-bit state is rounded: once per fold, or after every token. With an fp32 pool both are the same.
enum class StateRounding : uint8_t { per_commit, per_token };

/// When accepted rows are folded into the checkpoint (docs/ring.md): by commit, by the next verify, or when the ring
/// has no room for more. It decides when and how often the state is written, never what is written.
enum class FoldPolicy : uint8_t { on_commit, on_next_verify, lazy };

/// The operations that implementations provide.
enum class Op : uint8_t {
  verify,
  decode,
  fold,
  conv_verify,
  conv_decode,
  conv_commit,
  gated_norm,
  verify_layer,
  decode_layer
};

/// Activation of the output gate in the gated RMSNorm: SiLU in Qwen models, sigmoid in Kimi models.
enum class NormGate : uint8_t { silu, sigmoid };

inline constexpr size_t size_of(DType t) { return t == DType::f32 || t == DType::i32 ? 4 : 2; }
inline constexpr bool is_layer(Op op) { return op == Op::verify_layer || op == Op::decode_layer; }
inline constexpr bool is_float(DType t) { return t != DType::i32; }

const char* to_string(DType);
const char* to_string(Device);
const char* to_string(MixerKind);
const char* to_string(Numerics);
const char* to_string(StateRounding);
const char* to_string(FoldPolicy);
const char* to_string(Op);
const char* to_string(NormGate);

/// The value with that name, or nothing. Names are those of to_string, for example "bf16", "per_token".
template <class Enum>
std::optional<Enum> parse(std::string_view name);

/// Limits of every implementation (spec: K, V from 1 to 256, windows up to 32 tokens, conv width 2..4).
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxWindow = 32;
inline constexpr int kMinConvWidth = 2;
inline constexpr int kMaxConvWidth = 4;

/// Values of a `pending` array (one int32 per layer and slot): the length of the window that the last verify
/// recorded there and no commit has consumed, or one of these.
inline constexpr int32_t kNoWindow = -1;     ///< nothing recorded since the last commit
inline constexpr int32_t kNotAcquired = -2;  ///< the slot is free; verify, decode and commit refuse it
/// Added to a length where the history (accepted rows that the checkpoint lacks, fold policies other than on_commit)
/// was folded by the verify that recorded the window, or by one whose window it replaced.
inline constexpr int32_t kFolded = 0x100;

}  // namespace ringfold
