// Which instruction sets are compiled, and choosing the function of one of them.
#pragma once

// AVX3_DL adds nothing that is used here; scalable vectors (SVE, RVV) cannot be members of structs.
#if defined(RINGFOLD_FEW_TARGETS)
#define HWY_DISABLED_TARGETS \
  (HWY_AVX3 | HWY_AVX3_DL | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#else
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
// The least instruction set that is compiled. Every kernel is chosen at run time and carries its own target attributes,
// so the library still loads on older machines, where the plain reference serves.
#if defined(__x86_64__) && !defined(HWY_COMPILE_ONLY_STATIC)
#if defined(RINGFOLD_FEW_TARGETS)
#define HWY_BASELINE_TARGETS HWY_SSE4
#else
#define HWY_BASELINE_TARGETS HWY_SSSE3
#endif
#endif
#include "hwy/detect_targets.h"

#if HWY_TARGETS & HWY_AVX3
#define RINGFOLD_IF_AVX3(x) x
#else
#define RINGFOLD_IF_AVX3(x)
#endif
#if HWY_TARGETS & HWY_AVX2
#define RINGFOLD_IF_AVX2(x) x
#else
#define RINGFOLD_IF_AVX2(x)
#endif
#if HWY_TARGETS & HWY_SSE4
#define RINGFOLD_IF_SSE4(x) x
#else
#define RINGFOLD_IF_SSE4(x)
#endif
#if HWY_TARGETS & HWY_SSSE3
#define RINGFOLD_IF_SSSE3(x) x
#else
#define RINGFOLD_IF_SSSE3(x)
#endif
#if HWY_TARGETS & HWY_NEON
#define RINGFOLD_IF_NEON(x) x
#else
#define RINGFOLD_IF_NEON(x)
#endif

/// Body of a function that returns `function` of a target (HWY_AVX2, ..), or null where it was not compiled.
#define RINGFOLD_CHOOSE_TARGET(target, function)                         \
  RINGFOLD_IF_AVX3(if (target == HWY_AVX3) return &N_AVX3::function;)    \
  RINGFOLD_IF_AVX2(if (target == HWY_AVX2) return &N_AVX2::function;)    \
  RINGFOLD_IF_SSE4(if (target == HWY_SSE4) return &N_SSE4::function;)    \
  RINGFOLD_IF_SSSE3(if (target == HWY_SSSE3) return &N_SSSE3::function;) \
  RINGFOLD_IF_NEON(if (target == HWY_NEON) return &N_NEON::function;)    \
  return nullptr
