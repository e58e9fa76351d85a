// What this build and this machine have of CUDA.
#pragma once

#include <string>
#include <vector>

namespace ringfold::cli {

struct CudaInfo {
  bool built_in = false;
  std::string toolkit;               ///< version that this was built with
  std::string architectures;         ///< as CMAKE_CUDA_ARCHITECTURES, separated by spaces
  std::vector<std::string> devices;  ///< one line each
  std::string reason;                ///< why tensors cannot be on a device here; "" where they can
};

CudaInfo cuda_info();

}  // namespace ringfold::cli
