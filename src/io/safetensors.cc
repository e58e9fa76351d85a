#include "io/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "io/format.h"

namespace ringfold::io {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian and mapped as they are");

/// A header describes tensors in some hundred bytes each; anything longer than this is not a header.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kPrefixBytes = 8;

struct DTypeInfo {
  const char* name;
  size_t bytes;
};

constexpr std::array<DTypeInfo, 15> kDTypes = {{{"F64", 8},
                                                {"F32", 4},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"I64", 8},
                                                {"I32", 4},
                                                {"I16", 2},
                                                {"I8", 1},
                                                {"U64", 8},
                                                {"U32", 4},
                                                {"U16", 2},
                                                {"U8", 1},
                                                {"BOOL", 1},
                                                {"F8_E4M3", 1},
                                                {"F8_E5M2", 1}}};

size_t bytes_of(const std::string& dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (dtype == info.name) return info.bytes;
  }
  return 0;
}

std::string known_dtypes() {
  std::string names;
  for (const DTypeInfo& info : kDTypes) names += std::string(names.empty() ? "" : ", ") + info.name;
  return names;
}

/// A JSON value for an error message, cut to a readable length.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

/// Parses the header and refuses keys that occur twice in one object (a JSON library would keep the last one,
/// silently).
Status parse_header(const std::string& path, const char* text, size_t size, json* header) {
  std::vector<std::set<std::string>> open_objects;
  std::string duplicate;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == json::parse_event_t::key) {
      std::string key = value.get<std::string>();
      if (!open_objects.back().insert(key).second && duplicate.empty()) duplicate = key;
    }
    return true;
  };
  try {
    *header = json::parse(text, text + size, watch);
  } catch (const json::parse_error& error) {
    return invalid(path + ": header: expected JSON, found an error at byte " + std::to_string(error.byte));
  } catch (const json::exception&) {
    return invalid(path + ": header: expected JSON, found a number out of range");
  }
  if (!duplicate.empty()) return invalid(path + ": header: expected distinct keys, found '" + duplicate + "' twice");
  if (!header->is_object()) return invalid(path + ": header: expected a JSON object, found " + shown(*header));
  return {};
}

Status parse_metadata(const std::string& path, const json& entry, std::map<std::string, std::string>* metadata) {
  if (!entry.is_object()) return invalid(path + ": __metadata__: expected an object of strings, found " + shown(entry));
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) {
      return invalid(path + ": __metadata__ '" + key + "': expected a string, found " + shown(value));
    }
    (*metadata)[key] = value.get<std::string>();
  }
  return {};
}

/// Non-negative integer that fits int64.
bool read_size(const json& value, int64_t* size) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned()) {
    if (value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
  } else if (value.get<int64_t>() < 0) {
    return false;
  }
  *size = value.get<int64_t>();
  return true;
}

/// Fills shape and returns the byte count that dtype and shape ask for.
Status parse_shape(const std::string& where, const json& entry, size_t element, std::vector<int64_t>* shape,
                   int64_t* bytes) {
  if (!entry.is_array()) return invalid(where + ": shape: expected an array, found " + shown(entry));
  *bytes = static_cast<int64_t>(element);
  for (const json& dimension : entry) {
    int64_t size = 0;
    if (!read_size(dimension, &size)) {
      return invalid(where + ": shape: expected non-negative integers, found " + shown(entry));
    }
    if (__builtin_mul_overflow(*bytes, size, bytes)) {
      return invalid(where + ": shape: expected a size below 2^63 bytes, found " + shown(entry));
    }
    shape->push_back(size);
  }
  return {};
}

/// One tensor entry. `data` is all that follows the header.
Status parse_tensor(const std::string& path, const std::string& name, const json& entry,
                    std::span<const std::byte> data, StoredTensor* tensor) {
  const std::string where = path + ": tensor '" + name + "'";
  tensor->name = name;
  if (!entry.is_object()) return invalid(where + ": expected an object, found " + shown(entry));
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) return invalid(where + ": expected the key '" + key + "', found " + shown(entry));
  }
  if (entry.size() != 3) {
    return invalid(where + ": expected the keys dtype, shape, data_offsets alone, found " + shown(entry));
  }
  const json& dtype = entry["dtype"];
  const size_t element = dtype.is_string() ? bytes_of(dtype.get<std::string>()) : 0;
  if (element == 0) {
    return invalid(where + ": dtype: expected one of " + known_dtypes() + ", found " + shown(dtype));
  }
  tensor->dtype = dtype.get<std::string>();

  int64_t expected = 0;
  if (Status status = parse_shape(where, entry["shape"], element, &tensor->shape, &expected); !status.ok()) {
    return status;
  }
  const json& offsets = entry["data_offsets"];
  int64_t begin = 0, end = 0;
  if (!offsets.is_array() || offsets.size() != 2 || !read_size(offsets[0], &begin) || !read_size(offsets[1], &end) ||
      begin > end) {
    return invalid(where + ": data_offsets: expected [begin, end] with 0 <= begin <= end, found " + shown(offsets));
  }
  if (static_cast<uint64_t>(end) > data.size()) {
    return invalid(where + ": data_offsets: expected an end within the " + std::to_string(data.size()) +
                   " data bytes of the file, found " + shown(offsets));
  }
  if (end - begin != expected) {
    return invalid(where + ": data_offsets: expected " + std::to_string(expected) + " bytes for " + tensor->dtype +
                   shown(entry["shape"]) + ", found " + std::to_string(end - begin));
  }
  tensor->bytes = data.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  return {};
}

