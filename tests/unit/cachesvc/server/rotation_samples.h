// Small rotation sets and identities for tests: two layers, two kv heads of dim 64. One thread.
#ifndef CRUMB_TESTS_UNIT_CACHESVC_SERVER_ROTATION_SAMPLES_H_
#define CRUMB_TESTS_UNIT_CACHESVC_SERVER_ROTATION_SAMPLES_H_

#include <memory>
#include <string>

#include "cachesvc/base/check.h"
#include "cachesvc/base/identity.h"
#include "gpu/codec/rotation_set.h"

namespace crumb::testing {

inline constexpr uint32_t kSmallDim = 64;

inline Identity SmallIdentity() {
  Identity identity;
  identity.model = "example/small";
  identity.revision = "r1";
  identity.weights_dtype = "bf16";
  identity.page_tokens = 64;
  identity.groups.push_back({.kind = AttentionKind::kGqa,
                             .kv_heads = 2,
                             .k_dim = kSmallDim,
                             .v_dim = kSmallDim,
                             .window = 0,
                             .layer_ids = {0, 1}});
  return identity;
}

inline std::vector<float> UnitMatrix() {
  std::vector<float> unit(kSmallDim * kSmallDim, 0.0f);
  for (uint32_t i = 0; i < kSmallDim; ++i) unit[i * kSmallDim + i] = 1.0f;
  return unit;
}

enum class Calibration { kNone, kFull };

inline std::shared_ptr<const RotationSet> SmallSet(const Identity& identity,
                                                   Calibration calibration,
                                                   const std::string& provenance = "test") {
  RotationSet::Contents contents;
  contents.model = identity.model;
  contents.revision = identity.revision;
  contents.objective = "test";
  contents.provenance = provenance;
  for (const uint32_t id : identity.groups[0].layer_ids) {
    RotationLayer layer;
    layer.layer_id = id;
    layer.k = {.heads = 1, .dim = kSmallDim, .matrix = HadamardMatrix(kSmallDim)};
    layer.v = layer.k;
    if (calibration == Calibration::kFull) {
      layer.kv_heads = 1;
      layer.k_dim = kSmallDim;
      layer.query_moment = UnitMatrix();
      layer.k_mean.assign(kSmallDim, 0.25f);
    }
    contents.layers.push_back(std::move(layer));
  }
  auto set = RotationSet::Make(std::move(contents));
  CRUMB_CHECK(set.ok());
  return *set;
}

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_UNIT_CACHESVC_SERVER_ROTATION_SAMPLES_H_
