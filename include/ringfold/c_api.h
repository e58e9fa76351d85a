/* The C ABI: plain C99, the same from C++ and for foreign-function interfaces. docs/c-api.md has a complete program.
 *
 * Tensors are DLPack's, borrowed for the duration of a call and never copied: f32, f16, bf16 or i32 as the argument
 * asks, lanes 1, 1 to 6 dimensions, strides in elements (NULL: row-major), byte_offset honoured. Shapes are documented
 * here in short and in the C++ header of the same call in full. Devices: kDLCPU and kDLCUDAHost are host memory,
 * kDLCUDA and kDLCUDAManaged are memory of the CUDA device, every other one is refused. CUDA tensors of one call share
 * a device_id, which the caller makes current before the call. NULL stands for an optional tensor that is absent.
 *
 * Structs start with struct_size, which the caller sets to sizeof of the struct. Zero is the default of every other
 * field, so this is a complete initialisation:
 *     ringfold_verify_args args = {.struct_size = sizeof args};
 * Later versions add fields at the end only. A shorter struct is read as if the rest were zero; a longer one is
 * accepted if what this library does not know of it is zero, and refused otherwise. Where the library writes a struct,
 * it writes struct_size bytes, zeros for what it does not know. No struct has padding, at its end or elsewhere.
 * ringfold_slot is what it is and will not grow, since it stands in arrays.
 *
 * Enumerations are int32_t in structs; a value that is none of them is refused.
 *
 * Every function that can fail returns a ringfold_status, and leaves its results alone if that is not RINGFOLD_OK,
 * unless it says otherwise. No exception leaves the library, which neither prints nor exits. Compute calls and all
 * calls on different pools may run in several threads; calls that share a pool, or tensors that one of them writes,
 * are ordered by the caller. Compute calls and calls on slots allocate nothing when they succeed. */
#pragma once

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The number in the shared library's name (libringfold.so.1). It changes when a program has to be compiled anew. */
#define RINGFOLD_ABI_VERSION 1

uint32_t ringfold_abi_version(void); /* RINGFOLD_ABI_VERSION of the library that runs */
const char* ringfold_version(void);  /* of the library, for example "0.1.0" */

/* ---------------------------------------------------------------------------------------------------------------------
 * Status */

/* What became of a call. Anything but RINGFOLD_OK: no byte of a caller's tensor was changed (after INTERNAL of a call
 * on CUDA it is open how far the call came). */
typedef enum ringfold_status {
  RINGFOLD_OK = 0,
  RINGFOLD_INVALID_ARGUMENT = 1, /* the message names the argument, what was expected, what was found */
  RINGFOLD_UNSUPPORTED = 2,      /* valid, but nothing on this machine or in this build can do it */
  RINGFOLD_OUT_OF_MEMORY = 3,    /* memory or pool slots are exhausted */
  RINGFOLD_NOT_FOUND = 4,        /* unknown name of an implementation */
  RINGFOLD_INTERNAL = 5          /* a bug in ringfold, or a CUDA error */
} ringfold_status;

/* What became of a row: the values of row_status tensors. */
typedef enum ringfold_row_status {
  RINGFOLD_ROW_DONE = 0,
  RINGFOLD_ROW_NULL = 1,                /* negative slot id: skipped, outputs are zeros */
  RINGFOLD_ROW_SLOT_OUT_OF_RANGE = 2,   /* slot id >= number of slots */
  RINGFOLD_ROW_DUPLICATE_SLOT = 3,      /* the slot is written by more than one row of the call */
  RINGFOLD_ROW_ACCEPT_OUT_OF_RANGE = 4, /* num_accepted < 0, or more than the pending window holds */
  RINGFOLD_ROW_NO_PENDING_WINDOW = 5,   /* commit without a verify before it, or a second commit of one window */
  RINGFOLD_ROW_STALE_GENERATION = 6,    /* the slot was released since the handle was taken */
  RINGFOLD_ROW_WINDOW_TOO_LONG = 7,     /* more tokens than the ring has rows */
  RINGFOLD_ROW_TRACK_OUT_OF_RANGE = 8,  /* track_slots past the pool, or track_steps not among the accepted rows */
  RINGFOLD_ROW_SLOT_NOT_ACQUIRED = 9,   /* the slot is free */
  RINGFOLD_ROW_BAD_WINDOW_BOUNDS = 10,  /* cu_seqlens not ascending, or past the number of tokens */
  RINGFOLD_ROW_RING_OUT_OF_RANGE = 11,  /* ring id negative, or >= number of rings */
  RINGFOLD_ROW_DUPLICATE_RING = 12,     /* the ring is written by more than one row of the call */
  RINGFOLD_ROW_WINDOW_NOT_IN_RING = 13  /* the slot's window is in another ring, or was overwritten by another slot's */
} ringfold_row_status;