/// The format allows neither overlaps nor holes: tensors in order of their offsets follow each other without a gap.
Status check_coverage(const std::string& path, const std::vector<StoredTensor>& tensors,
                      std::span<const std::byte> data) {
  std::vector<const StoredTensor*> order;
  for (const StoredTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const StoredTensor* x, const StoredTensor* y) {
    return std::pair(x->bytes.data(), x->bytes.size()) < std::pair(y->bytes.data(), y->bytes.size());
  });
  const std::byte* next = data.data();
  for (const StoredTensor* tensor : order) {
    if (tensor->bytes.data() != next) {
      return invalid(path + ": tensor '" + tensor->name + "': data_offsets: expected to begin at " +
                     std::to_string(next - data.data()) + " (no overlap, no hole), found " +
                     std::to_string(tensor->bytes.data() - data.data()));
    }
    next += tensor->bytes.size();
  }
  const size_t covered = static_cast<size_t>(next - data.data());
  if (covered != data.size()) {
    return invalid(path + ": data: expected " + std::to_string(covered) + " bytes after the header, found " +
                   std::to_string(data.size()));
  }
  return {};
}

/// Maps a whole file for reading.
Status map_file(const std::string& path, void** mapping, size_t* size) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const Code code = errno == ENOENT || errno == ENOTDIR ? Code::not_found : Code::invalid_argument;
    return Status(code, path + ": cannot be opened: " + std::strerror(errno));
  }
  struct stat info {};
  Status status;
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    status = invalid(path + ": expected a regular file, found a directory or device");
  } else if (static_cast<size_t>(info.st_size) < kPrefixBytes) {
    status = invalid(path + ": expected at least 8 bytes (the header length), found " + std::to_string(info.st_size));
  } else {
    void* address = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) {
      status = invalid(path + ": cannot be mapped: " + std::strerror(errno));
    } else {
      *mapping = address;
      *size = static_cast<size_t>(info.st_size);
    }
  }
  ::close(descriptor);
  return status;
}

}  // namespace

std::optional<TensorView> StoredTensor::view() const {
  TensorView result;
  if (dtype == "F32") {
    result.dtype = DType::f32;
  } else if (dtype == "BF16") {
    result.dtype = DType::bf16;
  } else if (dtype == "F16") {
    result.dtype = DType::f16;
  } else if (dtype == "I32") {
    result.dtype = DType::i32;
  } else {
    return std::nullopt;
  }
  if (shape.empty() || shape.size() > static_cast<size_t>(TensorView::kMaxRank)) return std::nullopt;
  if (reinterpret_cast<uintptr_t>(bytes.data()) % size_of(result.dtype) != 0) return std::nullopt;
  result.data = const_cast<std::byte*>(bytes.data());
  result.rank = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (int i = result.rank - 1; i >= 0; --i) {
    const size_t d = static_cast<size_t>(i);
    result.shape[d] = shape[d];
    result.stride[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  }
  return result;
}

Status SafetensorsFile::open(const std::string& path, std::unique_ptr<SafetensorsFile>* file) {
  return guarded(path, [&]() -> Status {
    std::unique_ptr<SafetensorsFile> opened(new SafetensorsFile());
    if (Status status = map_file(path, &opened->mapping_, &opened->size_); !status.ok()) return status;

    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, opened->mapping_, sizeof(header_bytes));
    const uint64_t available = opened->size_ - kPrefixBytes;
    if (header_bytes > std::min(available, kMaxHeaderBytes)) {
      return invalid(path + ": header length: expected at most " +
                     std::to_string(std::min(available, kMaxHeaderBytes)) + " bytes, found " +
                     std::to_string(header_bytes));
    }
    const char* text = static_cast<const char*>(opened->mapping_) + kPrefixBytes;
    json header;
    if (Status status = parse_header(path, text, header_bytes, &header); !status.ok()) return status;

    const std::span<const std::byte> data(reinterpret_cast<const std::byte*>(text + header_bytes),
                                          available - header_bytes);
    for (const auto& [name, entry] : header.items()) {
      if (name == kMetadataKey) {
        if (Status status = parse_metadata(path, entry, &opened->metadata_); !status.ok()) return status;
        continue;
      }
      StoredTensor tensor;
      if (Status status = parse_tensor(path, name, entry, data, &tensor); !status.ok()) return status;
      opened->index_[name] = opened->tensors_.size();
      opened->tensors_.push_back(std::move(tensor));
    }
    if (Status status = check_coverage(path, opened->tensors_, data); !status.ok()) return status;
    *file = std::move(opened);
    return {};
  });
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) munmap(mapping_, size_);
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace ringfold::io
