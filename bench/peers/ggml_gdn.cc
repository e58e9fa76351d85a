// Times ggml's gated delta net on the CPU: ggml_gdn KIND H HV T B PLANES THREADS SETS REPEATS INPUT OUTPUT
//
// INPUT has fp32 q, k [B,T,H,S], v [B,T,HV,S], g [B,T,HV] or [B,T,HV,S] (kda), beta [B,T,HV], state [B,HV,S,S], S =
// 128; q and k normalised, g the log decay. OUTPUT gets [B,T,HV,S] and PLANES states, the last one first. Prints the
// times of REPEATS calls in us, which go round SETS copies of the state.
#include <ggml-cpu.h>
#include <ggml.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace {

constexpr int64_t kSize = 128;

struct Set {
  ggml_tensor* state;
  ggml_tensor* result;
  ggml_cgraph* graph;
  ggml_cplan plan;
  std::vector<uint8_t> work;
};

int usage() {
  std::fprintf(stderr, "usage: ggml_gdn KIND H HV T B PLANES THREADS SETS REPEATS INPUT OUTPUT\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 12) return usage();
  const bool kda = std::string(argv[1]) == "kda";
  const int64_t H = std::atoll(argv[2]), HV = std::atoll(argv[3]), T = std::atoll(argv[4]), B = std::atoll(argv[5]);
  const int64_t planes = std::atoll(argv[6]);
  const int threads = std::atoi(argv[7]), count = std::atoi(argv[8]), repeats = std::atoi(argv[9]);
  if (H < 1 || HV < H || T < 1 || B < 1 || planes < 1 || threads < 1 || count < 1 || repeats < 1) return usage();

  const int64_t results = kSize * HV * T * B + planes * kSize * kSize * HV * B, states = kSize * kSize * HV * B;
  const size_t bytes = static_cast<size_t>(count * (results + states) + 4 * kSize * HV * T * B * 2) * sizeof(float) +
                       static_cast<size_t>(count + 1) * (16 << 20);
  ggml_context* context = ggml_init({bytes, nullptr, false});
  if (!context) return 1;
  const auto tensor = [&](int64_t a, int64_t b, int64_t c, int64_t d) {
    return ggml_new_tensor_4d(context, GGML_TYPE_F32, a, b, c, d);
  };
  ggml_tensor* const q = tensor(kSize, H, T, B);
  ggml_tensor* const k = tensor(kSize, H, T, B);
  ggml_tensor* const v = tensor(kSize, HV, T, B);
  ggml_tensor* const g = tensor(kda ? kSize : 1, HV, T, B);
  ggml_tensor* const beta = tensor(1, HV, T, B);
  std::vector<Set> sets(static_cast<size_t>(count));
  for (Set& set : sets) {
    set.state = tensor(kSize, kSize, HV, B);
    set.result = ggml_gated_delta_net(context, q, k, v, g, beta, set.state, planes);
    set.graph = ggml_new_graph_custom(context, 16, false);
    ggml_build_forward_expand(set.graph, set.result);
  }

  std::ifstream input(argv[10], std::ios::binary);
  for (ggml_tensor* t : {q, k, v, g, beta, sets[0].state})
    input.read(static_cast<char*>(t->data), static_cast<std::streamsize>(ggml_nbytes(t)));
  if (!input) return std::fprintf(stderr, "ggml_gdn: %s is too short\n", argv[10]), 1;
  ggml_threadpool_params wanted = ggml_threadpool_params_default(threads);
  ggml_threadpool* const pool = ggml_threadpool_new(&wanted);
  for (Set& set : sets) {
    std::memcpy(set.state->data, sets[0].state->data, ggml_nbytes(set.state));
    set.plan = ggml_graph_plan(set.graph, threads, pool);
    set.work.resize(set.plan.work_size);
    set.plan.work_data = set.work.data();
    if (ggml_graph_compute(set.graph, &set.plan) != GGML_STATUS_SUCCESS) return 1;
  }
  std::ofstream output(argv[11], std::ios::binary);
  output.write(static_cast<const char*>(sets[0].result->data), static_cast<std::streamsize>(results * sizeof(float)));
  if (!output.flush()) return std::fprintf(stderr, "ggml_gdn: cannot write %s\n", argv[11]), 1;

  for (int i = 0; i < repeats; ++i) {
    Set& set = sets[static_cast<size_t>(i % count)];
    const auto begin = std::chrono::steady_clock::now();
    if (ggml_graph_compute(set.graph, &set.plan) != GGML_STATUS_SUCCESS) return 1;
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
    std::printf("%.2f\n", us.count());
  }
  ggml_threadpool_free(pool);
  ggml_free(context);
  return 0;
}