/* Message of the last call of this thread that returned a status: "" after RINGFOLD_OK, never NULL. It is valid until
 * the thread's next such call, and cut at 2 KiB. */
const char* ringfold_last_error(void);

/* Stable lower-case names, for example "invalid_argument", "no_pending_window"; "unknown" for other numbers. */
const char* ringfold_status_name(int32_t status);
const char* ringfold_row_status_name(int32_t row_status);

/* ---------------------------------------------------------------------------------------------------------------------
 * Enumerations of fields; meanings in ringfold/types.h */

enum { RINGFOLD_F32 = 0, RINGFOLD_BF16 = 1, RINGFOLD_F16 = 2, RINGFOLD_I32 = 3 }; /* dtype */
enum { RINGFOLD_DEVICE_CPU = 0, RINGFOLD_DEVICE_CUDA = 1 };                       /* device */
enum { RINGFOLD_GDN = 0, RINGFOLD_KDA = 1 };                                      /* kind of the mixer */
enum { RINGFOLD_EXACT = 0, RINGFOLD_FAST = 1 };                                   /* numerics */
enum { RINGFOLD_PER_COMMIT = 0, RINGFOLD_PER_TOKEN = 1 };                         /* state_rounding */
enum { RINGFOLD_ON_COMMIT = 0, RINGFOLD_ON_NEXT_VERIFY = 1, RINGFOLD_LAZY = 2 };  /* fold policy */
enum { RINGFOLD_QK_L2NORM = 0, RINGFOLD_QK_AS_GIVEN = 1 };                        /* qk_norm */
enum { RINGFOLD_CONV_SILU = 0, RINGFOLD_CONV_LINEAR = 1 };                        /* activation of the short conv */
enum { RINGFOLD_GATE_SILU = 0, RINGFOLD_GATE_SIGMOID = 1 };                       /* gate of the gated norm */
enum {                                                                            /* op */
       RINGFOLD_OP_VERIFY = 0,
       RINGFOLD_OP_DECODE = 1,
       RINGFOLD_OP_FOLD = 2,
       RINGFOLD_OP_CONV_VERIFY = 3,
       RINGFOLD_OP_CONV_DECODE = 4,
       RINGFOLD_OP_CONV_COMMIT = 5,
       RINGFOLD_OP_GATED_NORM = 6,
       RINGFOLD_OP_VERIFY_LAYER = 7,
       RINGFOLD_OP_DECODE_LAYER = 8
};

/* ---------------------------------------------------------------------------------------------------------------------
 * Pool (ringfold/pool.h): states, rings, conv windows and cursors of all recurrent layers of one model */

typedef struct ringfold_pool ringfold_pool; /* opaque; ringfold_pool_create .. ringfold_pool_destroy */

typedef struct ringfold_pool_config {
  size_t struct_size;
  int64_t layers; /* 0: 1 */
  int64_t slots;
  int64_t H, HV, K, V;
  int64_t ring_rows;      /* 1 .. 32 */
  int64_t max_window;     /* 0: ring_rows with on_commit, half of them otherwise */
  int64_t conv_channels;  /* C; 0: no short conv */
  int64_t conv_width;     /* W, 2 .. 4; 0: 4 */
  int32_t kind;           /* RINGFOLD_GDN or RINGFOLD_KDA */
  int32_t state_dtype;    /* RINGFOLD_F32, .. */
  int32_t act_dtype;      /* of ring k and v, and of the conv */
  int32_t qk_norm;        /* RINGFOLD_QK_L2NORM, .. */
  int32_t state_rounding; /* RINGFOLD_PER_COMMIT, .. */
  int32_t fold_policy;    /* RINGFOLD_ON_COMMIT, .. */
  int32_t device;         /* RINGFOLD_DEVICE_CPU or _CUDA: the CUDA device that is current in every call */
  int32_t device_id;      /* CUDA: its ordinal, which the pool's tensors report and those of calls on it must have */
  int32_t ring_u;         /* RINGFOLD_LAZY only: 1 if the ring keeps u, for verify with RINGFOLD_FAST numerics */
  int32_t reserved;       /* 0 */
  int32_t ring_a;         /* RINGFOLD_KDA only: 1 if the ring keeps a in place of g; ringfold_pool_set_mixers then */
  int32_t a_dtype;        /* of a with ring_a, that of window.a: RINGFOLD_F32, .. ; 0 without */
  int64_t rings;          /* 0: one for each slot; else that many, which calls name by ring_ids; ON_COMMIT only */
} ringfold_pool_config;

