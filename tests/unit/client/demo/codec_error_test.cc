// Every codec's attention error on the sample: the published ones against an independent
// implementation's figures, the crumb codec against what it promises over them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cachesvc/base/identity.h"
#include "client/demo/attention_error.h"
#include "client/demo/sample.h"
#include "gpu/codec/page_codec.h"
#include "gpu/codec/rotation_set.h"
#include "tests/support/npz.h"

namespace crumb::demo {
namespace {

class CodecError : public ::testing::Test {
 protected:
  static const Sample& sample() {
    static const Sample loaded = *LoadSample(testing::TestDataPath("smollm2"));
    return loaded;
  }
  static const nlohmann::json& figures() {
    static const nlohmann::json parsed =
        nlohmann::json::parse(testing::ReadTestData("smollm2/attn_sample.json"));
    return parsed;
  }

  // The error after every page went through the codec.
  static AttentionError Measure(CodecDescriptor descriptor) {
    static const AttentionReference reference(sample());
    const auto set = *RotationSet::Load(testing::TestDataPath("smollm2/smollm2_sample.rot"));
    Identity identity;
    identity.model = "m";
    identity.revision = "r";
    identity.weights_dtype = "bf16";
    identity.groups = {{.kind = AttentionKind::kGqa,
                        .kv_heads = sample().kv_heads,
                        .k_dim = sample().dim,
                        .v_dim = sample().dim,
                        .layer_ids = {0, 15, 29}}};
    const auto layout = Layout::Make(identity);
    EXPECT_TRUE(layout.ok()) << layout.status();
    if (descriptor.rotation_set != Sha256{}) descriptor.rotation_set = set->hash();
    const auto codec = PageCodec::Create(layout->parts()[0], descriptor, set);
    EXPECT_TRUE(codec.ok()) << codec.status();
    if (!codec.ok()) return {};
    const auto scratch = (*codec)->MakeScratch();
    std::vector<uint8_t> raw(sample().page_bytes());
    std::vector<uint8_t> packed((*codec)->payload_bytes());
    Sample restored = sample();
    for (uint32_t page = 0; page < sample().page_count(); ++page) {
      WritePage(sample(), page, absl::MakeSpan(raw));
      const EncodeReport report = (*codec)->Encode(raw, kPageTokens, Effort::kNormal,
                                                   absl::MakeSpan(packed), scratch.get());
      EXPECT_EQ(report.result, BlockResult::kOk);
      EXPECT_TRUE((*codec)->Decode(packed, kPageTokens, Frame::kOriginal, absl::MakeSpan(raw),
                                   scratch.get()));
      ReadPage(raw, page, restored);
    }
    return reference.Compare(restored);
  }

  static CodecDescriptor Default(CodecKind kind) {
    return CodecDescriptor::Default(kind, Sha256{1});  // Measure fills the set's hash in
  }

  static void ExpectKnown(CodecDescriptor descriptor, const char* name) {
    descriptor.meta = MetaForm::kFp32;  // as the figures were made
    const AttentionError error = Measure(descriptor);
    const nlohmann::json& known = figures()[name];
    EXPECT_NEAR(error.logit / known["logit_rel"].get<double>(), 1.0, 0.01) << name;
    EXPECT_NEAR(error.logit_centred / known["logit_rel_centred"].get<double>(), 1.0, 0.01) << name;
    EXPECT_NEAR(error.output / known["out_rel"].get<double>(), 1.0, 0.01) << name;
  }
};

TEST_F(CodecError, OscarInt2) {
  ExpectKnown(Default(CodecKind::kOscarInt2), "oscar-layer.int2-g64-clip");
}

TEST_F(CodecError, HadamardInt2) {
  CodecDescriptor descriptor = Default(CodecKind::kHadamardInt2);
  ExpectKnown(descriptor, "hadamard.int2-g64");
  descriptor.clip_method = ClipMethod::kSort;
  descriptor.clip_k = 0.96f;
  descriptor.clip_v = 0.92f;
  ExpectKnown(descriptor, "hadamard.int2-g64-clip");
}

TEST_F(CodecError, NaiveInt2) { ExpectKnown(Default(CodecKind::kNaiveInt2), "naive.int2-g64"); }

TEST_F(CodecError, Int4) {
  ExpectKnown(Default(CodecKind::kInt4), "naive.int4");
  ExpectKnown(Default(CodecKind::kHadamardInt4), "hadamard.int4");
}

TEST_F(CodecError, CrumbIsFarBelowOscarAtTwoBits) {
  const AttentionError crumb = Measure(Default(CodecKind::kCrumbInt2));
  const double oscar = figures()["oscar-layer.int2-g64-clip"]["logit_rel_centred"];
  EXPECT_GT(crumb.logit_centred, 0.0);
  EXPECT_LT(crumb.logit_centred, 0.35 * oscar);
  const double hadamard = figures()["hadamard.int2-g64-clip"]["out_rel"];
  EXPECT_LT(crumb.output, 0.5 * hadamard);
}

}  // namespace
}  // namespace crumb::demo
