#include "check/mirror.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>

#include "check/host_block.h"
#include "core/check_view.h"
#include "dispatch/select.h"

namespace ringfold::check {
namespace {

constexpr size_t kAlignment = 256;  // as fresh memory of a device has

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::vector<TensorView*> present(std::initializer_list<TensorView*> all) {
  std::vector<TensorView*> some;
  for (TensorView* tensor : all) {
    if (!tensor->empty()) some.push_back(tensor);
  }
  return some;
}

// Memory functions of the host, for HostCopies.
const detail::DeviceMemory& host_functions() {
  static const detail::DeviceMemory functions = {
      .usable = [] { return Status{}; },
      .allocate =
          [](size_t bytes, void** memory) {
            *memory = std::aligned_alloc(kAlignment, aligned(std::max<size_t>(bytes, 1)));
            return *memory != nullptr ? Status{} : Status{Code::out_of_memory, "no host memory for copies"};
          },
      .release = [](void* memory) { std::free(memory); },
      .fill =
          [](void* memory, int byte, size_t bytes, void*) {
            std::memset(memory, byte, bytes);
            return Status{};
          },
      .copy =
          [](void* to, const void* from, size_t bytes, void*) {
            std::memcpy(to, from, bytes);
            return Status{};
          },
      .copy_rows =
          [](void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows, void*) {
            for (size_t row = 0; row < rows; ++row) {
              std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                          static_cast<const std::byte*>(from) + row * from_pitch, bytes);
            }
            return Status{};
          },
      .synchronise = [](void*) { return Status{}; }};
  return functions;
}

std::atomic<int> host_copies{0};

/// Where the copies of one call go; null: the call takes host memory. Grows to the largest call and is kept, since
/// allocating takes longer than most calls. Never freed: a device's runtime may be gone when static objects go.
DeviceBlock* copies_for(Device device) {
  if (device == Device::cpu) {
    static thread_local DeviceBlock& copies = *new DeviceBlock(host_functions());
    return host_copies > 0 ? &copies : nullptr;
  }
  const detail::DeviceMemory* functions = detail::device_memory(device);
  if (functions == nullptr) return nullptr;  // the library says so
  static thread_local DeviceBlock& copies = *new DeviceBlock(*functions);
  return &copies;
}

template <class Args, class Call>
Status through_copies(Device device, const Args& args, Call call) {
  DeviceBlock* copies = copies_for(device);
  if (copies == nullptr) return call(args);
  Mirror mirror(*copies, device);
  mirror.add(args);
  RINGFOLD_RETURN_IF_ERROR(mirror.upload(args.stream));
  const Status status = call(mirror.on_device(args));
  const Status back = mirror.download(args.stream);
  return status.ok() ? back : status;
}

template <class Args>
Device place_of(Args args) {
  for (const TensorView* tensor : tensors_of(args)) {
    if (tensor->device != Device::cpu) return tensor->device;
  }
  return device_of(args.impl);
}

template <class Args, class Call>
Status through_copies(const Args& args, Call call) {
  return through_copies(place_of(args), args, call);
}

/// What verify, decode and whole layers have in common, and `others`.
template <class Args>
std::vector<TensorView*> tensors_of_step(Args& a, std::initializer_list<TensorView*> others) {
  std::vector<TensorView*> all = present({&a.mixer.A_log,     &a.mixer.dt_bias,   &a.window.q,
                                          &a.window.k,        &a.window.v,        &a.window.a,
                                          &a.window.b,        &a.window.slot_ids, &a.window.cu_seqlens,
                                          &a.window.ring_ids, &a.state,           &a.out,
                                          &a.ring.k,          &a.ring.v,          &a.ring.g,
                                          &a.ring.beta,       &a.ring.u,          &a.ring.a,
                                          &a.pending,         &a.history.base,    &a.history.live,
                                          &a.history.cuts,    &a.row_status});
  for (TensorView* view : present(others)) all.push_back(view);
  return all;
}

}  // namespace