typedef struct ringfold_slot { /* handle of an acquired slot */
  int32_t id;
  int32_t generation; /* changes with every acquire */
} ringfold_slot;

typedef struct ringfold_pool_bytes { /* exact bytes of a pool's buffers */
  size_t struct_size;
  uint64_t state, ring, conv, cursors, scratch, total;
} ringfold_pool_bytes;

/* What a pool of this description allocates; asks no device. */
ringfold_status ringfold_pool_bytes_of(const ringfold_pool_config* config, ringfold_pool_bytes* bytes);

/* Errors: invalid_argument, unsupported (a device that is not there), out_of_memory; *pool is NULL then. */
ringfold_status ringfold_pool_create(const ringfold_pool_config* config, ringfold_pool** pool);
void ringfold_pool_destroy(ringfold_pool* pool); /* NULL: nothing happens */

ringfold_status ringfold_pool_get_config(const ringfold_pool* pool, ringfold_pool_config* config);
ringfold_status ringfold_pool_get_bytes(const ringfold_pool* pool, ringfold_pool_bytes* bytes);
ringfold_status ringfold_pool_free_slots(const ringfold_pool* pool, int64_t* count);
/* cudaStream_t of all pool calls that move or read slots; NULL, as at first: the default stream. */
ringfold_status ringfold_pool_set_stream(ringfold_pool* pool, void* stream);

/* All of these slots or none. acquire: zeroed slots with new generations; out_of_memory where fewer are free. release:
 * handles and pending windows are void. reset: as if acquired anew, under the same handle. settle: folds the history
 * into the checkpoints, for fold policies other than on_commit. */
ringfold_status ringfold_pool_acquire(ringfold_pool* pool, ringfold_slot* slots, size_t count);
ringfold_status ringfold_pool_release(ringfold_pool* pool, const ringfold_slot* slots, size_t count);
ringfold_status ringfold_pool_reset(ringfold_pool* pool, const ringfold_slot* slots, size_t count);
ringfold_status ringfold_pool_settle(ringfold_pool* pool, const ringfold_slot* slots, size_t count);

/* Everything of src[i] to dst[i], all at once (chains and cycles included). No dst twice. */
ringfold_status ringfold_pool_copy(ringfold_pool* pool, const ringfold_slot* src, const ringfold_slot* dst,
                                   size_t count);

/* The logical state of `src` after `rows` rows of its pending window, to `dst`. `src` is not disturbed. */
ringfold_status ringfold_pool_materialise(ringfold_pool* pool, ringfold_slot src, int32_t rows, ringfold_slot dst);

/* A slot as `size` bytes of host memory, which must be export_size for export. Import checks them all before it changes
 * the acquired slot. */
ringfold_status ringfold_pool_export_size(const ringfold_pool* pool, size_t* size);
ringfold_status ringfold_pool_export_slot(const ringfold_pool* pool, ringfold_slot slot, void* bytes, size_t size);
ringfold_status ringfold_pool_import_slot(ringfold_pool* pool, const void* bytes, size_t size, ringfold_slot slot);

