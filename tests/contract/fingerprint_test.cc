// Golden hashes: one changed bit anywhere in outputs, rings, states, conv or norm is noticed, on every machine. The
// file is written anew by RINGFOLD_UPDATE_FINGERPRINTS=1 contract_test --gtest_filter='Fingerprints.*'; a change of it
// is a change of the arithmetic and needs a note in docs/notes/.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "check/check.h"
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
      // A kernel that is made for other shapes, or writes no snapshots.
      const uint64_t of_impl = fingerprint(impl, c);
      if (of_impl == 0 && impl != "cuda.general") continue;
      EXPECT_EQ(of_impl, fingerprint("reference", c)) << impl << " " << c.name();
    }
  }
  EXPECT_EQ(fingerprint("no-such", grid[0]), 0u);
}

}  // namespace
}  // namespace ringfold::check
