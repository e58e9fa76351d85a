/* One step through the C ABI: verify a window of four tokens, keep three of them. A second slot takes the same three
 * tokens by plain decoding, one by one; outputs and states are then compared byte for byte. */
#include <ringfold/c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { H = 2, HV = 4, K = 64, V = 64, T = 4, KEPT = 3 };

static void require(ringfold_status status, const char* what) {
  if (status == RINGFOLD_OK) return;
  fprintf(stderr, "c_step: %s: %s: %s\n", what, ringfold_status_name((int32_t)status), ringfold_last_error());
  exit(1);
}

/* A row-major tensor in host memory, whose sizes are in `shape`. */
static DLTensor tensor(void* data, uint8_t code, int64_t* shape, int ndim) {
  DLTensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.device_type = kDLCPU;
  t.dtype.code = code;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.ndim = ndim;
  t.shape = shape;
  return t;
}

/* Numbers between -1 and 1. */
static void fill(float* values, size_t count, uint32_t seed) {
  size_t i;
  for (i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

static float q[T * H * K], k[T * H * K], v[T * HV * V], a[T * HV], b[T * HV], A_log[HV];
static float verified[T * HV * V], decoded[T * HV * V];

/* `tokens` tokens from `first` on, of the slot: their outputs go to `out`. */
static void run(ringfold_pool* pool, int decode, const ringfold_slot* slot, int first, int tokens, float* out) {
  int64_t key_shape[4] = {1, 0, H, K}, value_shape[4] = {1, 0, HV, V}, gate_shape[3] = {1, 0, HV};
  int64_t heads = HV, one = 1;
  int32_t id = slot->id;
  DLTensor tq, tk, tv, ta, tb, tout, tid, tA;
  ringfold_mixer mixer = {.struct_size = sizeof mixer};
  ringfold_window window = {.struct_size = sizeof window};
  key_shape[1] = value_shape[1] = gate_shape[1] = tokens;
  tq = tensor(q + first * H * K, kDLFloat, key_shape, 4);
  tk = tensor(k + first * H * K, kDLFloat, key_shape, 4);
  tv = tensor(v + first * HV * V, kDLFloat, value_shape, 4);
  ta = tensor(a + first * HV, kDLFloat, gate_shape, 3);
  tb = tensor(b + first * HV, kDLFloat, gate_shape, 3);
  tout = tensor(out + first * HV * V, kDLFloat, value_shape, 4);
  tid = tensor(&id, kDLInt, &one, 1);
  tA = tensor(A_log, kDLFloat, &heads, 1);
  mixer.A_log = &tA;
  window.q = &tq;
  window.k = &tk;
  window.v = &tv;
  window.a = &ta;
  window.b = &tb;
  window.slot_ids = &tid;
  if (decode) {
    ringfold_decode_args args = {.struct_size = sizeof args};
    args.mixer = &mixer;
    args.window = &window;
    args.pool = pool; /* state and cursors are those of layer 0 */
    args.out = &tout;
    require(ringfold_decode(&args), "decode");
  } else {
    ringfold_verify_args args = {.struct_size = sizeof args};
    args.mixer = &mixer;
    args.window = &window;
    args.pool = pool;
    args.out = &tout;
    require(ringfold_verify(&args), "verify");
  }
}

/* The first `accepted` tokens of the slot's window become part of its state; the others never happened. */
static void commit(ringfold_pool* pool, const ringfold_slot* slot, int32_t accepted) {
  int64_t one = 1;
  int32_t id = slot->id, generation = slot->generation;
  DLTensor tid = tensor(&id, kDLInt, &one, 1), tgeneration = tensor(&generation, kDLInt, &one, 1);
  DLTensor taccepted = tensor(&accepted, kDLInt, &one, 1);
  ringfold_commit_args args = {.struct_size = sizeof args};
  args.slot_ids = &tid;
  args.generations = &tgeneration;
  args.num_accepted = &taccepted;
  require(ringfold_commit(pool, &args), "commit");
}

int main(void) {
  ringfold_pool_config config = {.struct_size = sizeof config};
  ringfold_pool* pool = NULL;
  ringfold_slot slots[2];
  const DLTensor* state = NULL;
  const char* states;
  size_t state_bytes = (size_t)HV * V * K * sizeof(float), kept_bytes = (size_t)KEPT * HV * V * sizeof(float);
  int t, same;

  if (ringfold_abi_version() != RINGFOLD_ABI_VERSION) return 1;
  fill(q, T * H * K, 1);
  fill(k, T * H * K, 2);
  fill(v, T * HV * V, 3);
  fill(a, T * HV, 4);
  fill(b, T * HV, 5);
  config.slots = 2;
  config.H = H;
  config.HV = HV;
  config.K = K;
  config.V = V;
  config.ring_rows = T;
  require(ringfold_pool_create(&config, &pool), "pool_create");
  require(ringfold_pool_acquire(pool, slots, 2), "pool_acquire");

  run(pool, 0, &slots[0], 0, T, verified); /* outputs of all four tokens; the state is as it was */
  commit(pool, &slots[0], KEPT);           /* what the sampler decided */
  for (t = 0; t < KEPT; ++t) run(pool, 1, &slots[1], t, 1, decoded);

  require(ringfold_pool_tensor(pool, RINGFOLD_POOL_STATE, 0, &state), "pool_tensor");
  states = (const char*)state->data + state->byte_offset;
  same =
      memcmp(states + (size_t)slots[0].id * state_bytes, states + (size_t)slots[1].id * state_bytes, state_bytes) == 0;
  same = same && memcmp(verified, decoded, kept_bytes) == 0;
  printf("ringfold %s: %d of %d tokens kept; outputs and state %s plain decoding, byte for byte\n", ringfold_version(),
         KEPT, T, same ? "equal" : "DIFFER FROM");
  ringfold_pool_destroy(pool);
  return same ? 0 : 1;
}
