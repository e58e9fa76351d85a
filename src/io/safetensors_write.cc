#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "io/format.h"
#include "io/safetensors.h"

namespace ringfold::io {
namespace {

using nlohmann::json;

const char* file_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    case DType::i32: return "I32";
  }
  return "";
}

/// Appends the elements of a view in row-major order.
void write_packed(const TensorView& view, std::ofstream& out) {
  const size_t element = size_of(view.dtype);
  const char* base = static_cast<const char*>(view.data);
  if (view.packed()) {
    out.write(base, static_cast<std::streamsize>(static_cast<size_t>(view.elements()) * element));
    return;
  }
  if (view.rank == 1) {
    for (int64_t i = 0; i < view.shape[0]; ++i) {
      out.write(base + i * view.stride[0] * static_cast<int64_t>(element), static_cast<std::streamsize>(element));
    }
    return;
  }
  for (int64_t i = 0; i < view.shape[0]; ++i) write_packed(view.at(i), out);
}

Status check_tensors(const std::vector<NamedTensor>& tensors) {
  std::set<std::string> names;
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == kMetadataKey) {
      return invalid("tensors: expected a name other than '' and __metadata__, found '" + tensor.name + "'");
    }
    if (!names.insert(tensor.name).second) {
      return invalid("tensors: expected distinct names, found '" + tensor.name + "' twice");
    }
    if (tensor.view.rank < 1 || (tensor.view.elements() > 0 && tensor.view.data == nullptr)) {
      return invalid("tensor '" + tensor.name + "': expected a view with data, found an empty one");
    }
  }
  return {};
}

/// Header text (padded with spaces so that the data starts at a multiple of 8), for tensors in the order they are
/// written.
Status make_header(const std::vector<const NamedTensor*>& order, const std::map<std::string, std::string>& metadata,
                   std::string* text) {
  json header = json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  uint64_t offset = 0;
  for (const NamedTensor* tensor : order) {
    const TensorView& view = tensor->view;
    const uint64_t end = offset + static_cast<uint64_t>(view.elements()) * size_of(view.dtype);
    header[tensor->name] = {{"dtype", file_dtype(view.dtype)},
                            {"shape", std::vector<int64_t>(view.shape.begin(), view.shape.begin() + view.rank)},
                            {"data_offsets", {offset, end}}};
    offset = end;
  }
  try {
    *text = header.dump();
  } catch (const json::exception&) {
    return invalid("metadata: expected names and values in UTF-8, found other bytes");
  }
  text->append((8 - text->size() % 8) % 8, ' ');
  return {};
}

Status write_file(const std::string& path, const std::vector<const NamedTensor*>& order, const std::string& header) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status existing = fs::status(path, error);
  if (fs::exists(existing) && !fs::is_regular_file(existing)) {
    return invalid(path + ": expected a regular file or none, found a directory or device");
  }
  const std::string temporary = path + ".tmp" + std::to_string(getpid());
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    if (!out) return invalid(path + ": cannot be written: " + std::strerror(errno));
    const uint64_t length = header.size();
    out.write(reinterpret_cast<const char*>(&length), sizeof(length));
    out.write(header.data(), static_cast<std::streamsize>(header.size()));
    for (const NamedTensor* tensor : order) write_packed(tensor->view, out);
    out.close();
    if (!out) {
      fs::remove(temporary, error);
      return invalid(path + ": cannot be written: the disk is full or failing");
    }
  }
  fs::rename(temporary, path, error);
  if (error) {
    const std::string reason = error.message();
    fs::remove(temporary, error);
    return invalid(path + ": cannot be written: " + reason);
  }
  return {};
}

}  // namespace

Status write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  return guarded(path, [&]() -> Status {
    if (Status status = check_tensors(tensors); !status.ok()) return status;
    std::vector<const NamedTensor*> order;
    for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
    // Wide elements first, so that every tensor is aligned for its dtype in the file.
    std::stable_sort(order.begin(), order.end(), [](const NamedTensor* x, const NamedTensor* y) {
      return size_of(x->view.dtype) > size_of(y->view.dtype);
    });
    std::string header;
    if (Status status = make_header(order, metadata, &header); !status.ok()) return status;
    return write_file(path, order, header);
  });
}

}  // namespace ringfold::io
