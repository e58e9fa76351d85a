// Arguments of a call, which Python hands over as a dictionary: arrays become views of the library, names become
// enumerations.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "python/src/errors.h"
#include "ringfold/tensor_view.h"

namespace ringfold::python {

namespace nb = nanobind;

enum class Access { read, write };

/// Of an argument, or of an attribute of one. It becomes text only where somebody complains.
struct Name {
  const char* group = nullptr;  ///< null: the argument `field` itself
  const char* field = nullptr;
  std::string text() const { return group == nullptr ? std::string(field) : std::string(group) + "." + field; }
};

/// Holds on to every array that it was asked for, so that the memory behind the views stays until the call is over.
/// Absent keys and None leave the library's default. Every complaint names the argument. Needs the GIL.
class Arguments {
 public:
  explicit Arguments(nb::dict values) : values_(std::move(values)) { arrays_.reserve(32); }

  /// The view of an array argument; empty where it is absent. An array that is to be written may not be read-only.
  TensorView array(const char* name, Access access);
  /// The same for an attribute of the argument `group`, which the complaint calls "group.name".
  TensorView array(const char* group, const char* name, Access access);

  bool has(const char* name) const { return !get(name).is_none(); }
  bool has(const char* group, const char* name) const { return !get(group, name).is_none(); }

  void integer(const char* name, int64_t* value) const;
  void integer(const char* group, const char* name, int64_t* value) const;
  void number(const char* name, float* value) const;
  void number(const char* name, double* value) const;
  void number(const char* group, const char* name, float* value) const;
  void flag(const char* name, bool* value) const;
  void flag(const char* group, const char* name, bool* value) const;
  std::vector<int32_t> integers(const char* name) const;
  /// Lives as long as the arguments. "" where absent.
  std::string_view text(const char* name);

  /// A name of the enumeration. `expected` says which there are.
  template <class Enum>
  void name(const char* key, const char* expected, Enum* value) const {
    choose({.field = key}, get(key), expected, value);
  }
  template <class Enum>
  void name(const char* group, const char* key, const char* expected, Enum* value) const {
    choose({group, key}, get(group, key), expected, value);
  }

 private:
  nb::object get(const char* name) const;
  nb::object get(const char* group, const char* name) const;
  static std::string text_of(const Name& name, const nb::object& value);
  TensorView view(const Name& name, const nb::object& value, Access access);

  template <class Enum>
  static void choose(const Name& name, const nb::object& value, const char* expected, Enum* out) {
    if (value.is_none()) return;
    const std::string text = text_of(name, value);
    const std::optional<Enum> parsed = parse<Enum>(text);
    if (!parsed) refuse(name.text(), expected, "'" + text + "'");
    *out = *parsed;
  }

  nb::dict values_;
  std::vector<nb::ndarray<nb::ro>> arrays_;
  std::deque<std::string> texts_;  // a deque, so that views of earlier ones stay valid
};

inline constexpr const char* kFloatNames = "f32, bf16 or f16";
inline constexpr const char* kKindNames = "gdn or kda";
inline constexpr const char* kNumericsNames = "exact or fast";
inline constexpr const char* kRoundingNames = "per_commit or per_token";
inline constexpr const char* kPolicyNames = "on_commit, on_next_verify or lazy";
inline constexpr const char* kNormGateNames = "silu or sigmoid";
inline constexpr const char* kDeviceNames = "cpu or cuda";

}  // namespace ringfold::python
