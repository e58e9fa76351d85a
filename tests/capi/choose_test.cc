// The cost model through the ABI: every number beside that of the C++ API.
#include <limits>

#include "capi/bridge.h"

namespace ringfold::test {
namespace {

ringfold_desc desc_of(int32_t device) {
  auto d = made<ringfold_desc>();
  d.device = device;
  d.numerics = RINGFOLD_FAST;
  d.act_dtype = RINGFOLD_BF16;
  d.H = 16, d.HV = 32, d.K = 128, d.V = 128;
  d.rows = 64, d.window = 4;
  d.fold_policy = RINGFOLD_LAZY;  // does not count
  return d;
}

Desc cpp_desc_of(Device device) {
  return {.device = device,
          .numerics = Numerics::fast,
          .act_dtype = DType::bf16,
          .H = 16,
          .HV = 32,
          .K = 128,
          .V = 128,
          .rows = 64,
          .window = 4};
}

void expect_cost(const ringfold_step_cost& got, const StepCost& want) {
  EXPECT_EQ(got.fold_policy, static_cast<int32_t>(want.policy));
  EXPECT_EQ(got.ring_rows, want.ring_rows);
  EXPECT_EQ(got.ring_u, want.ring_u ? 1 : 0);
  EXPECT_EQ(got.numerics, static_cast<int32_t>(want.numerics));
  EXPECT_EQ(got.ring_bytes, want.ring_bytes);
  EXPECT_EQ(std::memcmp(&got.bytes, &want.bytes, sizeof want.bytes), 0);
  EXPECT_EQ(std::memcmp(&got.us, &want.us, sizeof want.us), 0);
  EXPECT_EQ(got.verify_impl, want.verify_impl);
  EXPECT_EQ(got.fold_impl, want.fold_impl);
  EXPECT_EQ(got.reserved, 0);
}

TEST(Choose, Machines) {
  const auto want = machine_names();
  for (size_t i = 0; i <= want.size() + 1; ++i) {
    const char* name = "unset";
    ASSERT_TRUE(done(ringfold_machine(i, &name)));
    if (i < want.size()) {
      EXPECT_EQ(name, want[i]);
    } else {
      EXPECT_EQ(name, nullptr);
    }
  }
  EXPECT_TRUE(refused(ringfold_machine(0, nullptr), RINGFOLD_INVALID_ARGUMENT, "name: "));
}

TEST(Choose, CostsAreThoseOfTheCppApi) {
  size_t seen = 0, with_u = 0;
  for (const std::string_view each : machine_names()) {
    const std::string name(each);
    const Machine m = *machine(name);
    const ringfold_desc desc = desc_of(static_cast<int32_t>(m.device));
    for (const double accepted : {0.0, 3.0}) {
      const auto want = step_costs(cpp_desc_of(m.device), accepted, 8, m);
      ASSERT_GT(want.size(), 3u);
      for (size_t i = 0, count = 1; i < count; ++i) {
        auto cost = made<ringfold_step_cost>();
        ASSERT_TRUE(done(ringfold_step_cost_of(&desc, accepted, 8, name.c_str(), i, &cost, &count)));
        ASSERT_EQ(count, want.size());
        expect_cost(cost, want[i]);
        ++seen, with_u += cost.ring_u;
      }
      for (const int64_t most : {int64_t{0}, want[0].ring_bytes, 3 * want[0].ring_bytes}) {
        StepCost chosen;
        ASSERT_TRUE(succeeded(choose(cpp_desc_of(m.device), accepted, 8, m, &chosen, most)));
        auto cost = made<ringfold_step_cost>();
        ASSERT_TRUE(done(ringfold_choose(&desc, accepted, 8, name.c_str(), most, &cost)));
        expect_cost(cost, chosen);
      }
    }
  }
  EXPECT_GT(seen, 100u);
  EXPECT_GT(with_u, 10u);
}

TEST(Choose, ThisMachine) {
  const ringfold_desc desc = desc_of(RINGFOLD_DEVICE_CPU);
  Machine here;
  ASSERT_TRUE(succeeded(machine(Device::cpu, &here)));
  StepCost want;
  ASSERT_TRUE(succeeded(choose(cpp_desc_of(Device::cpu), 3, 2, here, &want)));
  for (const char* name : {static_cast<const char*>(nullptr), ""}) {
    auto cost = made<ringfold_step_cost>();
    ASSERT_TRUE(done(ringfold_choose(&desc, 3, 2, name, 0, &cost)));
    expect_cost(cost, want);
  }
  if (implementations(Device::cuda).empty()) {
    const ringfold_desc on_gpu = desc_of(RINGFOLD_DEVICE_CUDA);
    auto cost = made<ringfold_step_cost>();
    EXPECT_TRUE(refused(ringfold_choose(&on_gpu, 3, 2, nullptr, 0, &cost), RINGFOLD_UNSUPPORTED, "device: "));
  }
}

TEST(Choose, Refusals) {
  const ringfold_desc good = desc_of(RINGFOLD_DEVICE_CUDA);
  auto cost = made<ringfold_step_cost>();
  const auto untouched = cost;
  size_t count = 77;
  const auto refuses = [&](const ringfold_desc* desc, double accepted, int64_t layers, const char* machine,
                           ringfold_status status, const std::string& begin) {
    EXPECT_TRUE(refused(ringfold_choose(desc, accepted, layers, machine, 0, &cost), status, begin));
    EXPECT_TRUE(refused(ringfold_step_cost_of(desc, accepted, layers, machine, 0, &cost, &count), status, begin));
    EXPECT_EQ(std::memcmp(&cost, &untouched, sizeof cost), 0);
    EXPECT_EQ(count, 77u);
  };
  refuses(nullptr, 3, 1, "h200", RINGFOLD_INVALID_ARGUMENT, "desc: expected a struct");
  refuses(&good, 3, 1, "abacus", RINGFOLD_NOT_FOUND, "machine: expected one of h200, ");
  refuses(&good, 3, 1, "cpu", RINGFOLD_INVALID_ARGUMENT, "device: expected cpu, that of machine cpu, found cuda");
  refuses(&good, 5, 1, "h200", RINGFOLD_INVALID_ARGUMENT, "accepted_per_step: expected 0 to 4");
  refuses(&good, std::numeric_limits<double>::quiet_NaN(), 1, "h200", RINGFOLD_INVALID_ARGUMENT, "accepted_per_step: ");
  refuses(&good, 3, 0, "h200", RINGFOLD_INVALID_ARGUMENT, "layers: expected 1 to ");
  ringfold_desc bad = good;
  bad.op = RINGFOLD_OP_DECODE;
  refuses(&bad, 3, 1, "h200", RINGFOLD_INVALID_ARGUMENT, "op: expected verify, found decode");
  bad = good, bad.K = 257;
  refuses(&bad, 3, 1, "h200", RINGFOLD_INVALID_ARGUMENT, "K: expected 1 to 256, found 257");

  EXPECT_TRUE(refused(ringfold_choose(&good, 3, 1, "h200", 1, &cost), RINGFOLD_UNSUPPORTED, "most_ring_bytes: "));
  EXPECT_TRUE(refused(ringfold_choose(&good, 3, 1, "h200", -1, &cost), RINGFOLD_INVALID_ARGUMENT, "most_ring_bytes: "));
  EXPECT_TRUE(
      refused(ringfold_choose(&good, 3, 1, "h200", 0, nullptr), RINGFOLD_INVALID_ARGUMENT, "cost: expected a "));
  EXPECT_TRUE(refused(ringfold_step_cost_of(&good, 3, 1, "h200", 0, &cost, nullptr), RINGFOLD_INVALID_ARGUMENT,
                      "count: expected a place"));
  EXPECT_TRUE(refused(ringfold_step_cost_of(&good, 3, 1, "h200", 1000, &cost, &count), RINGFOLD_INVALID_ARGUMENT,
                      "index: expected 0 .. "));
  EXPECT_EQ(std::memcmp(&cost, &untouched, sizeof cost), 0);
  cost.struct_size = 0;
  EXPECT_TRUE(refused(ringfold_choose(&good, 3, 1, "h200", 0, &cost), RINGFOLD_INVALID_ARGUMENT, "cost.struct_size: "));
}

TEST(Choose, AnOlderStructGetsWhatItHas) {
  const ringfold_desc desc = desc_of(RINGFOLD_DEVICE_CUDA);
  auto whole = made<ringfold_step_cost>();
  ASSERT_TRUE(done(ringfold_choose(&desc, 3, 8, "h200", 0, &whole)));
  ringfold_step_cost shorter;
  std::memset(&shorter, 0x55, sizeof shorter);
  shorter.struct_size = offsetof(ringfold_step_cost, us);
  ASSERT_TRUE(done(ringfold_choose(&desc, 3, 8, "h200", 0, &shorter)));
  EXPECT_EQ(shorter.ring_rows, whole.ring_rows);
  EXPECT_EQ(shorter.bytes, whole.bytes);
  EXPECT_EQ(shorter.numerics, 0x55555555);
}

}  // namespace
}  // namespace ringfold::test