enum {                                 /* which tensor of a pool; shapes are those of one layer */
       RINGFOLD_POOL_STATE = 0,        /* state dtype [slots,HV,V,K]; with a history: checkpoints */
       RINGFOLD_POOL_RING_K = 1,       /* act dtype [slots,rows,H,K] */
       RINGFOLD_POOL_RING_V = 2,       /* act dtype [slots,rows,HV,V] */
       RINGFOLD_POOL_RING_G = 3,       /* f32 [slots,rows,HV] (GDN) or [slots,rows,HV,K] (KDA); none with ring_a */
       RINGFOLD_POOL_RING_BETA = 4,    /* f32 [slots,rows,HV] */
       RINGFOLD_POOL_PENDING = 5,      /* i32 [slots] */
       RINGFOLD_POOL_HISTORY_BASE = 6, /* i32 [slots]; none with on_commit, like the next two */
       RINGFOLD_POOL_HISTORY_LIVE = 7,
       RINGFOLD_POOL_HISTORY_CUTS = 8,
       RINGFOLD_POOL_CONV_STATE = 9,    /* act dtype [slots,C,W-1]; none without a conv, like the next two */
       RINGFOLD_POOL_CONV_RING = 10,    /* act dtype [slots,max_window,C] */
       RINGFOLD_POOL_CONV_PENDING = 11, /* i32 [slots] */
       RINGFOLD_POOL_GENERATIONS = 12,  /* i32 [slots] of all layers: layer RINGFOLD_ALL_LAYERS only */
       RINGFOLD_POOL_RING_U = 13,       /* f32 [slots,rows,HV,V]; none without ring_u */
       RINGFOLD_POOL_RING_A = 14,       /* a_dtype [slots,rows,HV,K]; none without ring_a */
       /* with `rings`, where [rings,..] takes the place of [slots,..] in all that is in a ring: */
       RINGFOLD_POOL_SLOT_OF_RING = 15,      /* i32 [rings] */
       RINGFOLD_POOL_RING_OF_SLOT = 16,      /* i32 [slots] */
       RINGFOLD_POOL_CONV_SLOT_OF_RING = 17, /* those of the conv */
       RINGFOLD_POOL_CONV_RING_OF_SLOT = 18
};
#define RINGFOLD_ALL_LAYERS (-1) /* a leading [layers] */

/* *tensor is a view into the pool, owned by it and valid until it is destroyed; NULL where the pool has none. */
ringfold_status ringfold_pool_tensor(const ringfold_pool* pool, int32_t which, int64_t layer, const DLTensor** tensor);

/* ---------------------------------------------------------------------------------------------------------------------
 * Compute calls. `impl` forces an implementation by name (NULL or "": the best that serves); `stream` is the
 * cudaStream_t of calls on CUDA tensors (NULL: the default stream). row_status: optional, i32 [B], written; without it
 * a refused row fails a call on the CPU, and is passed over on CUDA. */

typedef struct ringfold_mixer { /* parameters of one gated delta-rule layer (ringfold/mixer.h) */
  size_t struct_size;
  int32_t kind;             /* RINGFOLD_GDN, .. ; of a call on a pool: the pool's, whatever this says */
  int32_t qk_norm;          /* RINGFOLD_QK_L2NORM, .. ; likewise */
  const DLTensor* A_log;    /* f32 [HV]; of a call on a pool that was given mixers: the pool's, like all of the gate */
  const DLTensor* dt_bias;  /* optional; f32 [HV] (GDN) or [HV,K] (KDA) */
  float softplus_beta;      /* 0: 1 */
  float softplus_threshold; /* 0: 20 */
  float lower_bound;        /* 0: none; KDA's safe gate: negative */
  float scale;              /* of q; 0: K^-0.5 */
} ringfold_mixer;

typedef struct ringfold_window { /* inputs of one step of one layer (ringfold/verify.h) */
  size_t struct_size;
  const DLTensor* q;          /* [B,T,H,K], or [tokens,H,K] with cu_seqlens */
  const DLTensor* k;          /* like q */
  const DLTensor* v;          /* [B,T,HV,V] or [tokens,HV,V]; q, k, v have one float dtype */
  const DLTensor* a;          /* any float dtype [B,T,HV] (KDA: [B,T,HV,K]) or [tokens,..] */
  const DLTensor* b;          /* any float dtype [B,T,HV] or [tokens,HV] */
  const DLTensor* slot_ids;   /* i32 [B]; negative: null row */
  const DLTensor* cu_seqlens; /* optional; i32 [B+1]: ragged windows */
  int64_t max_window;         /* ragged only: no row is longer; 0: not known */
  const DLTensor* ring_ids;   /* optional; i32 [B]: rings keyed by request row; verify and verify_layer */
} ringfold_window;

typedef struct ringfold_ring { /* all but u (ringfold/mixer.h); a leading [layers] where the state has it */
  size_t struct_size;
  const DLTensor *k, *v, *g, *beta;
  const DLTensor* u; /* optional: f32 [slots,rows,HV,V], for RINGFOLD_LAZY and RINGFOLD_FAST numerics */
  const DLTensor* a; /* KDA, in place of g: [slots,rows,HV,K] in the dtype of window.a */
} ringfold_ring;

