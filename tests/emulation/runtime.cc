// CUDA's runtime. What is put into streams is done when somebody waits, in the order in which it was put there: whoever
// reads results without waiting finds none, and whoever frees what is still needed is found out.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "emulation/machine.h"
#include "emulation/memory.h"

using Work = std::function<cudaError_t()>;

struct CUstream_st {
  bool captures = false;
  std::vector<Work> captured;
};
struct CUgraph_st {
  std::vector<Work> works;
};
struct CUgraphExec_st {
  std::vector<Work> works;
};

namespace emulation {
namespace {

struct Runtime {
  std::recursive_mutex mutex;
  std::vector<Work> waiting;
  int captures = 0;  // under way
  cudaError_t last = cudaSuccess;
  cudaError_t sticky = cudaSuccess;  // a kernel's fault, after which nothing works any more
};
Runtime runtime;

using Lock = std::lock_guard<std::recursive_mutex>;

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) runtime.last = error;
  return error;
}

/// The default streams, null, cudaStreamLegacy (1) and cudaStreamPerThread (2), have no object.
bool has_object(cudaStream_t stream) { return reinterpret_cast<uintptr_t>(stream) > 2; }

cudaError_t put(cudaStream_t stream, Work work) {
  if (has_object(stream) && stream->captures) {
    stream->captured.push_back(std::move(work));
  } else {
    runtime.waiting.push_back(std::move(work));
  }
  return report(runtime.sticky);
}

/// Does what waits, in all streams.
cudaError_t finish() {
  if (runtime.captures > 0) return report(cudaErrorStreamCaptureUnsupported);
  const DeviceAccess access;
  for (const Work& work : std::exchange(runtime.waiting, {})) {
    if (runtime.sticky == cudaSuccess) runtime.sticky = work();
  }
  return report(runtime.sticky);
}

cudaError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                      cudaStream_t stream) {
  const auto copy = [=](const void* source, size_t source_pitch) {
    for (size_t row = 0; row < rows; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(source) + row * source_pitch, width);
    }
    return cudaSuccess;
  };
  if (is_device(from)) {
    if (cudaError_t error = put(stream, [=] { return copy(from, from_pitch); }); error != cudaSuccess) return error;
    return is_device(to) ? cudaSuccess : finish();  // the host may read it when the call returns
  }
  // Pageable memory is read before the call returns.
  std::vector<std::byte> staged(width * rows);
  for (size_t row = 0; row < rows; ++row)
    std::memcpy(staged.data() + row * width, static_cast<const std::byte*>(from) + row * from_pitch, width);
  return put(stream, [=, staged = std::move(staged)] { return copy(staged.data(), width); });
}

}  // namespace

cudaError_t enqueue(const Launch& launch, void* stream) {
  const Lock lock(runtime.mutex);
  return put(static_cast<cudaStream_t>(stream),
             [launch] { return run(launch) ? cudaSuccess : cudaErrorLaunchFailure; });
}

}  // namespace emulation

using namespace emulation;

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorNoKernelImageForDevice: return "cudaErrorNoKernelImageForDevice";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
cudaError_t cudaGetLastError() {
  const Lock lock(runtime.mutex);
  return std::exchange(runtime.last, runtime.sticky);
}

cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }

/// A H200 has 132. With few of them a block has many heads, one after the other, also where a test is small.
int multiprocessors() {
  const char* text = std::getenv("RINGFOLD_EMULATED_SMS");
  const int count = text != nullptr ? std::atoi(text) : 132;
  return count > 0 ? count : 132;
}

/// Those of a H200, so that choices by them are the same.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMultiProcessorCount: *value = multiprocessors(); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kMostSharedBytes; break;
    case cudaDevAttrClockRate: *value = 1'980'000; break;
    case cudaDevAttrMemoryClockRate: *value = 3'201'000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 6144; break;
  }
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const Lock lock(runtime.mutex);
  if (runtime.captures > 0) return report(cudaErrorStreamCaptureUnsupported);
  *memory = allocate(bytes);
  return *memory != nullptr ? cudaSuccess : report(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
  const Lock lock(runtime.mutex);
  if (memory == nullptr) return cudaSuccess;
  if (cudaError_t error = finish(); error != cudaSuccess) return error;
  return release(memory) ? cudaSuccess : report(cudaErrorInvalidValue);
}
cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t stream) {
  const Lock lock(runtime.mutex);
  return put(stream, [=] { return std::memset(memory, byte, bytes), cudaSuccess; });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const Lock lock(runtime.mutex);
  return copy_rows(to, bytes, from, bytes, bytes, 1, stream);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                              cudaMemcpyKind, cudaStream_t stream) {
  const Lock lock(runtime.mutex);
  return copy_rows(to, to_pitch, from, from_pitch, width, rows, stream);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(runtime.mutex);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  const Lock lock(runtime.mutex);
  return finish();
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock lock(runtime.mutex);
  if (!has_object(stream) || stream->captures) return report(cudaErrorStreamCaptureUnsupported);
  stream->captures = true;
  ++runtime.captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(runtime.mutex);
  if (!has_object(stream) || !stream->captures) return report(cudaErrorInvalidValue);
  stream->captures = false;
  --runtime.captures;
  *graph = new CUgraph_st{std::exchange(stream->captured, {})};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->works};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Lock lock(runtime.mutex);
  for (const Work& work : executable->works) {
    if (cudaError_t error = put(stream, work); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
