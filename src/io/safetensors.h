// Reading (memory-mapped) and writing safetensors files. Format: 8 bytes header length, JSON header, tensor bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ringfold/status.h"
#include "ringfold/tensor_view.h"

namespace ringfold::io {

/// One tensor of a file. `dtype` is the file's own name ("F32", "BF16", "F16", "I32", "I64", "U8", ...).
struct StoredTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;

  /// As a view, if the dtype is one that ringfold has, the rank is 1 to TensorView::kMaxRank and the bytes are aligned
  /// for the dtype (a file with a header of odd length breaks that); nothing otherwise.
  std::optional<TensorView> view() const;
};

/// An open file. Tensors point into the mapping and live as long as this object.
class SafetensorsFile {
 public:
  /// Checks everything before it returns: header length, JSON, dtypes, shapes, offsets (in range, no overlap, sizes
  /// agree). Errors: not_found (no such file), invalid_argument (names the tensor or key, what was expected and what
  /// was found).
  static Status open(const std::string& path, std::unique_ptr<SafetensorsFile>* file);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// Null if there is none of that name.
  const StoredTensor* find(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsFile() = default;
  void* mapping_ = nullptr;
  size_t size_ = 0;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor to be written; strided views are packed on the way.
struct NamedTensor {
  std::string name;
  TensorView view;
};

/// Writes a file that open() accepts: to a temporary name beside it first, then renamed, so a reader never sees half a
/// file.
Status write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace ringfold::io
