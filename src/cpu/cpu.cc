#include "cpu/cpu.h"

namespace ringfold::cpu {

std::span<const detail::Implementation> implementations() { return {}; }

}  // namespace ringfold::cpu
