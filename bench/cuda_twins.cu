#include <algorithm>
#include <array>

#include "bench/cuda_twins.h"

namespace ringfold::bench {
namespace {

__device__ uint32_t g_sink;

// Policies of loads and stores of states: as they come, or marked as passing through the caches once.
template <bool kStreaming>
__device__ __forceinline__ uint4 load(const uint4* p) {
  return kStreaming ? __ldcs(p) : *p;
}
template <bool kStreaming>
__device__ __forceinline__ void store(uint4* p, uint4 x) {
  if constexpr (kStreaming) {
    __stcs(p, x);
  } else {
    *p = x;
  }
}

__device__ __forceinline__ uint32_t fold(uint4 x) { return x.x ^ x.y ^ x.z ^ x.w; }

/// One piece of a state (kThreads * kLoads * 16 bytes) and its share of the flat bytes at a time, all loads of a piece
/// before the first use. `mask` is zero, which the compiler does not know: states are stored as they were, and nothing
/// is written to g_sink.
template <int kThreads, int kLoads, bool kStreaming, bool kWrites>
__global__ void __launch_bounds__(kThreads) move(Traffic t, uint32_t mask) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();  // as the library's kernels do
#endif
  constexpr int kUnits = kThreads * kLoads;
  constexpr int kFlat = 2;
  const int tid = static_cast<int>(threadIdx.x);
  const int per_slot = static_cast<int>(t.slot_bytes / (kUnits * 16));
  const int rows = static_cast<int>(t.rows), pieces = per_slot * rows * static_cast<int>(t.layers);
  uint32_t sum = 0;
  for (int piece = static_cast<int>(blockIdx.x); piece < pieces; piece += static_cast<int>(gridDim.x)) {
    const int item = piece / per_slot, layer = item / rows;
    const int64_t slot = t.slot_ids[item - layer * rows];
    auto* state = reinterpret_cast<uint4*>(t.state + layer * t.layer_bytes + slot * t.slot_bytes) +
                  static_cast<int64_t>(piece - item * per_slot) * kUnits + tid;
    uint4 x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) x[i] = load<kStreaming>(state + i * kThreads);

    const auto* flat = reinterpret_cast<const uint4*>(t.read.data);
    const int64_t begin = piece * t.read.per_piece, end = min(begin + t.read.per_piece, t.read.units);
#pragma unroll 1
    for (int64_t at = begin + tid; at < end; at += kFlat * kThreads) {
      uint4 y[kFlat];
#pragma unroll
      for (int i = 0; i < kFlat; ++i) y[i] = at + i * kThreads < end ? flat[at + i * kThreads] : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < kFlat; ++i) sum ^= fold(y[i]);
    }
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      auto* to = reinterpret_cast<uint4*>(t.written[w].data);
      const int64_t first = piece * t.written[w].per_piece;
      const int64_t last = min(first + t.written[w].per_piece, t.written[w].units);
#pragma unroll 1
      for (int64_t at = first + tid; at < last; at += kThreads)
        to[at] = make_uint4(piece, tid, piece ^ tid, 0x3f8e3f8eu);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if constexpr (kWrites) {
        x[i].x ^= mask;
        x[i].y ^= mask;
        x[i].z ^= mask;
        x[i].w ^= mask;
        store<kStreaming>(state + i * kThreads, x[i]);
      } else {
        sum ^= fold(x[i]);
      }
    }
  }
  if (mask != 0) atomicXor(&g_sink, sum);
}

__global__ void pause(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

using Kernel = void (*)(Traffic, uint32_t);

struct Shape {
  int threads, loads;
  bool resident, streaming;
  Kernel read, write;
  int64_t piece_bytes() const { return static_cast<int64_t>(threads) * loads * 16; }
};

template <int kThreads, int kLoads, bool kStreaming = false>
constexpr Shape shape(bool resident = false) {
  return {kThreads,
          kLoads,
          resident,
          kStreaming,
          move<kThreads, kLoads, kStreaming, false>,
          move<kThreads, kLoads, kStreaming, true>};
}

// Small pieces are for small batches, where every multiprocessor must get some; pieces of 64 KB are two heads of 16-bit
// states.
const Shape kShapes[] = {shape<256, 1>(),       shape<256, 2>(),           shape<128, 4>(),      shape<128, 8>(),
                         shape<128, 16>(),      shape<256, 4>(),           shape<256, 8>(),      shape<256, 8>(true),
                         shape<256, 16>(),      shape<512, 4>(),           shape<512, 8>(),      shape<256, 4, true>(),
                         shape<256, 8, true>(), shape<256, 8, true>(true), shape<512, 4, true>()};
constexpr int kCount = static_cast<int>(std::size(kShapes));

bool g_starts_early;  // whether kernels are started while the ones before them end

// Blocks that the GPU holds at a time, reading and writing.
std::array<std::array<int, 2>, kCount> g_resident;

}  // namespace

int twin_shapes() { return kCount; }

std::string twin_name(int i) {
  const Shape& s = kShapes[i];
  return std::to_string(s.threads) + " threads x " + std::to_string(s.loads) + " loads" +
         (s.resident ? ", resident" : "") + (s.streaming ? ", streaming" : "");
}

bool twin_fits(int i, const Traffic& traffic) { return traffic.slot_bytes % kShapes[i].piece_bytes() == 0; }

cudaError_t prepare_twins() {
  int device = 0, multiprocessors = 0, major = 0, driver = 0;
  if (cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  if (cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device); e != cudaSuccess)
    return e;
  if (cudaError_t e = cudaDriverGetVersion(&driver); e != cudaSuccess) return e;
  g_starts_early = major >= 9 && driver >= 12030;
  if (cudaError_t e = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
      e != cudaSuccess)
    return e;
  for (int i = 0; i < kCount; ++i) {
    for (int writes = 0; writes < 2; ++writes) {
      int blocks = 0;
      const Kernel kernel = writes ? kShapes[i].write : kShapes[i].read;
      if (cudaError_t e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kShapes[i].threads, 0);
          e != cudaSuccess)
        return e;
      g_resident[i][writes] = std::max(1, blocks) * multiprocessors;
    }
  }
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, pause);
}

cudaError_t launch_twin(int i, Traffic traffic, cudaStream_t stream) {
  const Shape& s = kShapes[i];
  const int64_t pieces = traffic.rows * traffic.layers * (traffic.slot_bytes / s.piece_bytes());
  for (Flat* flat : {&traffic.read, &traffic.written[0], &traffic.written[1]})
    flat->per_piece = (flat->units + pieces - 1) / pieces;
  const int64_t blocks = s.resident ? std::min<int64_t>(pieces, g_resident[i][traffic.writes]) : pieces;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(s.threads));
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = g_starts_early ? 1 : 0;
  return cudaLaunchKernelEx(&config, traffic.writes ? s.write : s.read, traffic, uint32_t{0});
}

cudaError_t launch_pause(cudaStream_t stream) {
  constexpr long long kCycles = 400'000;
  pause<<<1, 1, 0, stream>>>(kCycles);
  return cudaGetLastError();
}

}  // namespace ringfold::bench
