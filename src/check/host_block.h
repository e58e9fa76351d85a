// Which pieces of host memory belong together. Whoever copies a tensor elsewhere for a while, to a device for example,
// takes along what lies around it: guard words, gaps, unused slots.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace ringfold::check {

/// A piece of memory that somebody else owns, known to block_of() for as long as this lives.
class HostBlock {
 public:
  HostBlock() = default;
  HostBlock(void* memory, size_t bytes);
  HostBlock(HostBlock&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  HostBlock& operator=(HostBlock&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  ~HostBlock();

 private:
  void* memory_ = nullptr;
};

/// The block that an address lies in; empty where there is none.
std::span<std::byte> block_of(const void* address);

}  // namespace ringfold::check
