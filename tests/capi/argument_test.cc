// What the ABI refuses, and that it says why. Every refusal is followed by a call that succeeds.
#include <climits>

#include "capi/bridge.h"

namespace ringfold::test {
namespace {

constexpr int64_t B = 2, T = 2, H = 1, HV = 2, K = 8, V = 4, kSlots = 3;

/// A verify call that is right, to be spoilt by one field. `q` is a copy that may be changed.
class Arguments : public ::testing::Test {
 protected:
  Arguments() {
    VerifyArgs a;
    a.mixer.A_log = side.floats(DType::f32, {HV});
    a.window.q = side.floats(DType::f32, {B, T, H, K});
    a.window.k = side.floats(DType::f32, {B, T, H, K});
    a.window.v = side.floats(DType::f32, {B, T, HV, V});
    a.window.a = side.floats(DType::f32, {B, T, HV});
    a.window.b = side.floats(DType::f32, {B, T, HV});
    a.window.slot_ids = side.ints({0, 2});
    a.state = side.floats(DType::f32, {kSlots, HV, V, K});
    a.out = side.poisoned(DType::f32, {B, T, HV, V});
    given = arena.c(a);
    mixer = *given.mixer;
    window = *given.window;
    q = *window.q;
    given.mixer = &mixer;
    given.window = &window;
    window.q = &q;
    const TensorView shape = a.window.q;
    std::copy_n(shape.shape.begin(), 4, sizes);
    q.shape = sizes;
    untouched = side.bytes();
  }

  /// The call is refused with INVALID_ARGUMENT, the message begins so, and no byte of any tensor changed.
  ::testing::AssertionResult refuses(const std::string& begin) {
    const auto result = refused(ringfold_verify(&given), RINGFOLD_INVALID_ARGUMENT, begin);
    if (!result) return result;
    if (side.bytes() != untouched) return ::testing::AssertionFailure() << "bytes changed";
    return ::testing::AssertionSuccess();
  }

  void TearDown() override { EXPECT_TRUE(done(ringfold_verify(&given))); }

  Side side{Buffer::Pitch::packed};
  Arena arena;
  ringfold_verify_args given = {};
  ringfold_mixer mixer = {};
  ringfold_window window = {};
  DLTensor q = {};
  int64_t sizes[8] = {};
  std::vector<Bytes> untouched;
};

/// Sets a value for the rest of a scope.
template <class T>
class With {
 public:
  With(T* place, std::type_identity_t<T> value) : place_(place), before_(*place) { *place = value; }
  ~With() { *place_ = before_; }
  With(const With&) = delete;
  With& operator=(const With&) = delete;

