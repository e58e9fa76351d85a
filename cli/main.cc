// ringfold: the library's jobs from a shell.
#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "cli/commands.h"
#include "ringfold/registry.h"

namespace ringfold::cli {

void require(const Status& status, const std::string& where) {
  if (status.ok()) return;
  const std::string message = where.empty() ? status.message() : where + ": " + status.message();
  throw CommandError(message, status.code() == Code::internal ? kExitFailed : kExitUsage);
}

namespace {

constexpr const char* kFooter = R"(Examples:
  ringfold generate models/hybrid-byte --prompt "In the beginning"   text with drafts, checked against plain decoding
  ringfold run case.safetensors -o out.safetensors                   execute a case file
  ringfold check                                                     the contract, on every implementation here
  ringfold explain --preset qwen3.5-35b --window 4                   what would run, and what it costs
  ringfold bench verify                                              time the verify rows beside their twins
Exit codes: 0 done, 1 done and not in order, 2 refused (usage, file, or something that this build cannot do).)";

/// One line for a parse error, with CLI11's own text.
int report_parse_error(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  const auto subcommands = app.get_subcommands();
  const std::string command = subcommands.empty() ? "" : subcommands.front()->get_name() + " ";
  std::string message = error.what();
  // CLI11 asks for what is missing before it tells what it did not know, and the unknown option is the likelier
  // mistake.
  for (const std::string& argument : app.remaining(true)) {
    if (argument.rfind('-', 0) != 0) continue;
    message = fmt::format("{}: unknown option", argument);
    break;
  }
  fmt::print(stderr, "ringfold: {} (see ringfold {}--help)\n", message, command);
  return kExitUsage;
}

int run_main(int argc, char** argv) {
  CLI::App app("Exact state replay for speculative decoding with gated delta-rule layers.", "ringfold");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);
  int exit_code = kExitOk;
#ifdef RINGFOLD_HAS_GENERATE
  add_generate(app, &exit_code);
#endif
  add_run(app, &exit_code);
  add_check(app, &exit_code);
  add_explain(app, &exit_code);
  add_bench(app, &exit_code);
  add_info(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report_parse_error(app, error);
  }
  return exit_code;
}

}  // namespace
}  // namespace ringfold::cli

int main(int argc, char** argv) {
  using namespace ringfold::cli;
  try {
    return run_main(argc, argv);
  } catch (const CommandError& error) {
    fmt::print(stderr, "ringfold: {}\n", error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "ringfold: not enough memory\n");
    return kExitUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "ringfold: {}\n", error.what());
    return kExitFailed;
  }
}
