#include "core/rows.h"

#include <fmt/format.h>

namespace ringfold::detail {

Status judge_rows_error(const char* call, int64_t row, RowStatus status) {
  return {Code::invalid_argument,
          fmt::format("{}: row {} is refused: {} (give row_status to have refused rows skipped instead)", call, row,
                      to_string(status))};
}

}  // namespace ringfold::detail
