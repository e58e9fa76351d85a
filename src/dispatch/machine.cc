// The cost model's numbers, all in one table, and other machines scaled from them.
#include <fmt/format.h>

#include "ringfold/choose.h"

#if defined(RINGFOLD_CUDA)
#include "cuda/common/device.h"
#endif

namespace ringfold {
namespace {

constexpr int kKiB = 1024;

// What can be known of a GPU without measuring it.
struct Gpu {
  std::string_view name;
  int sms, shared_bytes_per_sm, shared_bytes_per_block;
  double mhz;  // the highest clock
  double gbs;  // of the memory: clock * 2 * bus
};

// As the vendor's data sheets and programming guide list them.
constexpr Gpu kH200 = {"h200", 132, 228 * kKiB, 227 * kKiB, 1980, 4917};
constexpr Gpu kOthers[] = {{"h100", 132, 228 * kKiB, 227 * kKiB, 1980, 3352},
                           {"a100", 108, 164 * kKiB, 163 * kKiB, 1410, 2039},
                           {"rtx-pro-6000", 188, 100 * kKiB, 99 * kKiB, 2617, 1792}};

// Measured on an H200, 2026-11-30, `ringfold bench --device cuda` (verify, fold, step_on_commit) and whole flush cycles
// by graph replay, GDN 16/32 and KDA 32/32 heads of 128 x 128, bf16 activations. docs/notes/2026-11-30-choosing.md says
// which number comes from which rows, and how far off each row is. For 8192 heads of 128 x 128 (B = 256) on 132
// multiprocessors 1 ps is 1.017 us, so these can be read off from the benchmarks.
constexpr Machine kMeasured = {
    .name = kH200.name,
    .device = Device::cuda,
    .sms = kH200.sms,
    .shared_bytes_per_sm = kH200.shared_bytes_per_sm,
    .shared_bytes_per_block = kH200.shared_bytes_per_block,
    .read_gbs = 4200,
    .update_gbs = 3450,
    .launch_us = 3.0,
    .exact_call_us = 5.3,
    .exact_row_us = 0.6,
    .exact_ps = 45,
    .exact_row_ps = 29.7,
    .exact_store_ps = 44,
    .fold_ps = 57,
    .fold_row_ps = 20.8,
    .one_block = 1.23,
    .kda_rows = 1.33,
    .general = 10,
    .fast_call_us = {3.1, 3.5, 5.0},
    .fast_ps = {0, 8, 70},
    .kda_call_us = {4.2, 6.9, 14},  // 16 tokens at small batches: assumed, not measured
    .kda_ps = {24, 85, 330},
    .direct_us = {2.16, 0.14, 0.39, 0.163},
    .kda_direct_us = {2.08, 0.32, 0.78, 0.156},
    .ring_u_us = 1.3,
    .ring_u_ps = {12, 16, 60},
    .history_ps = {12, 30, 110},
    .kda_history_ps = {44, 108, 240},  // 16 tokens: assumed, not measured
};

// One thread of an EPYC with AVX2, from the README's table (two threads there); 16 threads of a Xeon with AVX-512 come
// out within 40 %.
constexpr double kThreadReadGbs = 8.5, kThreadUpdateGbs = 9.0;
constexpr int kDefaultThreads = 8;
constexpr Machine kCpu = {
    .name = "cpu",
    .device = Device::cpu,
    .sms = 1,
    .read_gbs = kThreadReadGbs,
    .update_gbs = kThreadUpdateGbs,
    .exact_call_us = 20,
    .exact_ps = 320,
    .exact_row_ps = 155,
    .exact_store_ps = 100,
    .fold_ps = 340,
    .fold_row_ps = 120,
    .kda_rows = 1.3,
};

Machine scaled(const Gpu& gpu) {
  Machine m = kMeasured;
  m.name = gpu.name;
  m.sms = gpu.sms;
  m.shared_bytes_per_sm = gpu.shared_bytes_per_sm;
  m.shared_bytes_per_block = gpu.shared_bytes_per_block;
  const double memory = gpu.gbs / kH200.gbs, slower = kH200.mhz / gpu.mhz;
  m.read_gbs *= memory, m.update_gbs *= memory;
  for (double* ps : {&m.exact_ps, &m.exact_row_ps, &m.exact_store_ps, &m.fold_ps, &m.fold_row_ps, &m.exact_row_us})
    *ps *= slower;
  for (auto* of : {&m.fast_ps, &m.kda_ps, &m.ring_u_ps, &m.history_ps, &m.kda_history_ps}) {
    for (double& ps : *of) ps *= slower;
  }
  for (auto* of : {&m.direct_us, &m.kda_direct_us}) {
    for (size_t i = 1; i < of->size(); ++i) (*of)[i] *= slower;
  }
  return m;
}

Machine with_threads(int threads) {
  Machine m = kCpu;
  m.sms = threads;
  m.read_gbs *= threads, m.update_gbs *= threads;
  return m;
}

#if defined(RINGFOLD_CUDA)
Machine of(const cuda::DeviceProperties& p) {
  // What the driver does not tell is taken to grow with the multiprocessors.
  const double gbs =
      p.memory_khz > 0 && p.memory_bits > 0 ? p.memory_khz * 2e-6 * p.memory_bits / 8 : kH200.gbs * p.sms / kH200.sms;
  return scaled({"this GPU", p.sms, p.shared_bytes_per_sm, p.shared_bytes_per_block,
                 p.clock_khz > 0 ? p.clock_khz * 1e-3 : kH200.mhz, gbs});
}
#endif

}  // namespace

std::optional<Machine> machine(std::string_view name) {
  if (name == kMeasured.name) return kMeasured;
  if (name == kCpu.name) return with_threads(kDefaultThreads);
  for (const Gpu& gpu : kOthers) {
    if (name == gpu.name) return scaled(gpu);
  }
  return {};
}

std::vector<std::string_view> machine_names() {
  std::vector<std::string_view> names = {kMeasured.name};
  for (const Gpu& gpu : kOthers) names.push_back(gpu.name);
  names.push_back(kCpu.name);
  return names;
}

Status machine(Device device, Machine* machine) {
  if (device == Device::cpu) {
    *machine = with_threads(num_threads());
    machine->name = "this CPU";
    machine->cpu_impl = implementations(Device::cpu).front();
    return {};
  }
#if defined(RINGFOLD_CUDA)
  if (const char* reason = cuda::unavailable()) return {Code::unsupported, fmt::format("device: cuda {}", reason)};
  *machine = of(cuda::current_device());
  return {};
#else
  return {Code::unsupported, "device: expected cpu in a build without CUDA, found cuda; or name a machine"};
#endif
}

std::string to_string(const Machine& m) {
  return fmt::format("{}: {}, {} {}, reads {:.0f} GB/s, updates {:.0f} GB/s", m.name, to_string(m.device), m.sms,
                     m.device == Device::cuda ? "multiprocessors" : "threads", m.read_gbs, m.update_gbs);
}

}  // namespace ringfold
