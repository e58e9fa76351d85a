// Choosing a fold policy: what a step is predicted to cost under each, on a device that need not be in this machine.
#pragma once

#include <array>
#include <optional>

#include "ringfold/registry.h"

namespace ringfold {

/// A device as the cost model sees it: plain numbers, measured or scaled from measured ones (machine()). Work is given
/// in picoseconds for each element of the state, times the number of multiprocessors (threads on a CPU), so `sms`
/// divides it. Arrays over tokens are for windows of up to 4, 8 and 16.
struct Machine {
  std::string_view name;
  Device device = Device::cuda;
  int sms = 1;                     ///< multiprocessors; CPU: threads
  int shared_bytes_per_sm = 0;     ///< CUDA; what decides how many blocks share a multiprocessor
  int shared_bytes_per_block = 0;  ///< CUDA, with opt-in
  double read_gbs = 0;             ///< bytes that are only read, and what little is written beside them; 10^9 B/s
  double update_gbs = 0;           ///< states that are read and written; both directions counted
  double launch_us = 0;            ///< a small kernel behind another: cursors, lists of due rows
  double exact_call_us = 0;        ///< of every call of exact numerics, before the first byte
  double exact_row_us = 0;         ///< for each token or replayed row: the latency of one after the other
  double exact_ps = 0;             ///< a verify: its state, whatever the tokens
  double exact_row_ps = 0;         ///< each token, and each row of a history
  double exact_store_ps = 0;       ///< a verify that stores the history
  double fold_ps = 0, fold_row_ps = 0;
  double one_block = 1;                      ///< factor where shared memory has room for one block instead of two
  double kda_rows = 1;                       ///< factor of every row with KDA: a decay for each channel
  double general = 1;                        ///< factor of all this in cuda.general
  std::array<double, 3> fast_call_us = {};   ///< of a call of fast numerics, by tokens; GDN
  std::array<double, 3> fast_ps = {};        ///< beside the bytes; GDN
  std::array<double, 3> kda_call_us = {};    ///< the same, KDA
  std::array<double, 3> kda_ps = {};         ///< the same, KDA
  std::array<double, 4> direct_us = {};      ///< of a call of cuda.direct: once, for each token, for each block that a
                                             ///< multiprocessor gets, for each of its tokens; GDN
  std::array<double, 4> kda_direct_us = {};  ///< the same, KDA
  double ring_u_us = 0;                      ///< what a ring with u adds to a fast call
  std::array<double, 3> ring_u_ps = {};      ///< and to its work, without a history
  std::array<double, 3> history_ps = {};     ///< and with one; GDN
  std::array<double, 3> kda_history_ps = {};
  std::string_view cpu_impl = "cpu.avx2";  ///< CPU: who serves
  bool operator==(const Machine&) const = default;
};

/// A machine by name: "h200" (where the numbers were measured); "h100", "a100", "rtx-pro-6000" (never measured: scaled
/// from the H200's by bandwidth, clock, multiprocessors and shared memory as the vendor lists them); "cpu" (a stated
/// default: 8 threads of a server with AVX2). Nothing for other names.
std::optional<Machine> machine(std::string_view name);
/// Those names.
std::vector<std::string_view> machine_names();
/// This machine's. CUDA: the current device's properties, scaled from the H200's. CPU: the default's threads, as many
/// as num_threads(). Error: unsupported (no CUDA in this build, no GPU).
Status machine(Device device, Machine* machine);

/// What one step costs in one layer: a verify of the whole batch and its share of the commit of all layers, the mean
/// over a flush cycle. The short conv is left out: it is the same under all policies.
struct StepCost {
  FoldPolicy policy = FoldPolicy::on_commit;
  int64_t ring_rows = 0;                ///< PoolConfig::ring_rows
  bool ring_u = false;                  ///< PoolConfig::ring_u
  Numerics numerics = Numerics::exact;  ///< of the verify
  double bytes = 0;                     ///< states, rings, inputs and outputs moved, read and written
  double us = 0;                        ///< caches cold, calls queued or in a graph
  int64_t ring_bytes = 0;               ///< held by the rings of one slot, all layers
  std::string_view verify_impl, fold_impl;
  bool operator==(const StepCost&) const = default;
};

/// The costs of every way to run a step of `verify` (op verify; shape, dtypes, rows, window, numerics, state_rounding
/// and alignments count, its fold policy does not): on_commit with as many ring rows as the window, on_next_verify with
/// twice as many, lazy with 2 * window up to kMaxWindow. With `fast` numerics also those of cuda.fast where it serves:
/// on_commit, and lazy with u in the ring. `accepted_per_step`, 0 .. window: the mean of num_accepted. `layers`:
/// of the pool, which one commit works on. Simplest and smallest rings first. Empty where `choose` has an error.
///
/// Pure: same arguments, same answer, on any machine. Windows of more than 16 tokens have on_commit alone.
std::vector<StepCost> step_costs(const Desc& verify, double accepted_per_step, int64_t layers, const Machine& machine);

/// The cheapest of step_costs whose rings take at most `most_ring_bytes` bytes of a slot (all layers; 0: no bound). Of
/// those within 1 % of the cheapest, closer than the model can tell, the first: the simplest, with the smallest ring.
/// Errors: invalid_argument (op, shape, rows, window, layers, accepted_per_step, device not the machine's),
/// unsupported (no ring is that small).
Status choose(const Desc& verify, double accepted_per_step, int64_t layers, const Machine& machine, StepCost* chosen,
              int64_t most_ring_bytes = 0);

/// "lazy, 16 rows with u, fast: 123456 B, 276.0 us (cuda.fast, cuda.exact)"
std::string to_string(const StepCost&);
/// "h200: cuda, 132 multiprocessors, reads 4200 GB/s, updates 3450 GB/s"
std::string to_string(const Machine&);

}  // namespace ringfold
