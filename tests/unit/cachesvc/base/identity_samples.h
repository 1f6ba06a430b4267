// Identities that several tests share: plain GQA, a hybrid of two geometries, MLA. The golden files
// are made from them, so they never change.
#ifndef CRUMB_TESTS_UNIT_CACHESVC_BASE_IDENTITY_SAMPLES_H_
#define CRUMB_TESTS_UNIT_CACHESVC_BASE_IDENTITY_SAMPLES_H_

#include "cachesvc/base/identity.h"

namespace crumb::testing {

inline Identity GqaIdentity() {
  Identity identity;
  identity.model = "example/model-8b";
  identity.revision = "0123abcd";
  identity.weights_dtype = "bf16";
  identity.rope.theta = 500000.0;
  identity.groups.push_back({.kind = AttentionKind::kGqa,
                             .kv_heads = 8,
                             .k_dim = 128,
                             .v_dim = 128,
                             .window = 0,
                             .layer_ids = {0, 1, 2, 3}});
  return identity;
}

// Sliding layers of dim 64 with every third layer full attention, K and V of different dims.
inline Identity HybridIdentity() {
  Identity identity = GqaIdentity();
  identity.rope.kind = "yarn";
  identity.rope.factor = 4.0;
  identity.rope.original_positions = 32768;
  identity.rope.extra = "beta_fast=32,beta_slow=1";
  identity.name_space = "lora:7";
  identity.groups[0].k_dim = 64;
  identity.groups[0].v_dim = 64;
  identity.groups[0].window = 1024;
  identity.groups[0].layer_ids = {0, 1, 3, 4};
  identity.groups.push_back({.kind = AttentionKind::kMha,
                             .kv_heads = 4,
                             .k_dim = 256,
                             .v_dim = 128,
                             .window = 0,
                             .layer_ids = {2}});
  return identity;
}

inline Identity MlaIdentity() {
  Identity identity = GqaIdentity();
  identity.groups[0] = {.kind = AttentionKind::kMla,
                        .kv_heads = 1,
                        .k_dim = 576,
                        .v_dim = 0,
                        .window = 0,
                        .layer_ids = {0, 1}};
  return identity;
}

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_UNIT_CACHESVC_BASE_IDENTITY_SAMPLES_H_