std::vector<TensorView*> tensors_of(VerifyArgs& a) {
  return tensors_of_step(a, {&a.snapshots, &a.owners.slot_of_ring, &a.owners.ring_of_slot});
}

std::vector<TensorView*> tensors_of(DecodeArgs& a) { return tensors_of_step(a, {}); }

std::vector<TensorView*> tensors_of(FoldArgs& a) {
  return present({&a.mixer.A_log,
                  &a.mixer.dt_bias,
                  &a.state,
                  &a.ring.k,
                  &a.ring.v,
                  &a.ring.g,
                  &a.ring.beta,
                  &a.ring.u,
                  &a.ring.a,
                  &a.slot_ids,
                  &a.num_accepted,
                  &a.track_slots,
                  &a.track_steps,
                  &a.pending,
                  &a.history.base,
                  &a.history.live,
                  &a.history.cuts,
                  &a.row_status,
                  &a.ring_ids,
                  &a.owners.slot_of_ring,
                  &a.owners.ring_of_slot});
}

std::vector<TensorView*> tensors_of(MixersArgs& a) {
  std::vector<TensorView*> all;
  for (Mixer& mixer : a.mixers) {
    for (TensorView* view : present({&mixer.A_log, &mixer.dt_bias})) all.push_back(view);
  }
  return all;
}

std::vector<TensorView*> tensors_of(ConvArgs& a) {
  return present({&a.x, &a.weight, &a.bias, &a.conv_state, &a.conv_ring, &a.out, &a.slot_ids, &a.cu_seqlens, &a.pending,
                  &a.row_status, &a.ring_ids, &a.owners.slot_of_ring, &a.owners.ring_of_slot});
}

std::vector<TensorView*> tensors_of(ConvCommitArgs& a) {
  return present({&a.conv_state, &a.conv_ring, &a.slot_ids, &a.num_accepted, &a.track_slots, &a.track_steps,
                  &a.row_status, &a.ring_ids});
}

std::vector<TensorView*> tensors_of(GatedNormArgs& a) { return present({&a.x, &a.z, &a.weight, &a.out}); }

std::vector<TensorView*> tensors_of(LayerArgs& a) {
  return tensors_of_step(
      a, {&a.qkv, &a.conv_weight, &a.conv_bias, &a.conv_state, &a.conv_ring, &a.conv_pending, &a.z, &a.norm_weight,
          &a.owners.slot_of_ring, &a.owners.ring_of_slot, &a.conv_owners.slot_of_ring, &a.conv_owners.ring_of_slot});
}

std::vector<TensorView*> tensors_of(CommitArgs& a) {
  return present(
      {&a.slot_ids, &a.ring_ids, &a.generations, &a.num_accepted, &a.track_slots, &a.track_steps, &a.row_status});
}

void Mirror::add_tensors(const std::vector<TensorView*>& tensors) {
  for (const TensorView* tensor : tensors) {
    if (tensor->device != Device::cpu || tensor->data == nullptr) continue;
    const std::span<std::byte> block = block_of(tensor->data);
    if (!block.empty()) {
      pieces_.push_back({block.data(), block.size()});
    } else if (const size_t bytes = extent_of(*tensor); bytes > 0) {
      pieces_.push_back({static_cast<std::byte*>(tensor->data), bytes});
    }
  }
}

/// Sorts the pieces, joins those that overlap (columns of one table), and gives each its place.
void Mirror::lay_out() {
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  std::vector<Piece> joined;
  for (const Piece& piece : pieces_) {
    if (joined.empty() || piece.begin >= joined.back().begin + joined.back().bytes) {
      joined.push_back(piece);
      continue;
    }
    const auto end = static_cast<size_t>(piece.begin + piece.bytes - joined.back().begin);
    joined.back().bytes = std::max(joined.back().bytes, end);
  }
  pieces_ = std::move(joined);
  size_t total = 0;
  for (Piece& piece : pieces_) {
    piece.at = total;
    total += aligned(piece.bytes);
  }
  image_.resize(total);
}