 private:
  T* place_;
  T before_;
};

TEST_F(Arguments, Dtypes) {
  for (const DLDataType type : {DLDataType{kDLFloat, 32, 4}, DLDataType{kDLFloat, 32, 0}, DLDataType{kDLFloat, 64, 1},
                                DLDataType{kDLFloat, 8, 1}, DLDataType{kDLBfloat, 32, 1}, DLDataType{kDLInt, 64, 1},
                                DLDataType{kDLUInt, 32, 1}, DLDataType{kDLInt, 16, 1}, DLDataType{99, 32, 1}}) {
    With with(&q.dtype, type);
    EXPECT_TRUE(refuses("window.q: expected ")) << int{type.code} << ' ' << int{type.bits} << ' ' << type.lanes;
    EXPECT_NE(std::string(ringfold_last_error())
                  .find("code " + std::to_string(type.code) + " with " + std::to_string(type.bits) + " bits, lanes " +
                        std::to_string(type.lanes)),
              std::string::npos);
  }
  With with(&q.dtype, DLDataType{kDLInt, 32, 1});  // a dtype of the ABI, but not one for q: the C++ API says so
  EXPECT_TRUE(refuses("window.q: expected dtype f32, found i32"));
}

TEST_F(Arguments, Ranks) {
  for (const int ndim : {0, -1, INT_MIN, 7, INT_MAX}) {
    With with(&q.ndim, ndim);
    EXPECT_TRUE(refuses("window.q: expected 1 to 6 dimensions, found ndim " + std::to_string(ndim)));
  }
  With with(&q.ndim, 3);
  EXPECT_TRUE(refuses("window.q: expected [B,T,H,K], found f32[2,2,1]"));
}

TEST_F(Arguments, Shapes) {
  {
    With with(&q.shape, nullptr);
    EXPECT_TRUE(refuses("window.q: expected a shape of 4 sizes, found NULL"));
  }
  for (const int64_t size : {int64_t{-1}, INT64_MIN}) {
    With with(&sizes[1], size);
    EXPECT_TRUE(refuses("window.q: expected sizes of 0 or more, found shape[1] = " + std::to_string(size)));
  }
  With first(&sizes[0], int64_t{1} << 40), second(&sizes[1], int64_t{1} << 40);
  EXPECT_TRUE(refuses("window.q: expected sizes whose product is below 2^63, found shape["));
}

TEST_F(Arguments, Data) {
  {
    With with(&q.data, nullptr);
    EXPECT_TRUE(refuses("window.q: expected [B=2,T=2,H=1,K=8], found a null pointer"));
  }
  {
    With with(&q.byte_offset, UINT64_MAX);
    EXPECT_TRUE(refuses("window.q: expected a byte_offset within the address space"));
  }
  With with(&q.byte_offset, q.byte_offset + 1);
  EXPECT_TRUE(refuses("window.q: expected an address aligned to 4 bytes"));
}

TEST_F(Arguments, Strides) {
  int64_t strides[4] = {T * H * K, H * K, K, 2};
  With with(&q.strides, strides);
  EXPECT_TRUE(refuses("window.q: expected innermost stride 1"));
}

TEST_F(Arguments, Devices) {
  for (const int type : {0, -1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, INT_MAX}) {
    DLTensor other = q;
    std::memcpy(&other.device.device_type, &type, sizeof type);
    With with(&window.q, &other);
    EXPECT_TRUE(refuses("window.q: expected device kDLCPU, kDLCUDAHost, kDLCUDA or kDLCUDAManaged, found device type " +
                        std::to_string(type)));
  }
  for (const auto type : {kDLCUDA, kDLCUDAManaged}) {
    With with(&q.device, DLDevice{type, 0});
    EXPECT_TRUE(refuses("window.q: expected memory of device cpu, as state is, found memory of device cuda"));
    DLTensor k = *window.k;
    k.device = {kDLCUDA, 1};
    With other(&window.k, &k);
    EXPECT_TRUE(refuses("window.k: expected device_id 0, as the call's other tensors have, found 1"));
  }
  {
    With with(&q.device, DLDevice{kDLCUDA, -1});
    EXPECT_TRUE(refuses("window.q: expected a device_id of 0 or more, found -1"));
  }
  With with(&q.device, DLDevice{kDLCUDAHost, 0});  // pinned memory is host memory
  EXPECT_TRUE(done(ringfold_verify(&given)));
}

TEST_F(Arguments, MissingOnes) {
  EXPECT_TRUE(refused(ringfold_verify(nullptr), RINGFOLD_INVALID_ARGUMENT, "args: expected a struct, found NULL"));
  {
    With with(&given.mixer, nullptr);
    EXPECT_TRUE(refuses("mixer: expected a struct, found NULL"));
  }
  {
    With with(&given.window, nullptr);
    EXPECT_TRUE(refuses("window: expected a struct, found NULL"));
  }
  for (const DLTensor** tensor : {&window.q, &window.k, &window.v, &window.a, &window.b, &window.slot_ids, &mixer.A_log,
                                  &given.state, &given.out}) {
    With with(tensor, nullptr);
    EXPECT_TRUE(refuses(""));
    EXPECT_NE(std::string(ringfold_last_error()).find("found nothing"), std::string::npos) << ringfold_last_error();
  }
  auto ring = made<ringfold_ring>();
  With with(&given.ring, &ring);
  EXPECT_TRUE(refuses("ring.k: expected a tensor, found NULL"));
}

TEST_F(Arguments, Enumerations) {
  for (const int32_t value : {-1, 2, INT_MAX}) {
    {
      With with(&mixer.kind, value);
      EXPECT_TRUE(refuses("mixer.kind: expected 0 .. 1, found " + std::to_string(value)));
    }
    {
      With with(&mixer.qk_norm, value);
      EXPECT_TRUE(refuses("mixer.qk_norm: expected 0 .. 1, found "));
    }
    {
      With with(&given.numerics, value);
      EXPECT_TRUE(refuses("numerics: expected 0 .. 1, found "));
    }
    With with(&given.state_rounding, value);
    EXPECT_TRUE(refuses("state_rounding: expected 0 .. 1, found "));
  }
  auto history = made<ringfold_history>();
  With with(&given.history, &history);
  history.policy = 3;
  EXPECT_TRUE(refuses("history.policy: expected 0 .. 2, found 3"));
  history.policy = RINGFOLD_ON_COMMIT;
  history.reserved = 1;
  EXPECT_TRUE(refuses("history.reserved: expected 0 .. 0, found 1"));
}

TEST_F(Arguments, MixerValues) {
  With with(&mixer.softplus_beta, -1.0f);
  EXPECT_TRUE(refuses("mixer.softplus_beta: "));
}

TEST_F(Arguments, Implementations) {
  {
    With with(&given.impl, "cpu.nosuch");
    EXPECT_TRUE(refused(ringfold_verify(&given), RINGFOLD_NOT_FOUND, "impl: expected one of "));
  }
  {
    With with(&given.numerics, RINGFOLD_FAST);
    With unknown(&given.impl, "cpu.nosuch");
    EXPECT_TRUE(refused(ringfold_verify(&given), RINGFOLD_NOT_FOUND, "impl: expected one of "));
  }
  EXPECT_EQ(side.bytes(), untouched);
  {
    With with(&given.numerics, RINGFOLD_FAST);  // what is exact is within the bound
    EXPECT_TRUE(done(ringfold_verify(&given)));
  }
  With with(&given.impl, "reference");
  EXPECT_TRUE(done(ringfold_verify(&given)));
}

TEST_F(Arguments, LayerWithoutAPool) {
  With with(&given.layer, 1);
  EXPECT_TRUE(refuses("layer: expected 0 without a pool, found 1"));
}

TEST_F(Arguments, RefusedRows) {
  int64_t two = B;
  int32_t ids[2] = {0, 5}, statuses[2] = {77, 77};
  DLTensor slot_ids = *window.slot_ids, row_status = *window.slot_ids;
  slot_ids.data = ids, row_status.data = statuses;
  slot_ids.byte_offset = row_status.byte_offset = 0;
  slot_ids.shape = row_status.shape = &two;
  With with(&window.slot_ids, &slot_ids);
  EXPECT_TRUE(refuses("verify: "));
  With and_status(&given.row_status, &row_status);
  EXPECT_TRUE(done(ringfold_verify(&given)));
  EXPECT_EQ(statuses[0], RINGFOLD_ROW_DONE);
  EXPECT_EQ(statuses[1], RINGFOLD_ROW_SLOT_OUT_OF_RANGE);
}

TEST_F(Arguments, AnythingInATensor) {  // what is not refused is the tensor that is right
  Rng rng(7);
  const auto one_of = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[rng.below(sizeof...(values))];
  };
  const DLTensor right = q;
  const std::vector<int64_t> right_sizes(sizes, sizes + 4);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    q = right;
    std::copy(right_sizes.begin(), right_sizes.end(), sizes);
    for (int changes = static_cast<int>(rng.below(3)); changes >= 0; --changes) {
      switch (rng.below(7)) {
        case 0: q.ndim = one_of(4, 3, 5, 6, 0, -1, 7, INT_MAX, INT_MIN); break;
        case 1: q.dtype.code = static_cast<uint8_t>(one_of(2, 0, 1, 4, 5, 255)); break;
        case 2: q.dtype.bits = static_cast<uint8_t>(one_of(32, 16, 0, 8, 64, 255)); break;
        case 3: q.dtype.lanes = static_cast<uint16_t>(one_of(1, 0, 2, 65535)); break;
        case 4: q.device = {one_of(kDLCPU, kDLCUDA, kDLCUDAHost, kDLVulkan, kDLCUDAManaged), one_of(0, 1, -1)}; break;
        case 5: sizes[rng.below(6)] = one_of(int64_t{0}, 1, 2, 8, 9, -1, int64_t{1} << 33, INT64_MAX, INT64_MIN); break;
        default: q.data = one_of(right.data, static_cast<void*>(nullptr)); break;
      }
    }
    const bool host = q.device.device_type == kDLCPU || q.device.device_type == kDLCUDAHost;
    const bool is_right = q.ndim == 4 && q.dtype.code == kDLFloat && q.dtype.bits == 32 && q.dtype.lanes == 1 && host &&
                          q.data == right.data && std::equal(right_sizes.begin(), right_sizes.end(), sizes);
    accepted += is_right;
    if (!is_right) {
      ASSERT_TRUE(refuses("")) << i;
      ASSERT_STRNE(ringfold_last_error(), "");
    } else {
      ASSERT_TRUE(done(ringfold_verify(&given))) << i;
      untouched = side.bytes();
    }
  }
  EXPECT_GT(accepted, 100);
  q = right;
  std::copy(right_sizes.begin(), right_sizes.end(), sizes);
}