typedef struct ringfold_ring_owners { /* rings keyed by request row: whose window lies where (ringfold/mixer.h) */
  size_t struct_size;
  const DLTensor* slot_of_ring; /* i32 [rings], or [layers,rings] */
  const DLTensor* ring_of_slot; /* i32 [slots], or [layers,slots] */
} ringfold_ring_owners;

/* The gates of all layers of a pool with ring_a, one mixer for each layer, copied (ringfold/pool.h). Before the first
 * commit, settle or materialise. */
ringfold_status ringfold_pool_set_mixers(ringfold_pool* pool, const ringfold_mixer* mixers, size_t count);

typedef struct ringfold_history { /* of fold policies other than on_commit (ringfold/mixer.h) */
  size_t struct_size;
  const DLTensor *base, *live, *cuts; /* i32 [slots], or [layers,slots] */
  int64_t max_window;
  int32_t policy;   /* RINGFOLD_ON_NEXT_VERIFY or RINGFOLD_LAZY */
  int32_t reserved; /* 0 */
} ringfold_history;

/* verify: outputs of a window of draft tokens, with the logical state left as it was. With `snapshots` it also writes
 * the state after every token. Either `pool` and `layer`, or tensors; with a pool state, ring, pending and history are
 * the pool's and must be NULL, and state_rounding is the pool's too. */
typedef struct ringfold_verify_args {
  size_t struct_size;
  const ringfold_mixer* mixer;
  const ringfold_window* window;
  const ringfold_pool* pool; /* its tensors are read and written */
  int64_t layer;
  const DLTensor* state;           /* float [slots,HV,V,K] */
  const ringfold_ring* ring;       /* optional; rows of the window are written */
  const DLTensor* pending;         /* optional; i32 [slots] */
  const ringfold_history* history; /* optional */
  const DLTensor* out;             /* like v, written; dtype of v, or f32 */
  const DLTensor* snapshots;       /* optional; state dtype [B,T,HV,V,K] or [tokens,HV,V,K], written */
  const DLTensor* row_status;
  int32_t numerics;       /* RINGFOLD_EXACT, .. */
  int32_t state_rounding; /* RINGFOLD_PER_COMMIT, .. */
  const char* impl;
  void* stream;
  const ringfold_ring_owners* owners; /* with pending and window->ring_ids; of a pool: the pool's */
} ringfold_verify_args;
ringfold_status ringfold_verify(const ringfold_verify_args* args);

/* decode: tokens that are certain; outputs, and the state updated at once. Fields as in verify. */
typedef struct ringfold_decode_args {
  size_t struct_size;
  const ringfold_mixer* mixer;
  const ringfold_window* window;
  const ringfold_pool* pool;
  int64_t layer;
  const DLTensor* state;
  const ringfold_ring* ring; /* with a history only */
  const DLTensor* pending;
  const ringfold_history* history;
  const DLTensor* out;
  const DLTensor* row_status;
  int32_t numerics;
  int32_t state_rounding;
  const char* impl;
  void* stream;
} ringfold_decode_args;
ringfold_status ringfold_decode(const ringfold_decode_args* args);

/* fold: replay accepted ring rows into the checkpoint, of one layer or of many. */
typedef struct ringfold_fold_args {
  size_t struct_size;
  const DLTensor* state; /* [slots,HV,V,K] or [layers,slots,HV,V,K] */
  const ringfold_ring* ring;
  const int32_t* layers; /* which layers, none twice; NULL: all */
  size_t layer_count;
  const DLTensor* slot_ids;        /* i32 [B] */
  const DLTensor* num_accepted;    /* i32 [B] */
  const DLTensor* track_slots;     /* optional; i32 [B]: slot that gets a snapshot; negative: none */
  const DLTensor* track_steps;     /* with track_slots; i32 [B]: row after which it is taken */
  const DLTensor* pending;         /* optional; i32 [slots] or [layers,slots] */
  const ringfold_history* history; /* optional */
  const DLTensor* row_status;
  int32_t qk_norm; /* as in the verify that wrote the ring */
  int32_t state_rounding;
  const char* impl;
  void* stream;
  const ringfold_mixer* mixer; /* with ring->a: the gate of that verify; A_log [layers,HV] and dt_bias [layers,HV,K]
                                * where the state has layers; its qk_norm and scale are not read */
  const DLTensor* ring_ids;    /* optional; i32 [B]: rings keyed by request row */
  const ringfold_ring_owners* owners; /* with pending and ring_ids */
} ringfold_fold_args;
ringfold_status ringfold_fold(const ringfold_fold_args* args);

