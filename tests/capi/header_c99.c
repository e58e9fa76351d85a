/* The header from C99, and the layout of its structs: programs that are compiled depend on it. A line that fails here
 * means a new RINGFOLD_ABI_VERSION, unless a struct has grown at its end: then its last line alone is new. */
#include <ringfold/c_api.h>

/* The last field and the size: every struct ends with its last field. */
#define ENDS(type, field, offset, size) \
  typedef char type##_has_##field[offsetof(type, field) == (offset) && sizeof(type) == (size) ? 1 : -1]

#if UINTPTR_MAX == UINT64_MAX
ENDS(ringfold_slot, generation, 4, 8);
ENDS(ringfold_pool_config, rings, 136, 144);
ENDS(ringfold_pool_bytes, total, 48, 56);
ENDS(ringfold_mixer, scale, 44, 48);
ENDS(ringfold_window, ring_ids, 72, 80);
ENDS(ringfold_ring, a, 48, 56);
ENDS(ringfold_ring_owners, ring_of_slot, 16, 24);
ENDS(ringfold_history, reserved, 44, 48);
ENDS(ringfold_verify_args, owners, 120, 128);
ENDS(ringfold_decode_args, stream, 104, 112);
ENDS(ringfold_fold_args, owners, 136, 144);
ENDS(ringfold_commit_args, ring_ids, 72, 80);
ENDS(ringfold_conv_args, owners, 136, 144);
ENDS(ringfold_conv_commit_args, ring_ids, 80, 88);
ENDS(ringfold_gated_norm_args, stream, 56, 64);
ENDS(ringfold_layer_args, conv_owners, 200, 208);
ENDS(ringfold_desc, a_dtype, 164, 168);
ENDS(ringfold_footprint, step_snapshot, 80, 88);
ENDS(ringfold_plan_info, candidates, 60, 64);
ENDS(ringfold_candidate, reserved, 28, 32);
ENDS(ringfold_step_cost, reserved, 68, 72);
#endif

ringfold_verify_args ringfold_header_example(void);
ringfold_verify_args ringfold_header_example(void) {
  ringfold_verify_args args = {.struct_size = sizeof args}; /* as the header says; no warning */
  return args;
}