TEST(CudaTensors, AreForAGpu) {
  if (!implementations(Device::cuda).empty()) GTEST_SKIP() << "this machine has a GPU, and the tensors are on the host";
  Side side(Buffer::Pitch::packed);
  Arena arena;
  GatedNormArgs args;
  args.x = side.floats(DType::f32, {2, 2, 4});
  args.z = side.floats(DType::f32, {2, 2, 4});
  args.weight = side.floats(DType::f32, {4});
  args.out = side.poisoned(DType::f32, {2, 2, 4});
  ringfold_gated_norm_args given = arena.c(args);
  const auto before = side.bytes();
  const auto move = [](const DLTensor* tensor, DLDeviceType type, int id) {
    const_cast<DLTensor*>(tensor)->device = {type, id};
  };
  for (const DLTensor* tensor : {given.x, given.z, given.weight}) move(tensor, kDLCUDA, 1);
  move(given.out, kDLCUDAManaged, 1);
  EXPECT_TRUE(refused(ringfold_gated_norm(&given), RINGFOLD_UNSUPPORTED, "nothing serves gated_norm cuda"));
  move(given.out, kDLCUDA, 0);
  EXPECT_TRUE(refused(ringfold_gated_norm(&given), RINGFOLD_INVALID_ARGUMENT, "out: expected device_id 1"));
  EXPECT_EQ(side.bytes(), before);

  auto config = made<ringfold_pool_config>();
  config.slots = 2, config.H = 1, config.HV = 1, config.K = 4, config.V = 4, config.ring_rows = 2;
  config.device = RINGFOLD_DEVICE_CUDA;
  config.device_id = 1;
  ringfold_pool* pool = nullptr;
  EXPECT_TRUE(refused(ringfold_pool_create(&config, &pool), RINGFOLD_UNSUPPORTED, ""));
  auto bytes = made<ringfold_pool_bytes>();
  EXPECT_TRUE(done(ringfold_pool_bytes_of(&config, &bytes)));  // asks no device
}

