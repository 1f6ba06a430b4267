// Times the GPU codec: burst (one launch after the chip was idle) and sustained (back to back),
// against the time that the bytes alone take at the bandwidth that copies reach here.
#include "gpu/codec/cuda_codec.h"

#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"
#include "gpu/codec/bf16.h"

namespace crumb {
namespace {

constexpr double kHbmBytesPerUs = 4.24e6;  // device copy of an H200
constexpr auto kIdle = std::chrono::milliseconds(250);

struct Args {
  std::string kind = "oscar-int2", effort = "normal";
  uint32_t dim = 128, heads = 8, layers = 1, pages = 4096, page_tokens = 64;
  int burst = 7, sustained = 40;
  double bytes_per_us = kHbmBytesPerUs;
  bool encode = true, decode = true;
};

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "bench_gpu_codec: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return std::move(*value);
  std::fprintf(stderr, "bench_gpu_codec: %s\n", std::string(value.status().message()).c_str());
  std::exit(1);
}
void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_gpu_codec: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

double Normal(Rng* rng) {
  double sum = -6.0;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(rng->Below(1u << 24)) / (1u << 24);
  return sum;
}

std::shared_ptr<const RotationSet> RandomRotations(const Args& args) {
  RotationSet::Contents contents;
  contents.model = "bench";
  contents.revision = "1";
  contents.gamma = 0.5f;
  Rng rng(1);
  for (uint32_t id = 0; id < args.layers; ++id) {
    RotationLayer layer;
    layer.layer_id = id;
    layer.k = {1, args.dim, {}};
    layer.v = {1, args.dim, {}};
    for (auto* matrix : {&layer.k.matrix, &layer.v.matrix}) {
      std::vector<double> v(args.dim);
      double norm = 0.0;
      for (double& value : v) value = Normal(&rng), norm += value * value;
      for (size_t i = 0; i < args.dim; ++i) {
        for (size_t j = 0; j < args.dim; ++j) {
          matrix->push_back(static_cast<float>((i == j) - 2.0 * v[i] * v[j] / norm));
        }
      }
    }
    layer.kv_heads = args.heads;
    layer.k_dim = args.dim;
    for (uint32_t i = 0; i < args.heads * args.dim; ++i) {
      layer.k_mean.push_back(static_cast<float>(Normal(&rng)));
    }
    // Queries that look in some directions more than in others.
    for (uint32_t head = 0; head < args.heads; ++head) {
      for (uint32_t i = 0; i < args.dim; ++i) {
        for (uint32_t j = 0; j < args.dim; ++j) {
          const double own = i == j ? 1.0 + (i * 7 + head) % 11 : 0.0;
          layer.query_moment.push_back(static_cast<float>(own + 8.0 / (1.0 + i + j)));
        }
      }
    }
    contents.layers.push_back(std::move(layer));
  }
  return Must(RotationSet::Make(std::move(contents)));
}

PartShape ShapeOf(const Args& args) {
  PartShape shape;
  shape.page_tokens = args.page_tokens;
  for (uint32_t id = 0; id < args.layers; ++id) {
    LayerShape layer;
    layer.layer_id = id;
    layer.heads = args.heads;
    layer.k_dim = layer.v_dim = args.dim;
    shape.layers.push_back(layer);
  }
  shape.raw_bytes = uint64_t{args.layers} * 2 * args.heads * args.page_tokens * args.dim * 2;
  return shape;
}

struct Job {
  std::unique_ptr<CudaCodec> codec;
  DeviceBuffer raw, payloads, pages, slots, places, reports;
  CudaPages list;
};

// Raw memory of an engine: [layer][K|V][slot][token][head][dim], slots of 16 tokens, shuffled.
Job MakeJob(const Args& args) {
  Job job;
  const PartShape shape = ShapeOf(args);
  const auto set = RandomRotations(args);
  const CodecKind kind = Must(ParseCodecKind(args.kind));
  const CodecDescriptor descriptor = CodecDescriptor::Default(kind, set->hash());
  job.codec = Must(CudaCodec::Create(shape, descriptor, set, 0));
  const uint64_t tensors = 2 * args.layers, per_slot = 16;
  const uint64_t slots = uint64_t{args.pages} * args.page_tokens / per_slot;
  const uint64_t row = 2 * args.dim, token = row * args.heads, slot = per_slot * token;
  job.raw = Must(DeviceBuffer::Create(0, tensors * slots * slot));
  Rng rng(7);
  std::vector<uint16_t> values(8u << 20);
  for (uint16_t& value : values) value = FloatToBf16(static_cast<float>(Normal(&rng)));
  for (uint64_t at = 0; at < job.raw.size(); at += 2 * values.size()) {
    const uint64_t bytes = std::min<uint64_t>(2 * values.size(), job.raw.size() - at);
    Check(cudaMemcpy(job.raw.data() + at, values.data(), bytes, cudaMemcpyHostToDevice));
  }
  std::vector<CudaPlace> places;
  for (uint64_t t = 0; t < tensors; ++t) {
    places.push_back(
        {reinterpret_cast<uint64_t>(job.raw.data()) + t * slots * slot, slot, token, row});
  }
  std::vector<uint32_t> order(slots);
  for (uint32_t i = 0; i < slots; ++i) order[i] = i;
  for (uint32_t i = static_cast<uint32_t>(slots) - 1; i > 0; --i) {
    std::swap(order[i], order[rng.Below(i + 1)]);
  }
  const uint64_t step = job.codec->layout().payload_bytes();
  job.payloads = Must(DeviceBuffer::Create(0, step * args.pages));
  std::vector<CudaPage> pages;
  for (uint32_t i = 0; i < args.pages; ++i) {
    pages.push_back({reinterpret_cast<uint64_t>(job.payloads.data()) + i * step, args.page_tokens,
                     static_cast<uint32_t>(i * args.page_tokens / per_slot)});
  }
  const auto upload = [](const auto& vector) {
    const uint64_t bytes = vector.size() * sizeof(vector[0]);
    DeviceBuffer buffer = Must(DeviceBuffer::Create(0, bytes));
    Check(cudaMemcpy(buffer.data(), vector.data(), bytes, cudaMemcpyHostToDevice));
    return buffer;
  };
  job.places = upload(places);
  job.slots = upload(order);
  job.pages = upload(pages);
  job.reports = Must(DeviceBuffer::Create(0, sizeof(CudaPageReport) * args.pages));
  job.list = {reinterpret_cast<const CudaPlace*>(job.places.data()),
              reinterpret_cast<const CudaPage*>(job.pages.data()),
              reinterpret_cast<const uint32_t*>(job.slots.data()),
              reinterpret_cast<CudaPageReport*>(job.reports.data()),
              args.pages,
              static_cast<uint32_t>(per_slot),
              true};
  return job;
}

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

template <typename Run>
void Time(const Args& args, const Job& job, const char* what, const Run& run) {
  cudaEvent_t start, end;
  Check(cudaEventCreate(&start));
  Check(cudaEventCreate(&end));
  run();
  Check(cudaDeviceSynchronize());
  const auto once = [&](int times) {
    Check(cudaEventRecord(start));
    for (int i = 0; i < times; ++i) run();
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, start, end));
    return 1e3 * static_cast<double>(ms) / times;
  };
  std::vector<double> burst;
  for (int i = 0; i < args.burst; ++i) {
    std::this_thread::sleep_for(kIdle);
    burst.push_back(once(1));
  }
  std::vector<double> sustained;
  for (int i = 0; i < 5; ++i) sustained.push_back(once(args.sustained));
  const double bytes = static_cast<double>(job.raw.size() + job.payloads.size());
  const double floor = bytes / args.bytes_per_us;
  const double b = Median(burst), s = Median(sustained);
  std::printf(
      "%-14s d=%u pages=%u x %u layers %-8s burst %8.1f us (%.2f x) sustained %8.1f us "
      "(%.2f x) floor %.1f us\n",
      args.kind.c_str(), args.dim, args.pages, args.layers, what, b, b / floor, s, s / floor,
      floor);
  std::fflush(stdout);
}

