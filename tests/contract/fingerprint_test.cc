// Golden hashes: one changed bit anywhere in outputs, rings, states, conv or norm is noticed, on every machine. The
// file is written anew by RINGFOLD_UPDATE_FINGERPRINTS=1 contract_test --gtest_filter='Fingerprints.*'; a change of it
// is a change of the arithmetic and needs a note in docs/notes/.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "check/check.h"
#include "check/world.h"
#include "ringfold/ringfold.h"

namespace ringfold::check {
namespace {

constexpr const char* kFile = RINGFOLD_FINGERPRINTS;

std::vector<Config> grid_of_file() {  // covers every pair of gate, dtypes and layout
  std::vector<Config> grid = configs("C9", Level::full);
  grid.resize(40);
  return grid;
}

std::map<std::string, uint64_t> read() {
  std::map<std::string, uint64_t> all;
  std::ifstream file(kFile);
  std::string name;
  uint64_t value = 0;
  while (file >> name >> std::hex >> value) all[name] = value;
  return all;
}

TEST(Fingerprints, AreThoseOfTheFile) {
  const std::vector<Config> grid = grid_of_file();
  if (std::getenv("RINGFOLD_UPDATE_FINGERPRINTS") != nullptr) {
    std::ofstream file(kFile);
    for (const Config& c : grid) file << c.name() << " " << std::hex << fingerprint("reference", c) << "\n";
  }
  const std::map<std::string, uint64_t> golden = read();
  EXPECT_EQ(golden.size(), grid.size()) << kFile;
  for (const Config& c : grid) {
    ASSERT_TRUE(golden.contains(c.name())) << c.name() << " is not in " << kFile;
    EXPECT_EQ(fingerprint("reference", c), golden.at(c.name()))
        << c.name() << ": some bit of the arithmetic has changed";
  }
}

TEST(Fingerprints, DoNotDependOnTheImplementationButOnTheConfig) {
  const std::vector<Config> grid = configs("C9", Level::quick);
  const uint64_t first = fingerprint("reference", grid[0]);
  EXPECT_NE(first, 0u);
  EXPECT_NE(first, fingerprint("reference", grid[1]));
  for (std::string_view impl : implementations()) EXPECT_EQ(fingerprint(impl, grid[0]), first) << impl;
  for (std::string_view impl : implementations(Device::cuda)) {
    for (const Config& c : grid) {
      // Not of a kernel that is made for other shapes, or of one without snapshots, which are part of the hash.
      if (run_line("C9", impl, c).verdict == Verdict::skip || !World(c, impl).takes_snapshots()) continue;
      EXPECT_EQ(fingerprint(impl, c), fingerprint("reference", c)) << impl << " " << c.name();
    }
  }
  EXPECT_EQ(fingerprint("no-such", grid[0]), 0u);
}

}  // namespace
}  // namespace ringfold::check
