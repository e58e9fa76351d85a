#include <cstddef>
#include <limits>

#include "core/check_view.h"
#include "cuda/common/check.h"
#include "cuda/common/device.h"
#include "cuda/cuda.h"
#include "cuda/pool.h"

namespace ringfold::cuda {
namespace {

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

Status usable() {
  if (const char* why = unavailable()) return {Code::unsupported, why};
  return {};
}

Status allocate(size_t bytes, void** memory) {
  RINGFOLD_RETURN_IF_ERROR(usable());
  return check(cudaMalloc(memory, bytes), "cudaMalloc");
}

void release(void* memory) { cudaFree(memory); }

Status fill(void* memory, int byte, size_t bytes, void* stream) {
  return check(cudaMemsetAsync(memory, byte, bytes, stream_of(stream)), "cudaMemsetAsync");
}

Status copy(void* to, const void* from, size_t bytes, void* stream) {
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "cudaMemcpyAsync");
}

Status copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows,
                 void* stream) {
  constexpr size_t kMaxPitch = std::numeric_limits<int32_t>::max();
  if (to_pitch > kMaxPitch || from_pitch > kMaxPitch) {
    for (size_t row = 0; row < rows; ++row) {
      RINGFOLD_RETURN_IF_ERROR(copy(static_cast<std::byte*>(to) + row * to_pitch,
                                    static_cast<const std::byte*>(from) + row * from_pitch, bytes, stream));
    }
    return {};
  }
  return check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, rows, cudaMemcpyDefault, stream_of(stream)),
               "cudaMemcpy2DAsync");
}

Status synchronise(void* stream) { return check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize"); }

}  // namespace

const detail::DeviceMemory& memory() {
  static const detail::DeviceMemory functions = {usable, allocate,  release,    fill,
                                                 copy,   copy_rows, move_slots, synchronise};
  return functions;
}

}  // namespace ringfold::cuda
