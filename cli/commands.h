// The subcommands of the `ringfold` program. Each registers itself on the app; CLI11 calls it back after parsing.
#pragma once

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <string>

#include "ringfold/status.h"

namespace ringfold::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  ///< the command ran, and what it judged is not in order
inline constexpr int kExitUsage = 2;   ///< unknown option, missing or malformed file, something this build cannot do

/// Ends a command with one line on stderr. main() prints "ringfold: <message>".
class CommandError : public std::runtime_error {
 public:
  explicit CommandError(const std::string& message, int exit_code = kExitUsage)
      : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// Throws a CommandError unless `status` is ok. `where` names the file or step; a bug in ringfold exits with
/// kExitFailed.
void require(const Status& status, const std::string& where);

/// Registers one subcommand. Its callback leaves the exit code in *exit_code, or throws a CommandError.
void add_generate(CLI::App& app, int* exit_code);
void add_run(CLI::App& app, int* exit_code);
void add_check(CLI::App& app, int* exit_code);
void add_explain(CLI::App& app, int* exit_code);
void add_bench(CLI::App& app, int* exit_code);
void add_info(CLI::App& app, int* exit_code);

}  // namespace ringfold::cli