void RunBench(const Args& args) {
  const Job job = MakeJob(args);
  Must(job.codec->ResetReports(job.list, nullptr));
  Check(cudaMemset(job.payloads.data(), 0x5a, job.payloads.size()));
  if (args.encode && job.codec->encodes()) {
    const Effort effort = Must(ParseEffort(args.effort));
    Time(args, job, "encode", [&] { Must(job.codec->Encode(job.list, effort, nullptr)); });
  }
  if (!args.decode) return;
  Time(args, job, "decode", [&] { Must(job.codec->Decode(job.list, Frame::kOriginal, nullptr)); });
  Time(args, job, "rotated", [&] { Must(job.codec->Decode(job.list, Frame::kRotated, nullptr)); });
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) {
  crumb::Args args;
  CLI::App app{"Times the GPU codec."};
  app.add_option("--kind", args.kind, "codec");
  app.add_option("--effort", args.effort, "of crumb encoders");
  app.add_option("--dim", args.dim, "head dim");
  app.add_option("--heads", args.heads);
  app.add_option("--layers", args.layers);
  app.add_option("--pages", args.pages);
  app.add_option("--page-tokens", args.page_tokens, "a multiple of 16")
      ->check(CLI::Range(16, 4096))
      ->check([](const std::string& text) {
        return std::stoul(text) % 16 == 0 ? "" : "not a multiple of 16";
      });
  app.add_option("--burst", args.burst, "runs after an idle time");
  app.add_option("--sustained", args.sustained, "launches of one sustained run");
  app.add_flag("!--no-encode", args.encode);
  app.add_flag("!--no-decode", args.decode);
  CLI11_PARSE(app, argc, argv);
  crumb::RunBench(args);
  return 0;
}
