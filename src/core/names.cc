// Names of enumerations and of statuses.
#include <array>
#include <utility>

#include "ringfold/status.h"
#include "ringfold/types.h"

namespace ringfold {
namespace {

template <class Enum>
struct Names;

// Each table lists the names in the order of the enumerators.
#define RINGFOLD_NAMES(Enum, ...)                                             \
  template <>                                                                 \
  struct Names<Enum> {                                                        \
    static constexpr auto table = std::to_array<const char*>({__VA_ARGS__});  \
  };                                                                          \
  const char* lookup(Enum value) {                                            \
    const auto i = static_cast<size_t>(value);                                \
    return i < Names<Enum>::table.size() ? Names<Enum>::table[i] : "unknown"; \
  }

RINGFOLD_NAMES(DType, "f32", "bf16", "f16", "i32")
RINGFOLD_NAMES(Device, "cpu", "cuda")
RINGFOLD_NAMES(MixerKind, "gdn", "kda")
RINGFOLD_NAMES(Numerics, "exact", "fast")
RINGFOLD_NAMES(StateRounding, "per_commit", "per_token")
RINGFOLD_NAMES(FoldPolicy, "on_commit", "on_next_verify", "lazy")
RINGFOLD_NAMES(Op, "verify", "decode", "fold", "conv_verify", "conv_decode", "conv_commit", "gated_norm",
               "verify_layer", "decode_layer")
RINGFOLD_NAMES(NormGate, "silu", "sigmoid")
RINGFOLD_NAMES(Code, "ok", "invalid_argument", "unsupported", "out_of_memory", "not_found", "internal")
RINGFOLD_NAMES(RowStatus, "done", "null_row", "slot_out_of_range", "duplicate_slot", "accept_out_of_range",
               "no_pending_window", "stale_generation", "window_too_long", "track_out_of_range", "slot_not_acquired",
               "bad_window_bounds", "ring_out_of_range", "duplicate_ring", "window_not_in_ring")
#undef RINGFOLD_NAMES

}  // namespace

const char* to_string(DType v) { return lookup(v); }
const char* to_string(Device v) { return lookup(v); }
const char* to_string(MixerKind v) { return lookup(v); }
const char* to_string(Numerics v) { return lookup(v); }
const char* to_string(StateRounding v) { return lookup(v); }
const char* to_string(FoldPolicy v) { return lookup(v); }
const char* to_string(Op v) { return lookup(v); }
const char* to_string(NormGate v) { return lookup(v); }
const char* to_string(Code v) { return lookup(v); }
const char* to_string(RowStatus v) { return lookup(v); }

template <class Enum>
std::optional<Enum> parse(std::string_view name) {
  for (size_t i = 0; i < Names<Enum>::table.size(); ++i) {
    if (name == Names<Enum>::table[i]) return static_cast<Enum>(i);
  }
  return std::nullopt;
}
template std::optional<DType> parse(std::string_view);
template std::optional<Device> parse(std::string_view);
template std::optional<MixerKind> parse(std::string_view);
template std::optional<Numerics> parse(std::string_view);
template std::optional<StateRounding> parse(std::string_view);
template std::optional<FoldPolicy> parse(std::string_view);
template std::optional<Op> parse(std::string_view);
template std::optional<NormGate> parse(std::string_view);

}  // namespace ringfold
