#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace ringfold::io {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = fs::temp_directory_path() / ("ringfold_io_" + std::string(info->name()) + std::to_string(getpid()));
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string path(const std::string& name = "t.safetensors") const { return (directory_ / name).string(); }

  void write_raw(const std::string& header, size_t data_bytes, uint64_t length) const {
    std::ofstream out(path(), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof(length));
    out << header << std::string(data_bytes, '\1');
  }
  void write_raw(const std::string& header, size_t data_bytes) const { write_raw(header, data_bytes, header.size()); }

  Status open() { return SafetensorsFile::open(path(), &file_); }

  /// The file must be refused with a message that has `part`, and nothing must be handed out.
  void expect_refused(const std::string& header, size_t data_bytes, const std::string& part) {
    write_raw(header, data_bytes);
    const Status status = open();
    EXPECT_EQ(status.code(), Code::invalid_argument) << header;
    EXPECT_THAT(status.message(), HasSubstr(part)) << header;
    EXPECT_THAT(status.message(), HasSubstr("expected")) << header;
    EXPECT_THAT(status.message(), HasSubstr("found")) << header;
    EXPECT_EQ(file_, nullptr);
  }

  fs::path directory_;
  std::unique_ptr<SafetensorsFile> file_;
};

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

TEST_F(SafetensorsTest, RoundTripKeepsBytesShapesAndMetadata) {
  const std::vector<float> floats = {1.5f, -2.0f, 0.0f, 3.25f, -0.0f, 1e-40f};
  const std::vector<uint16_t> halves = {0x3f80, 0x7fc1, 0xffff};
  const std::vector<int32_t> ints = {-1, 7};
  const Status written = write_safetensors(path(),
                                           {{"h", TensorView(halves.data(), DType::bf16, {3})},
                                            {"f", TensorView(floats.data(), DType::f32, {2, 3})},
                                            {"i", TensorView(ints.data(), DType::i32, {2})},
                                            {"none", TensorView(floats.data(), DType::f16, {0, 4})}},
                                           {{"key", "value \"quoted\""}});
  ASSERT_TRUE(written.ok()) << written.message();
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(file_->tensors().size(), 4u);
  EXPECT_EQ(file_->metadata().at("key"), "value \"quoted\"");
  EXPECT_EQ(file_->find("absent"), nullptr);

  const StoredTensor* f = file_->find("f");
  ASSERT_NE(f, nullptr);
  EXPECT_EQ(f->dtype, "F32");
  EXPECT_EQ(f->shape, (std::vector<int64_t>{2, 3}));
  ASSERT_EQ(f->bytes.size(), 24u);
  EXPECT_EQ(std::memcmp(f->bytes.data(), floats.data(), 24), 0);
  const auto view = f->view();
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->rank, 2);
  EXPECT_EQ(view->stride[0], 3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view->data) % 4, 0u);

  EXPECT_EQ(std::memcmp(file_->find("h")->bytes.data(), halves.data(), 6), 0);
  EXPECT_EQ(std::memcmp(file_->find("i")->bytes.data(), ints.data(), 8), 0);
  EXPECT_EQ(file_->find("none")->bytes.size(), 0u);
}

TEST_F(SafetensorsTest, StridedViewsArePackedInRowMajorOrder) {
  std::vector<int32_t> table(24);
  for (int32_t i = 0; i < 24; ++i) table[static_cast<size_t>(i)] = i;
  // The transpose of the left 3x3 block of a 4x6 table.
  const TensorView view(table.data(), DType::i32, {3, 3}, {1, 6});
  ASSERT_TRUE(write_safetensors(path(), {{"t", view}}, {}).ok());
  ASSERT_TRUE(open().ok());
  const std::vector<int32_t> expected = {0, 6, 12, 1, 7, 13, 2, 8, 14};
  ASSERT_EQ(file_->find("t")->bytes.size(), 36u);
  EXPECT_EQ(std::memcmp(file_->find("t")->bytes.data(), expected.data(), 36), 0);
}

TEST_F(SafetensorsTest, MisalignedAndForeignDtypesHaveNoView) {
  // A header of odd length leaves the data at an odd address; the bytes are there, a float view is not.
  std::string header = "{" + entry("x", "F32", "[1]", "[0,4]") + "," + entry("y", "I64", "[1]", "[4,12]") + "}";
  while (header.size() % 8 != 1) header += ' ';
  write_raw(header, 12);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(file_->find("x")->bytes.size(), 4u);
  EXPECT_FALSE(file_->find("x")->view().has_value());
  EXPECT_FALSE(file_->find("y")->view().has_value());
}

TEST_F(SafetensorsTest, EmptyFileOfTensorsIsValid) {
  write_raw("{}", 0);
  ASSERT_TRUE(open().ok());
  EXPECT_TRUE(file_->tensors().empty());
}

TEST_F(SafetensorsTest, MissingAndIrregularFiles) {
  EXPECT_EQ(SafetensorsFile::open(path("none"), &file_).code(), Code::not_found);
  EXPECT_EQ(SafetensorsFile::open(directory_.string(), &file_).code(), Code::invalid_argument);
  std::ofstream(path(), std::ios::binary) << "1234567";
  const Status status = open();
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_THAT(status.message(), HasSubstr("found 7"));
}