/* commit: the end of a step. All layers, conv windows, snapshots and cursors of each row together, or none of them. */
typedef struct ringfold_commit_args {
  size_t struct_size;
  const DLTensor* slot_ids;     /* i32 [B] */
  const DLTensor* generations;  /* optional; i32 [B]: of the handles */
  const DLTensor* num_accepted; /* i32 [B] */
  const DLTensor* track_slots;  /* optional, as in fold */
  const DLTensor* track_steps;
  const DLTensor* row_status;
  const char* impl;
  void* stream;
  const DLTensor* ring_ids; /* i32 [B]: those of the verify; for pools with `rings`, and only for them */
} ringfold_commit_args;
ringfold_status ringfold_commit(ringfold_pool* pool, const ringfold_commit_args* args);

/* The causal short convolution (ringfold/conv.h). conv_verify leaves conv_state as it was and records the inputs in
 * conv_ring; conv_decode moves conv_state on. With a pool conv_state, conv_ring and pending are the pool's. */
typedef struct ringfold_conv_args {
  size_t struct_size;
  const ringfold_pool* pool;
  int64_t layer;
  const DLTensor* x;          /* [B,T,C], or [tokens,C] with cu_seqlens */
  const DLTensor* weight;     /* float [C,W] */
  const DLTensor* bias;       /* optional; float [C] */
  const DLTensor* conv_state; /* [slots,C,W-1] */
  const DLTensor* conv_ring;  /* optional; [slots,rows,C] */
  const DLTensor* out;        /* like x, written */
  const DLTensor* slot_ids;   /* i32 [B] */
  const DLTensor* cu_seqlens; /* optional; i32 [B+1] */
  const DLTensor* pending;    /* optional; i32 [slots] */
  const DLTensor* row_status;
  int32_t activation; /* RINGFOLD_CONV_SILU, .. */
  int32_t reserved;   /* 0 */
  const char* impl;
  void* stream;
  const DLTensor* ring_ids;           /* optional; i32 [B]: rings keyed by request row; conv_verify */
  const ringfold_ring_owners* owners; /* with pending and ring_ids; of a pool: the pool's */
} ringfold_conv_args;
ringfold_status ringfold_conv_verify(const ringfold_conv_args* args);
ringfold_status ringfold_conv_decode(const ringfold_conv_args* args);

/* The new conv windows after the accepted rows. ringfold_commit does this for a pool's slots. */
typedef struct ringfold_conv_commit_args {
  size_t struct_size;
  const DLTensor* conv_state; /* [slots,C,W-1] or [layers,slots,C,W-1] */
  const DLTensor* conv_ring;  /* [slots,rows,C] or [layers,slots,rows,C] */
  const DLTensor* slot_ids;
  const DLTensor* num_accepted;
  const DLTensor* track_slots;
  const DLTensor* track_steps;
  const DLTensor* row_status;
  const char* impl;
  void* stream;
  const DLTensor* ring_ids; /* optional; i32 [B]: rings keyed by request row */
} ringfold_conv_commit_args;
ringfold_status ringfold_conv_commit(const ringfold_conv_commit_args* args);

/* Gated RMSNorm on the mixer's output (ringfold/gated_norm.h). */
typedef struct ringfold_gated_norm_args {
  size_t struct_size;
  const DLTensor* x;      /* float [tokens,HV,V] */
  const DLTensor* z;      /* float [tokens,HV,V] */
  const DLTensor* weight; /* float [V] */
  const DLTensor* out;    /* float [tokens,HV,V], written; may be x */
  int32_t gate;           /* RINGFOLD_GATE_SILU, .. */
  float eps;              /* 0: 1e-6 */
  const char* impl;
  void* stream;
} ringfold_gated_norm_args;
ringfold_status ringfold_gated_norm(const ringfold_gated_norm_args* args);

/* A whole layer between its projections (ringfold/layer.h): bit for bit conv_verify, verify and gated_norm (or
 * conv_decode, decode and gated_norm), with what lies between them in no memory of the caller. C = 2*H*K + HV*V, the
 * channels of q, k and v one after the other. The commit that follows is that of the calls one by one. Either `pool`
 * and `layer`, or tensors, as in verify; the pool has a short conv then, and the conv_ tensors but weight and bias are
 * its own. */
