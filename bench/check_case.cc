#include "bench/check_case.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "core/check_view.h"

namespace ringfold::bench {

double relative_error(const std::vector<std::byte>& found, const std::vector<std::byte>& expected) {
  double difference = 0, norm = 0;
  for (size_t at = 0; at < found.size(); at += sizeof(float)) {
    float x, y;
    std::memcpy(&x, found.data() + at, sizeof x);
    std::memcpy(&y, expected.data() + at, sizeof y);
    difference += (static_cast<double>(x) - y) * (static_cast<double>(x) - y);
    norm += static_cast<double>(y) * y;
  }
  return std::sqrt(difference / norm);
}

namespace {

/// One operation of a case beside the reference's.
class Comparison {
 public:
  Comparison(Rig& rig, const Desc& part)
      : rig_(rig), part_(part), host_(Device::cpu), reference_(small_case(), small_layout(), {}, &host_) {}

  Status run(std::string_view impl, std::string* difference) {
    const Layout layout = reference_.layout();
    RINGFOLD_RETURN_IF_ERROR(host_.allocate({&layout, 1}, false));
    RINGFOLD_RETURN_IF_ERROR(reference_.prepare());
    RINGFOLD_RETURN_IF_ERROR(take_inputs());
    RINGFOLD_RETURN_IF_ERROR(poison());
    RINGFOLD_RETURN_IF_ERROR(rig_.operate(part_, impl, 0, 0));
    RINGFOLD_RETURN_IF_ERROR(reference_.operate(reference_.subject().desc, "reference", 0, 0));
    for (int f = 0; f < kFields && difference->empty(); ++f)
      RINGFOLD_RETURN_IF_ERROR(compare(static_cast<Field>(f), difference));
    return {};
  }

 private:
  int64_t rows() const { return std::min<int64_t>(2, rig_.layout().desc.rows); }
  int64_t row(int64_t i) const { return i == 0 ? 0 : rig_.layout().desc.rows - 1; }

  Case small_case() const {
    Case c{rig_.subject().key, part_, {}};
    c.desc.device = Device::cpu;
    c.desc.numerics = Numerics::exact;
    c.desc.rows = rows();
    return c;
  }
  Layout small_layout() const {
    Layout layout = rig_.layout();
    layout.desc.device = Device::cpu;
    layout.desc.rows = rows();
    layout.sets = 1;
    return layout;
  }

  int64_t layers_of(Field field) const { return rig_.layout().pooled(field) ? rig_.layout().layers : 1; }

  /// f(place in the rig, place in the reference) for the parts of a field that belong to the chosen rows.
  template <class F>
  Status for_items(Field field, int64_t layers, F&& f) {
    const int64_t bytes = rig_.layout().item_bytes(field);
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (int64_t i = 0; i < rows(); ++i)
        RINGFOLD_RETURN_IF_ERROR(
            f(rig_.item(field, layer, 0, row(i)) * bytes, reference_.item(field, layer, 0, i) * bytes));
    }
    return {};
  }

  Status take_inputs() {
    for (int i = 0; i < kFields; ++i) {
      const auto field = static_cast<Field>(i);
      if (field == Field::out) continue;
      const int64_t size = rig_.layout().item_bytes(field);
      std::vector<std::byte> bytes(static_cast<size_t>(size));
      const auto take = [&](int64_t from, int64_t to) -> Status {
        RINGFOLD_RETURN_IF_ERROR(rig_.tensors()[field].read(from, bytes.data(), size));
        return host_[field].write(to, bytes.data(), size);
      };
      RINGFOLD_RETURN_IF_ERROR(for_items(field, layers_of(field), take));
    }
    return {};
  }

  /// What a verify or a decode must write holds NaN before it, so that nothing written earlier passes for it.
  Status poison() {
    if (part_.op == Op::fold) return {};
    Buffer& out = rig_.tensors()[Field::out];
    RINGFOLD_RETURN_IF_ERROR(out.fill(0, 0xff, out.bytes()));
    if (part_.op != Op::verify && part_.op != Op::verify_layer) return {};
    for (const Field field : kRing) {
      RINGFOLD_RETURN_IF_ERROR(for_items(field, 1, [&](int64_t at, int64_t) {
        return rig_.tensors()[field].fill(at, 0xff, rig_.layout().item_bytes(field));
      }));
    }
    return {};
  }

  Status compare(Field field, std::string* difference) {
    if (field == Field::out && part_.op == Op::fold) return {};
    const bool close = field == Field::out && part_.numerics == Numerics::fast;
    const int64_t size = rig_.layout().item_bytes(field);
    std::vector<std::byte> found(static_cast<size_t>(size)), expected(static_cast<size_t>(size));
    const auto note = [&](std::string_view what) {
      *difference = fmt::format("{}: {} {}", to_string(part_), to_string(field), what);
    };
    return for_items(field, layers_of(field), [&](int64_t at, int64_t reference_at) -> Status {
      RINGFOLD_RETURN_IF_ERROR(rig_.tensors()[field].read(at, found.data(), size));
      RINGFOLD_RETURN_IF_ERROR(host_[field].read(reference_at, expected.data(), size));
      if (close) {
        const double error = relative_error(found, expected);
        if (!(error <= kFastBound))
          note(fmt::format("is {:.2e} off the reference's, at most {:.0e}", error, kFastBound));
      } else if (found != expected) {
        note("differs from the reference's");
      }
      return {};
    });
  }

  Rig& rig_;
  const Desc& part_;
  Tensors host_;
  Rig reference_;
};

}  // namespace

Status check_case(Rig& rig, std::string* difference) {
  const Case& c = rig.subject();
  if (c.desc.numerics == Numerics::fast) rig.set_out(DType::f32);
  Status status = Comparison(rig, c.desc).run(rig.impls().call, difference);
  rig.set_out(c.desc.act_dtype);
  if (!status.ok() || !c.fold || !difference->empty()) return status;
  return Comparison(rig, *c.fold).run(rig.impls().fold, difference);
}

}  // namespace ringfold::bench