TEST_F(SafetensorsTest, HeaderLengthIsBounded) {
  for (uint64_t length : {uint64_t{3}, uint64_t{1} << 20, uint64_t{1} << 62, ~uint64_t{0}}) {
    write_raw("{}", 0, length);
    const Status status = open();
    EXPECT_EQ(status.code(), Code::invalid_argument) << length;
    EXPECT_THAT(status.message(), HasSubstr("header length")) << length;
  }
}

TEST_F(SafetensorsTest, MalformedHeaders) {
  expect_refused("", 0, "header");
  expect_refused("{\"x\":", 0, "header");
  expect_refused("[]", 0, "header");
  expect_refused("\"\xff\"", 0, "header");
  expect_refused("{\"x\":1e999}", 0, "header");
  expect_refused("{\"x\":3}", 0, "tensor 'x'");
  expect_refused("{\"__metadata__\":[]}", 0, "__metadata__");
  expect_refused("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ 'a'");
  expect_refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[0]}}", 0, "data_offsets");
  expect_refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0],\"extra\":1}}", 0, "alone");
  expect_refused(std::string(100000, '['), 0, "header");
}

TEST_F(SafetensorsTest, MalformedTensors) {
  expect_refused("{" + entry("x", "F31", "[1]", "[0,4]") + "}", 4, "dtype");
  expect_refused("{" + entry("x", "F32", "[-1]", "[0,4]") + "}", 4, "shape");
  expect_refused("{" + entry("x", "F32", "[1.5]", "[0,4]") + "}", 4, "shape");
  expect_refused("{" + entry("x", "F32", "7", "[0,4]") + "}", 4, "shape");
  expect_refused("{" + entry("x", "F32", "[18446744073709551615]", "[0,4]") + "}", 4, "shape");
  expect_refused("{" + entry("x", "F32", "[4294967296,4294967296]", "[0,0]") + "}", 0, "shape");
  expect_refused("{" + entry("x", "F32", "[1]", "[4,0]") + "}", 4, "data_offsets");
  expect_refused("{" + entry("x", "F32", "[1]", "[-4,0]") + "}", 4, "data_offsets");
  expect_refused("{" + entry("x", "F32", "[1]", "[0]") + "}", 4, "data_offsets");
  expect_refused("{" + entry("x", "F32", "[2]", "[0,8]") + "}", 4, "data_offsets");
  expect_refused("{" + entry("x", "F32", "[1]", "[0,8]") + "}", 8, "expected 4 bytes");
}

TEST_F(SafetensorsTest, OverlapsHolesLeftoversAndDuplicates) {
  expect_refused("{" + entry("x", "F32", "[2]", "[0,8]") + "," + entry("y", "F32", "[2]", "[4,12]") + "}", 12, "'y'");
  expect_refused("{" + entry("x", "F32", "[1]", "[0,4]") + "," + entry("y", "F32", "[1]", "[0,4]") + "}", 4,
                 "begin at 4");
  expect_refused("{" + entry("x", "F32", "[1]", "[0,4]") + "," + entry("y", "F32", "[1]", "[8,12]") + "}", 12, "hole");
  expect_refused("{" + entry("x", "F32", "[1]", "[0,4]") + "}", 5, "found 5");
  expect_refused("{" + entry("x", "F32", "[1]", "[0,4]") + "," + entry("x", "F32", "[1]", "[4,8]") + "}", 8,
                 "'x' twice");
  expect_refused("{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
                 "'dtype' twice");
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  const std::vector<float> floats = {1, 2, 3};
  ASSERT_TRUE(write_safetensors(path(), {{"f", TensorView(floats.data(), DType::f32, {3})}}, {{"a", "b"}}).ok());
  const auto size = fs::file_size(path());
  for (auto cut = size; cut-- > 0;) {
    fs::resize_file(path(), cut);
    EXPECT_EQ(open().code(), Code::invalid_argument) << cut;
  }
}

TEST_F(SafetensorsTest, WriterRefusesWhatOpenWouldRefuse) {
  const std::vector<float> floats = {1, 2, 3};
  const TensorView view(floats.data(), DType::f32, {3});
  EXPECT_EQ(write_safetensors(path(), {{"f", view}, {"f", view}}, {}).code(), Code::invalid_argument);
  EXPECT_EQ(write_safetensors(path(), {{"__metadata__", view}}, {}).code(), Code::invalid_argument);
  EXPECT_EQ(write_safetensors(path(), {{"f", TensorView()}}, {}).code(), Code::invalid_argument);
  EXPECT_EQ(write_safetensors(path(), {{"f", view}}, {{"a", "\xff"}}).code(), Code::invalid_argument);
  EXPECT_EQ(write_safetensors(path("no/such/folder"), {{"f", view}}, {}).code(), Code::invalid_argument);
  EXPECT_EQ(write_safetensors(directory_.string(), {{"f", view}}, {}).code(), Code::invalid_argument);
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(SafetensorsTest, WritingReplacesAFileAndLeavesNoTemporary) {
  const std::vector<float> floats = {1, 2, 3};
  ASSERT_TRUE(write_safetensors(path(), {{"f", TensorView(floats.data(), DType::f32, {3})}}, {}).ok());
  ASSERT_TRUE(write_safetensors(path(), {{"g", TensorView(floats.data(), DType::f32, {2})}}, {}).ok());
  ASSERT_TRUE(open().ok());
  EXPECT_NE(file_->find("g"), nullptr);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace ringfold::io