typedef struct ringfold_layer_args {
  size_t struct_size;
  const ringfold_mixer* mixer;
  const ringfold_window*
      window; /* a, b, slot_ids, cu_seqlens, max_window; without qkv also q, k and v before the conv */
  const ringfold_pool* pool;
  int64_t layer;
  const DLTensor* qkv;          /* projections before the conv: [B,T,C], or [tokens,C]; or q, k, v of the window */
  const DLTensor* conv_weight;  /* float [C,W] */
  const DLTensor* conv_bias;    /* optional; float [C] */
  const DLTensor* conv_state;   /* [slots,C,W-1] in the dtype of the projections */
  const DLTensor* conv_ring;    /* [slots,rows,C] likewise; with `ring`, or none; decode_layer ignores both */
  const DLTensor* conv_pending; /* i32 [slots]; with `pending`, or none */
  const DLTensor* state;        /* these four as in verify and decode */
  const ringfold_ring* ring;    /* decode_layer: with a history only */
  const DLTensor* pending;
  const ringfold_history* history;
  const DLTensor* z;           /* float [B,T,HV,V] or [tokens,HV,V]: the norm's gate before its activation */
  const DLTensor* norm_weight; /* float [V] */
  const DLTensor* out;         /* float, shaped like z, written; overlaps no other tensor */
  const DLTensor* row_status;
  int32_t conv_activation; /* RINGFOLD_CONV_SILU, .. */
  int32_t norm_gate;       /* RINGFOLD_GATE_SILU, .. */
  float norm_eps;          /* 0: 1e-6 */
  int32_t mixer_out;       /* what the mixer's output is rounded to: RINGFOLD_F32, or the dtype of the projections */
  int32_t numerics;
  int32_t state_rounding;
  const char* impl;
  void* stream;
  const ringfold_ring_owners* owners;      /* with pending and window->ring_ids; of a pool: the pool's */
  const ringfold_ring_owners* conv_owners; /* with conv_pending and window->ring_ids; likewise */
} ringfold_layer_args;
ringfold_status ringfold_verify_layer(const ringfold_layer_args* args);
ringfold_status ringfold_decode_layer(const ringfold_layer_args* args);

/* ---------------------------------------------------------------------------------------------------------------------
 * What can serve a request, why not, and how it would be run (ringfold/registry.h) */

/* *name is that of the index-th implementation that this machine can run on `device`, best first; NULL past the last.
 */
ringfold_status ringfold_implementation(int32_t device, size_t index, const char** name);

/* Threads of CPU calls: all cores, unless set (0: all cores again). Results do not depend on it. At most 1024. */
int32_t ringfold_num_threads(void);
ringfold_status ringfold_set_num_threads(int32_t threads);

typedef struct ringfold_desc { /* what is asked, without tensors */
  size_t struct_size;
  int32_t op;     /* RINGFOLD_OP_VERIFY, .. */
  int32_t device; /* RINGFOLD_DEVICE_CPU, .. */
  int32_t kind;   /* the following as in the calls */
  int32_t numerics;
  int32_t state_rounding;
  int32_t fold_policy;
  int32_t state_dtype;
  int32_t act_dtype;
  int64_t H, HV, K, V;
  int64_t rows;            /* B; 0: 1 */
  int64_t window;          /* T, the largest of the batch; 0: 1 */
  int64_t layers;          /* fold, conv_commit; 0: 1 */
  int64_t channels;        /* C of the short conv */
  int64_t conv_width;      /* W; 0: 4 */
  int64_t state_alignment; /* bytes, a power of two up to 16; 0: 16 */
  int64_t input_alignment; /* the same for q, k, v and the ring's k, v */
  int64_t widest_stride;   /* bytes between neighbouring heads or tokens */
  int64_t history_rows;    /* rows of a ring that holds a history */
  int32_t spaced_rows;     /* 1: the rows of V of a state have gaps between them */
  int32_t snapshots;       /* 1: verify writes snapshots */
  int32_t threads;         /* 0: ringfold_num_threads() */
  int32_t ring_u;          /* 1: the ring keeps u */
  int32_t ring_a;          /* 1: the ring keeps a, in a_dtype, in place of g */
  int32_t a_dtype;
} ringfold_desc;

