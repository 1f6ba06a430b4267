// What a layout's pages are stored with and read by: codecs, windows, rules. Made by the control
// thread, handed to the engine, immutable from then on.
#ifndef CRUMB_CACHESVC_CORE_LAYOUT_BINDING_H_
#define CRUMB_CACHESVC_CORE_LAYOUT_BINDING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "gpu/codec/gpu_codec.h"
#include "gpu/codec/page_codec.h"

namespace crumb {

inline constexpr uint32_t kWindowPagesMax = 4096;  // in one recent window: a chain is walked so far

// OSCAR's windows in a page store (docs/windows.md): pages that hold the first `sink_tokens` of a
// sequence stay raw; others are raw while they end within `recent_tokens` of its newest end.
struct WindowPolicy {
  bool on = false;
  uint32_t sink_tokens = 0;
  uint32_t recent_tokens = 0;
  friend bool operator==(const WindowPolicy&, const WindowPolicy&) = default;
};

// What a put under a layout does, and how pages under its identity are read. Made on the control
// thread (codecs may take long to build), then handed to BindLayout.
struct LayoutBinding {
  std::shared_ptr<const Layout> layout;
  std::string tenant = {};
  Effort effort = Effort::kNormal;
  bool keep_non_finite_raw = false;  // else a page with NaN or Inf is refused
  // At least this precision for pages that do not say where they start (keys before RoPE excepted).
  Precision unknown_position_precision = Precision::kInt4;
  WindowPolicy windows = {};  // of layouts whose pages are encoded; raw ones have no use for it
  // [part][i]: the ladder of encoders, wanted precision first, raw last.
  std::vector<std::vector<std::shared_ptr<const PageCodec>>> ladder;
  // [part]: every codec that pages of this identity may have been stored with.
  std::vector<std::vector<std::shared_ptr<const PageCodec>>> readers;
  // [part]: what GPUs can do of the above, for every GPU that workers lend memory of; empty: none.
  std::vector<std::vector<std::shared_ptr<const GpuCodec>>> gpu = {};
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_CORE_LAYOUT_BINDING_H_
