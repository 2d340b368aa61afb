// Launches, in a stream and in a graph.
#pragma once
#include "benchmarks/gpu/micro/measurement.cuh"

namespace micro {

inline void launches() {
  constexpr int kCount = 200;
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  Array<char> filled(1 << 20);
  struct Case {
    const char* what;
    bool cooperative, fill;
    Expected us;
  };
  const Case cases[] = {{"launch", false, false, {2.5, 1.0, 3.5}},
                        {"launch, cooperative", true, false, {2.5, 1.0, 5.0}},
                        {"fill and launch, cooperative", true, true, {5.0, 2.0, 8.0}}};
  for (const Case& c : cases) {
    const Launch how{.blocks = bench::sms(),
                     .threads = kThreads,
                     .shared_bytes = kWholeSm,
                     .cooperative = c.cooperative,
                     .stream = stream};
    bench::allow(nothing, how);
    const auto run = [&] {
      for (int n = 0; n < kCount; ++n) {
        if (c.fill) filled.fill(0xff, stream);
        CHECK(cudaLaunchKernelEx(bench::Config(how).get(), nothing, 0));
      }
    };
    const auto time = [&](const auto& once) {
      std::vector<double> us;
      for (int n = 0; n < 15; ++n) {
        CHECK(cudaStreamSynchronize(stream));
        const auto begin = std::chrono::steady_clock::now();
        once();
        CHECK(cudaStreamSynchronize(stream));
        const std::chrono::duration<double, std::micro> passed =
            std::chrono::steady_clock::now() - begin;
        us.push_back(passed.count() / kCount);
      }
      std::sort(us.begin(), us.end());
      return us[us.size() / 2];
    };
    report(c.what, c.cooperative || c.fill ? "" : "launch_us", time(run), "us", c.us);

    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    run();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    const auto replay = [&] { CHECK(cudaGraphLaunch(executable, stream)); };
    report((std::string(c.what) + ", in a graph").c_str(), "", time(replay), "us", {1.3, 0.8, 3.0});
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
  }
  CHECK(cudaStreamDestroy(stream));
}

}  // namespace micro