TEST(ArgumentsOfFold, Layers) {
  Side side(Buffer::Pitch::packed);
  Arena arena;
  auto args = made<ringfold_fold_args>();
  const int32_t layers[1] = {0};
  args.layer_count = 1;
  EXPECT_TRUE(refused(ringfold_fold(&args), RINGFOLD_INVALID_ARGUMENT, "layers: expected 1 elements, found NULL"));
  args.layers = layers;
  args.layer_count = 0;
  EXPECT_TRUE(refused(ringfold_fold(&args), RINGFOLD_INVALID_ARGUMENT, "layer_count: expected 1 or more"));
}

template <class Args, class Call>
void refuses_empty(const Call& call, const std::string& required) {
  EXPECT_TRUE(refused(call(nullptr), RINGFOLD_INVALID_ARGUMENT, "args: expected a struct, found NULL"));
  Args args = {};
  EXPECT_TRUE(refused(call(&args), RINGFOLD_INVALID_ARGUMENT, "args.struct_size: "));
  args.struct_size = sizeof args;
  EXPECT_TRUE(refused(call(&args), RINGFOLD_INVALID_ARGUMENT, required));
  std::memset(&args, 0xFF, sizeof args);
  EXPECT_TRUE(refused(call(&args), RINGFOLD_INVALID_ARGUMENT, "args.struct_size: "));
}

TEST(EmptyStructs, AreRefusedByEveryCall) {
  refuses_empty<ringfold_verify_args>(ringfold_verify, "mixer: ");
  refuses_empty<ringfold_decode_args>(ringfold_decode, "mixer: ");
  refuses_empty<ringfold_fold_args>(ringfold_fold, "state: ");
  refuses_empty<ringfold_conv_args>(ringfold_conv_verify, "x: ");
  refuses_empty<ringfold_conv_args>(ringfold_conv_decode, "x: ");
  refuses_empty<ringfold_conv_commit_args>(ringfold_conv_commit, "conv_state: ");
  refuses_empty<ringfold_gated_norm_args>(ringfold_gated_norm, "x: ");
  refuses_empty<ringfold_layer_args>(ringfold_verify_layer, "mixer: ");
  refuses_empty<ringfold_layer_args>(ringfold_decode_layer, "mixer: ");
  auto args = made<ringfold_commit_args>();
  EXPECT_TRUE(refused(ringfold_commit(nullptr, &args), RINGFOLD_INVALID_ARGUMENT, "pool: expected a handle"));
}

TEST(EmptyStructs, AsTensors) {
  const DLTensor zeros = {};
  auto args = made<ringfold_gated_norm_args>();
  args.x = args.z = args.weight = args.out = &zeros;
  EXPECT_TRUE(refused(ringfold_gated_norm(&args), RINGFOLD_INVALID_ARGUMENT, "x: expected a dtype with lanes 1"));
  args.x = args.z = args.weight = args.out = nullptr;
  for (const int32_t gate : {-1, 2}) {
    args.gate = gate;
    EXPECT_TRUE(refused(ringfold_gated_norm(&args), RINGFOLD_INVALID_ARGUMENT, "gate: expected 0 .. 1"));
  }
  auto conv = made<ringfold_conv_args>();
  conv.activation = 2;
  EXPECT_TRUE(refused(ringfold_conv_verify(&conv), RINGFOLD_INVALID_ARGUMENT, "activation: expected 0 .. 1"));
  conv.activation = 0;
  conv.reserved = 1;
  EXPECT_TRUE(refused(ringfold_conv_verify(&conv), RINGFOLD_INVALID_ARGUMENT, "reserved: expected 0 .. 0"));
}

}  // namespace
}  // namespace ringfold::test
