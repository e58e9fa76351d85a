#include "cuda/tuning.h"

#include <algorithm>

namespace ringfold::cuda {
namespace {

constexpr int kReservedSharedBytes = 1024;  // the driver's, for each block
constexpr int kRegistersPerSm = 65536;
constexpr int kRegistersPerThread = 128;

bool from_ring(const Desc& d) { return d.op == Op::fold; }

}  // namespace

int exact_shared_bytes(const Desc& d, int threads) {
  const int K = static_cast<int>(d.K), window = static_cast<int>(std::max<int64_t>(d.window, 1));
  const int state = threads / 2 * K * static_cast<int>(size_of(d.state_dtype));
  const int vectors = 2 * window * (d.kind == MixerKind::kda ? 4 : 3) * K * 4;
  const int scalars = 3 * window * 16;
  const int v = 2 * window * threads / 2 * static_cast<int>(size_of(d.act_dtype));
  const int raw = threads * 32;
  constexpr int kUnits = 3 * 48;
  return state + vectors + scalars + v + raw + kUnits;
}

ExactTiles exact_tiles(const Desc& d, const DeviceProperties& device) {
  const int64_t heads = d.layers * d.rows * d.HV;
  ExactTiles best;
  for (int threads : {256, 192, 128, 96, 64, 32}) {
    const int rows = threads / 2;
    if (d.V % rows != 0) continue;
    ExactTiles t;
    t.threads = threads;
    t.rows = rows;
    t.units = heads * (d.V / rows);
    t.shared_bytes = exact_shared_bytes(d, threads);
    if (t.shared_bytes > device.shared_bytes_per_block) continue;
    const int by_shared = device.shared_bytes_per_sm / (t.shared_bytes + kReservedSharedBytes);
    const int by_registers = kRegistersPerSm / (threads * kRegistersPerThread);
    t.blocks_per_sm = std::max(1, std::min(by_shared, by_registers));
    t.blocks = static_cast<int>(std::min<int64_t>(t.units, static_cast<int64_t>(device.sms) * t.blocks_per_sm));
    best = t;
    // Smaller tiles only while there are too few to give every multiprocessor two blocks' worth of work.
    if (t.units >= 2 * device.sms || threads <= 64) break;
  }
  return best;
}

}  // namespace ringfold::cuda
