// Twins on CUDA: kernels that move the bytes of a call and do nothing else.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace ringfold::bench {

/// Bytes that lie in one piece: inputs, outputs, ring rows. In units of 16.
struct Flat {
  std::byte* data = nullptr;
  int64_t units = 0;
  int64_t per_piece = 0;  ///< filled in by launch_twin
};

/// What one call moves.
struct Traffic {
  std::byte* state = nullptr;  ///< [layers,slots] states
  int64_t slot_bytes = 0;      ///< of one state; a multiple of the largest piece
  int64_t layer_bytes = 0;
  const int32_t* slot_ids = nullptr;  ///< [rows], on the device
  int64_t rows = 0, layers = 1;
  bool writes = false;  ///< states are stored as well as read
  Flat read, written[2];
};

/// How many launch shapes there are, how one is called, and whether it fits states of this size. A thread block moves
/// one piece, or, where only as many blocks are launched as the GPU holds at a time, several.
int twin_shapes();
std::string twin_name(int shape);
bool twin_fits(int shape, const Traffic& traffic);

/// Loads all kernels, so that launches may be captured.
cudaError_t prepare_twins();
cudaError_t launch_twin(int shape, Traffic traffic, cudaStream_t stream);

/// Keeps the stream busy for some 200 us, so that what is put into it meanwhile starts without a gap.
cudaError_t launch_pause(cudaStream_t stream);

}  // namespace ringfold::bench
