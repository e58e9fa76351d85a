// What a contract body reports its comparisons to.
#pragma once

#include <string>
#include <vector>

#include "check/support.h"
#include "ringfold/status.h"

namespace ringfold::check {

/// Thrown by a body at the first difference; run_line turns it into an Outcome.
struct Failure {
  std::string message;
};
/// Thrown by a body that cannot judge here.
struct Skip {
  std::string reason;
};

/// Counts comparisons, throws Failure at the first that does not hold.
class Judge {
 public:
  /// `device`: that of the implementation under test.
  explicit Judge(Device device = Device::cpu) : device_(device) {}
  /// Devices promise less of rows that the host cannot look into: bodies ask where they differ.
  bool on_device() const { return device_ != Device::cpu; }

  int64_t checks() const { return checks_; }
  void that(bool holds, const std::string& what);
  /// Throws Skip where an implementation for a device does not serve the call: kernels may be made for some shapes.
  void ok(const Status& status, const std::string& what);
  /// An error of exactly this code, with a message.
  void refused(const Status& status, Code code, const std::string& what);
  /// The same bits.
  void same(const TensorView& got, const TensorView& want, const std::string& what);
  void same_bytes(const Bytes& got, const Bytes& want, const std::string& what);
  /// Byte for byte as before.
  void untouched(const TensorView& view, const Bytes& before, const std::string& what);
  void zeros(const TensorView& view, const std::string& what);
  void finite(const TensorView& view, const std::string& what);
  void intact(const Buffer& buffer, const std::string& what);
  void rows(const TensorView& row_status, const std::vector<RowStatus>& want, const std::string& what);

 private:
  Device device_;
  int64_t checks_ = 0;
};

}  // namespace ringfold::check
