// Calls whose tensors lie in host memory, for implementations that want them on a device. The kit's bodies poison,
// guard and compare host memory; through these calls the same bodies judge any device.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "check/device.h"
#include "ringfold/ringfold.h"

namespace ringfold::check {

/// Those of Pool::set_mixers, like the structs of other calls.
struct MixersArgs {
  std::vector<Mixer> mixers;
  void* stream = nullptr;
};

/// The tensors of a call's arguments that are there.
std::vector<TensorView*> tensors_of(VerifyArgs& args);
std::vector<TensorView*> tensors_of(DecodeArgs& args);
std::vector<TensorView*> tensors_of(FoldArgs& args);
std::vector<TensorView*> tensors_of(MixersArgs& args);
std::vector<TensorView*> tensors_of(ConvArgs& args);
std::vector<TensorView*> tensors_of(ConvCommitArgs& args);
std::vector<TensorView*> tensors_of(GatedNormArgs& args);
std::vector<TensorView*> tensors_of(LayerArgs& args);
std::vector<TensorView*> tensors_of(CommitArgs& args);

/// Copies of host memory on a device, and arguments that name the copies. What is copied is the whole block
/// (HostBlock) that a tensor lies in, so that a stray write is found when it comes back; of memory in no block, what
/// lies between the tensor's first and last element. Tensors that are on the device already stay where they are.
class Mirror {
 public:
  /// `copies`: where the copies go. Nobody else uses it meanwhile. `device`: what the arguments then say.
  Mirror(DeviceBlock& copies, Device device) : copies_(copies), device_(device) {}

  /// All arguments that on_device() will be asked about, before the first upload().
  template <class Args>
  void add(Args args) {
    add_tensors(tensors_of(args));
  }
  /// Host memory to the device.
  Status upload(void* stream);
  template <class Args>
  Args on_device(Args args) const {
    move_tensors(tensors_of(args));
    return args;
  }
  /// And back, after everything in the stream is done.
  Status download(void* stream);

 private:
  struct Piece {
    std::byte* begin = nullptr;
    size_t bytes = 0;
    size_t at = 0;  ///< where its copy begins
  };
  void add_tensors(const std::vector<TensorView*>& tensors);
  void move_tensors(const std::vector<TensorView*>& tensors) const;
  void lay_out();

  DeviceBlock& copies_;
  Device device_;
  std::vector<Piece> pieces_;     ///< ascending, apart from each other, once laid out
  std::vector<std::byte> image_;  ///< of the copies
};

/// While one lives, calls on the CPU too work on copies elsewhere in host memory: this is how the mirror is tested on
/// machines without a device.
class HostCopies {
 public:
  HostCopies();
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;
};

/// The library's calls. Where the implementation named, or one of the tensors, is on a device, host tensors are
/// uploaded first, and downloaded when the call is done; otherwise the library is called as it is.
namespace mirrored {
Status verify(const VerifyArgs& args);
Status decode(const DecodeArgs& args);
Status fold(const FoldArgs& args);
Status conv_verify(const ConvArgs& args);
Status conv_decode(const ConvArgs& args);
Status conv_commit(const ConvCommitArgs& args);
Status gated_norm(const GatedNormArgs& args);
Status verify_layer(const LayerArgs& args);
Status decode_layer(const LayerArgs& args);
Status commit(Pool& pool, const CommitArgs& args);
Status set_mixers(Pool& pool, std::span<const Mixer> mixers);
}  // namespace mirrored

}  // namespace ringfold::check
