// Memory that runs out at every single allocation of a call, and calls that need none.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "ringfold/c_api.h"

namespace ringfold::test {

extern long g_allocations, g_fail_at;

namespace {

constexpr int64_t H = 1, HV = 2, K = 8, V = 4, T = 2;

/// Runs `call` with its first allocation failing, then with its second, .. until it succeeds. Returns how often it
/// failed; every failure must be out_of_memory.
template <class Call>
int failures(const Call& call) {
  for (int n = 0; n < 10000; ++n) {
    g_fail_at = g_allocations + n;
    const ringfold_status status = call();
    g_fail_at = -1;
    if (status == RINGFOLD_OK) return n;
    EXPECT_EQ(status, RINGFOLD_OUT_OF_MEMORY) << ringfold_last_error();
    EXPECT_NE(std::string(ringfold_last_error()).find("memory"), std::string::npos) << ringfold_last_error();
  }
  ADD_FAILURE() << "never succeeded";
  return 0;
}

ringfold_pool_config config() {
  ringfold_pool_config c = {};
  c.struct_size = sizeof c;
  c.slots = 2;
  c.H = H, c.HV = HV, c.K = K, c.V = V;
  c.ring_rows = T;
  return c;
}

TEST(Memory, CreateOfAPool) {
  const ringfold_pool_config c = config();
  ringfold_pool* pool = nullptr;
  EXPECT_GE(failures([&] {
              const ringfold_status status = ringfold_pool_create(&c, &pool);
              EXPECT_EQ(pool == nullptr, status != RINGFOLD_OK);
              return status;
            }),
            10);
  ringfold_pool_destroy(pool);
}

TEST(Memory, Explain) {
  ringfold_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.H = H, desc.HV = HV, desc.K = K, desc.V = V;
  ringfold_plan* plan = nullptr;
  EXPECT_GE(failures([&] {
              const ringfold_status status = ringfold_explain(&desc, nullptr, &plan);
              EXPECT_EQ(plan == nullptr, status != RINGFOLD_OK);
              return status;
            }),
            5);
  ringfold_plan_destroy(plan);
}

TEST(Memory, ImplementationsByName) {  // the first call makes the list
  const char* name = nullptr;
  EXPECT_GE(failures([&] { return ringfold_implementation(RINGFOLD_DEVICE_CPU, 0, &name); }), 1);
  EXPECT_NE(name, nullptr);
}

TEST(Memory, ErrorsWithoutMemoryForTheirWords) {
  g_fail_at = g_allocations;
  EXPECT_EQ(ringfold_verify(nullptr), RINGFOLD_OUT_OF_MEMORY);
  g_fail_at = -1;
  EXPECT_EQ(ringfold_verify(nullptr), RINGFOLD_INVALID_ARGUMENT);
}

TEST(Memory, AStepNeedsNone) {
  const ringfold_pool_config c = config();
  ringfold_pool* pool = nullptr;
  ASSERT_EQ(ringfold_pool_create(&c, &pool), RINGFOLD_OK);
  std::vector<float> data(HV * K * V * T, 0.5f), out(T * HV * V);
  int64_t key[4] = {1, T, H, K}, value[4] = {1, T, HV, V}, gate[3] = {1, T, HV}, heads = HV, one = 1;
  int32_t accepted = 1;
  ringfold_slot slot = {};
  const auto tensor = [](void* memory, uint8_t code, int64_t* shape, int ndim) {
    DLTensor t = {};
    t.data = memory;
    t.device.device_type = kDLCPU;
    t.dtype = {code, 32, 1};
    t.ndim = ndim;
    t.shape = shape;
    return t;
  };
  const DLTensor q = tensor(data.data(), kDLFloat, key, 4), v = tensor(data.data(), kDLFloat, value, 4);
  const DLTensor a = tensor(data.data(), kDLFloat, gate, 3), o = tensor(out.data(), kDLFloat, value, 4);
  const DLTensor A_log = tensor(data.data(), kDLFloat, &heads, 1), id = tensor(&slot.id, kDLInt, &one, 1);
  const DLTensor kept = tensor(&accepted, kDLInt, &one, 1);
  ringfold_mixer mixer = {};
  mixer.struct_size = sizeof mixer;
  mixer.A_log = &A_log;
  ringfold_window window = {};
  window.struct_size = sizeof window;
  window.q = window.k = &q;
  window.v = &v;
  window.a = window.b = &a;
  window.slot_ids = &id;
  ringfold_verify_args verify = {};
  verify.struct_size = sizeof verify;
  verify.mixer = &mixer;
  verify.window = &window;
  verify.pool = pool;
  verify.out = &o;
  ringfold_commit_args commit = {};
  commit.struct_size = sizeof commit;
  commit.slot_ids = &id;
  commit.num_accepted = &kept;
  const auto step = [&] {
    ASSERT_EQ(ringfold_pool_acquire(pool, &slot, 1), RINGFOLD_OK) << ringfold_last_error();
    ASSERT_EQ(ringfold_verify(&verify), RINGFOLD_OK) << ringfold_last_error();
    ASSERT_EQ(ringfold_commit(pool, &commit), RINGFOLD_OK) << ringfold_last_error();
    ASSERT_EQ(ringfold_pool_release(pool, &slot, 1), RINGFOLD_OK) << ringfold_last_error();
  };
  step();
  const long before = g_allocations;
  step();
  EXPECT_EQ(g_allocations, before);
  ringfold_pool_destroy(pool);
}

}  // namespace
}  // namespace ringfold::test