Status Mirror::upload(void* stream) {
  if (image_.empty()) lay_out();
  RINGFOLD_RETURN_IF_ERROR(copies_.reserve(image_.size()));
  for (const Piece& piece : pieces_) std::memcpy(image_.data() + piece.at, piece.begin, piece.bytes);
  if (image_.empty()) return {};
  return copies_.functions().copy(copies_.data(), image_.data(), image_.size(), stream);
}

void Mirror::move_tensors(const std::vector<TensorView*>& tensors) const {
  for (TensorView* tensor : tensors) {
    if (tensor->device != Device::cpu) continue;
    tensor->device = device_;
    if (tensor->data == nullptr) continue;
    const auto* data = static_cast<std::byte*>(tensor->data);
    auto next = std::upper_bound(pieces_.begin(), pieces_.end(), data,
                                 [](const std::byte* p, const Piece& piece) { return p < piece.begin; });
    if (next != pieces_.begin() && data < std::prev(next)->begin + std::prev(next)->bytes) {
      const Piece& piece = *std::prev(next);
      tensor->data = copies_.data() + piece.at + (data - piece.begin);
    } else if (tensor->elements() > 0) {
      throw std::logic_error("kit: a tensor was not added to the mirror");
    }
  }
}

Status Mirror::download(void* stream) {
  const detail::DeviceMemory& device = copies_.functions();
  if (!image_.empty()) RINGFOLD_RETURN_IF_ERROR(device.copy(image_.data(), copies_.data(), image_.size(), stream));
  RINGFOLD_RETURN_IF_ERROR(device.synchronise(stream));
  for (const Piece& piece : pieces_) std::memcpy(piece.begin, image_.data() + piece.at, piece.bytes);
  return {};
}

HostCopies::HostCopies() { ++host_copies; }
HostCopies::~HostCopies() { --host_copies; }

namespace mirrored {

Status verify(const VerifyArgs& args) {
  return through_copies(args, [](const VerifyArgs& a) { return ringfold::verify(a); });
}

Status decode(const DecodeArgs& args) {
  return through_copies(args, [](const DecodeArgs& a) { return ringfold::decode(a); });
}

Status fold(const FoldArgs& args) {
  return through_copies(args, [](const FoldArgs& a) { return ringfold::fold(a); });
}

Status conv_verify(const ConvArgs& args) {
  return through_copies(args, [](const ConvArgs& a) { return ringfold::conv_verify(a); });
}

Status conv_decode(const ConvArgs& args) {
  return through_copies(args, [](const ConvArgs& a) { return ringfold::conv_decode(a); });
}

Status conv_commit(const ConvCommitArgs& args) {
  return through_copies(args, [](const ConvCommitArgs& a) { return ringfold::conv_commit(a); });
}

Status gated_norm(const GatedNormArgs& args) {
  return through_copies(args, [](const GatedNormArgs& a) { return ringfold::gated_norm(a); });
}

Status verify_layer(const LayerArgs& args) {
  return through_copies(args, [](const LayerArgs& a) { return ringfold::verify_layer(a); });
}

Status decode_layer(const LayerArgs& args) {
  return through_copies(args, [](const LayerArgs& a) { return ringfold::decode_layer(a); });
}

Status commit(Pool& pool, const CommitArgs& args) {
  return through_copies(pool.state().device, args, [&](const CommitArgs& a) { return ringfold::commit(pool, a); });
}

Status set_mixers(Pool& pool, std::span<const Mixer> mixers) {
  const MixersArgs args{{mixers.begin(), mixers.end()}};
  return through_copies(pool.state().device, args, [&](const MixersArgs& a) { return pool.set_mixers(a.mixers); });
}

}  // namespace mirrored
}  // namespace ringfold::check
