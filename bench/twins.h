// Kernels that do one half of the work only: what a benchmark is measured against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ringfold::bench {

/// Piece of memory that one call touches.
struct Piece {
  std::byte* data;
  int64_t bytes;  ///< a multiple of 64
};

/// Reads every piece once and, with `write`, stores what it read. Pieces are spread over the threads as tasks of a call
/// are.
void move_bytes(std::span<const Piece> pieces, bool write, int threads);

/// `fmas` multiply-adds (counted per element) from registers, spread over the threads, in full vectors of the best
/// instruction set. Returns a value that depends on all of them.
float multiply_add(int64_t fmas, int threads);

}  // namespace ringfold::bench