typedef struct ringfold_footprint { /* bytes of one request and step, for one layer */
  size_t struct_size;
  int64_t state_bytes;
  int64_t ring_row_bytes;
  int64_t ring_bytes; /* `window` rows */
  int64_t conv_state_bytes;
  int64_t conv_ring_row_bytes;
  int64_t snapshot_bytes; /* the alternative: a state per draft token */
  int64_t step_on_commit; /* bytes of state and ring moved per step */
  int64_t step_on_next_verify;
  int64_t step_lazy;
  int64_t step_snapshot;
} ringfold_footprint;

typedef struct ringfold_plan ringfold_plan; /* opaque; ringfold_explain .. ringfold_plan_destroy */

typedef struct ringfold_plan_info {
  size_t struct_size;
  const char* impl; /* the chosen implementation; NULL where none serves, and the numbers are 0 then */
  int64_t tasks;
  int64_t v_parts;
  int64_t bytes_read;
  int64_t bytes_written;
  int64_t fmas;
  int32_t threads;
  int32_t candidates; /* how many there are */
} ringfold_plan_info;

typedef struct ringfold_candidate {
  size_t struct_size;
  const char* impl;
  const char* reason; /* why not; "chosen", "serves" or "forced" otherwise */
  int32_t serves;     /* 0 or 1 */
  int32_t reserved;
} ringfold_candidate;

/* Every candidate with its reason, and the plan. RINGFOLD_UNSUPPORTED and RINGFOLD_NOT_FOUND give a plan too, which
 * says why; after other errors *plan is NULL. Strings that the getters give are owned by the plan. */
ringfold_status ringfold_explain(const ringfold_desc* desc, const char* impl, ringfold_plan** plan);
void ringfold_plan_destroy(ringfold_plan* plan); /* NULL: nothing happens */
ringfold_status ringfold_plan_get_info(const ringfold_plan* plan, ringfold_plan_info* info);
ringfold_status ringfold_plan_get_candidate(const ringfold_plan* plan, size_t index, ringfold_candidate* candidate);
ringfold_status ringfold_plan_get_footprint(const ringfold_plan* plan, ringfold_footprint* footprint);
ringfold_status ringfold_plan_get_text(const ringfold_plan* plan, const char** text); /* for people, several lines */

/* Footprint of a layer; accepted_per_step (0: 3) is the mean number of tokens kept, which `lazy` depends on. */
ringfold_status ringfold_footprint_of(const ringfold_desc* desc, double accepted_per_step,
                                      ringfold_footprint* footprint);

/* What one step (a verify of the whole batch, and its share of the commit of all layers) is predicted to cost in one
 * layer, in one of the ways to run it (ringfold/choose.h). */
typedef struct ringfold_step_cost {
  size_t struct_size;
  int32_t fold_policy; /* RINGFOLD_ON_COMMIT, .. : fields of ringfold_pool_config, like the next two */
  int32_t ring_u;      /* 0 or 1 */
  int64_t ring_rows;
  int64_t ring_bytes; /* held by the rings of one slot, all layers */
  double bytes;       /* moved: states, rings, inputs and outputs, read and written */
  double us;
  const char* verify_impl; /* these two live as long as the process */
  const char* fold_impl;
  int32_t numerics; /* of the verify */
  int32_t reserved;
} ringfold_step_cost;

/* *name is that of the index-th machine that the cost model knows, for example "h200"; NULL past the last. */
ringfold_status ringfold_machine(size_t index, const char** name);

/* The cost of the index-th way to run a step of `desc` (op verify; its fold policy does not count); *count is how many
 * there are, simplest and smallest rings first. accepted_per_step, 0 .. window: the mean of num_accepted. layers: of
 * the pool. machine: a name, or NULL for what this machine has of desc's device. Errors: invalid_argument, not_found (a
 * machine that nobody knows), unsupported (machine NULL, and no such device here). */
ringfold_status ringfold_step_cost_of(const ringfold_desc* desc, double accepted_per_step, int64_t layers,
                                      const char* machine, size_t index, ringfold_step_cost* cost, size_t* count);

/* The cheapest of these whose rings take at most most_ring_bytes of a slot (0: no bound), or a simpler one within 1 %
 * of it. Errors as before; unsupported also where no ring is that small. */
ringfold_status ringfold_choose(const ringfold_desc* desc, double accepted_per_step, int64_t layers,
                                const char* machine, int64_t most_ring_bytes, ringfold_step_cost* cost);

#ifdef __cplusplus
}
#endif
