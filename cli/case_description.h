// The JSON half of a case file: parameters and steps.
#pragma once

#include <string>

#include "cli/case_file.h"

namespace ringfold::cli {

/// Metadata key of the description.
inline constexpr const char* kCaseMetadataKey = "ringfold_case";

/// Reads mixer parameters, policies, ring rows (0 where the file says null) and the steps' operations into *out.
/// Unknown keys are refused: a misspelt one would have no effect. Throws CommandError.
void read_description(const std::string& path, const std::string& json_text, Case* out);

}  // namespace ringfold::cli
