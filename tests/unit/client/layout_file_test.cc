// Layout files: every field, and every way to get one wrong with the line that says so.
#include "crumb/layout_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "client/src/layout_spec.h"

namespace crumb::client {
namespace {

using testing::HasSubstr;

constexpr char kWhole[] = R"(# comment
name: small
model: org/model
revision: abc123
weights_dtype: fp8
dtype: bf16
rope: {kind: yarn, theta: 1000000, factor: 4.0, original_positions: 32768, extra: "beta=32"}
k_before_rope: true
groups:
  - {kind: gqa, kv_heads: 8, k_dim: 128, v_dim: 64, window: 512, layers: [0-2, 5]}
  - kind: mha
    kv_heads: 4
    k_dim: 64
    v_dim: 64
    layers: [3, 4]
page_tokens: 32
namespace: lora-7
head_groups: 2
part_layer_counts: [2, 4]
codec: crumb-int2
rotation: 1a2b
effort: best
metadata: fp32
keep_non_finite_raw: true
)";

TEST(LayoutFile, ReadsEveryField) {
  LayoutSpec spec;
  const Status status = ParseLayout(kWhole, "whole.yaml", &spec);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(spec.name, "small");
  EXPECT_EQ(spec.model, "org/model");
  EXPECT_EQ(spec.revision, "abc123");
  EXPECT_EQ(spec.weights_dtype, "fp8");
  EXPECT_EQ(spec.dtype, "bf16");
  EXPECT_EQ(spec.rope_kind, "yarn");
  EXPECT_EQ(spec.rope_theta, 1e6);
  EXPECT_EQ(spec.rope_factor, 4.0);
  EXPECT_EQ(spec.rope_original_positions, 32768u);
  EXPECT_EQ(spec.rope_extra, "beta=32");
  EXPECT_TRUE(spec.k_before_rope);
  ASSERT_EQ(spec.groups.size(), 2u);
  EXPECT_EQ(spec.groups[0].layer_ids, (std::vector<uint32_t>{0, 1, 2, 5}));
  EXPECT_EQ(spec.groups[0].window, 512u);
  EXPECT_EQ(spec.groups[0].v_dim, 64u);
  EXPECT_EQ(spec.groups[1].kind, "mha");
  EXPECT_EQ(spec.groups[1].kv_heads, 4u);
  EXPECT_EQ(spec.page_tokens, 32u);
  EXPECT_EQ(spec.name_space, "lora-7");
  EXPECT_EQ(spec.head_groups, 2u);
  EXPECT_EQ(spec.part_layer_counts, (std::vector<uint32_t>{2, 4}));
  EXPECT_EQ(spec.codec, "crumb-int2");
  EXPECT_EQ(spec.rotation, "1a2b");
  EXPECT_EQ(spec.effort, "best");
  EXPECT_EQ(spec.metadata, "fp32");
  EXPECT_TRUE(spec.keep_non_finite_raw);
}

struct Case {
  std::string line;     // in place of "page_tokens: 32"
  std::string message;  // a part of it
};

TEST(LayoutFile, NamesTheLineOfWhatItRefuses) {
  const std::vector<Case> cases = {
      {"page_token: 32", "line 16: unknown key \"page_token\""},
      {"page_tokens: 32\npage_tokens: 64", "line 17: page_tokens appears twice"},
      {"page_tokens: many", "line 16: \"many\" is not a whole number"},
      {"page_tokens: -1", "line 16: \"-1\" is not a whole number"},
      {"page_tokens: 1e3", "line 16: \"1e3\" is not a whole number"},
      {"page_tokens: 4294967296", "line 16: 4294967296 is more than"},
      {"page_tokens: [1]", "line 16: a single value is expected"},
      {"page_tokens: 0", "page_tokens"},
      {"page_tokens: 5000", "page_tokens"},
      {"page_tokens: \"\"", "line 16: \"\" is not a whole number"},
      {"page_tokens: {a: b", "not YAML"},
      {"page_tokens: 32\nextra_rope: {}", "unknown key \"extra_rope\""},
  };
  for (const Case& one : cases) {
    std::string text = kWhole;
    text.replace(text.find("page_tokens: 32"), 15, one.line);
    LayoutSpec spec;
    const Status status = ParseLayout(text, "x.yaml", &spec);
    EXPECT_EQ(status.code, Code::kInvalid) << one.line;
    EXPECT_THAT(status.message, HasSubstr(one.message)) << one.line;
    EXPECT_THAT(status.message, HasSubstr("layout file x.yaml")) << one.line;
  }
}

TEST(LayoutFile, RefusesWrongShapes) {
  for (const char* text :
       {"", "[]", "just text", "model: [a]", "groups: 5", "groups: [5]", "groups: [{layers: 5-1}]",
        "groups: [{layers: 0-4294967295}]", "rope: 3", "k_before_rope: yes",
        "groups: [{kv_heads: 1, colour: red}]", "&a [*a]", "? [a]\n: b"}) {
    LayoutSpec spec;
    EXPECT_EQ(ParseLayout(text, "x", &spec).code, Code::kInvalid) << text;
  }
}

TEST(LayoutFile, RefusesAHugeFileAndAMissingOne) {
  LayoutSpec spec;
  EXPECT_THAT(ParseLayout(std::string((1 << 20) + 1, '#'), "x", &spec).message,
              HasSubstr("larger than"));
  const Status status = LoadLayoutFile("/nonexistent/layout.yaml", &spec);
  EXPECT_EQ(status.code, Code::kInvalid);
  EXPECT_THAT(status.message, HasSubstr("/nonexistent/layout.yaml"));
  EXPECT_EQ(LoadLayoutFile("/tmp", &spec).code, Code::kInvalid);
}

TEST(LayoutFile, AFailedParseLeavesTheSpecAlone) {
  LayoutSpec spec;
  spec.name = "before";
  EXPECT_FALSE(ParseLayout("nope: 1", "x", &spec).ok());
  EXPECT_EQ(spec.name, "before");
}

TEST(LayoutFile, ASpecSurvivesTheWayThroughTheMessages) {
  LayoutSpec spec;
  ASSERT_TRUE(ParseLayout(kWhole, "x", &spec).ok());
  const auto direct = CheckSpec(spec);
  ASSERT_TRUE(direct.ok()) << direct.status();
  const v1::RegisterLayoutRequest request = ToRequest(spec);
  const auto through = CheckIdentity(request.identity());
  ASSERT_TRUE(through.ok()) << through.status();
  EXPECT_EQ(direct->canonical(), through->canonical());
  EXPECT_EQ(request.codec(), "crumb-int2");
  EXPECT_EQ(request.metadata(), "fp32");
  EXPECT_TRUE(request.keep_non_finite_raw());
}

TEST(LayoutFile, TheDocumentedExamplesAreWhole) {
  const std::string root = std::string(std::getenv("CRUMB_TEST_DATA")) + "/../../docs/examples/";
  LayoutSpec spec;
  Status status = LoadLayoutFile(root + "smollm2.yaml", &spec);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(CheckSpec(spec)->parts()[0].raw_bytes, 30u * 2 * 3 * 64 * 64 * 2);
  spec = {};
  status = LoadLayoutFile(root + "qwen3-8b.yaml", &spec);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(CheckSpec(spec)->part_count(), 8u);
}

class DaemonSays : public testing::Test {
 protected:
  void SetUp() override {
    LayoutSpec spec;
    ASSERT_TRUE(ParseLayout(kWhole, "x", &spec).ok());
    const auto shape = CheckSpec(spec);
    ASSERT_TRUE(shape.ok());
    *info_.mutable_identity() = ToRequest(spec).identity();
    info_.set_hash(shape->hash().bytes.data(), shape->hash().bytes.size());
    info_.set_handle(3);
    for (const PartShape& part : shape->parts()) {
      info_.add_raw_bytes(part.raw_bytes);
      info_.add_payload_bytes(part.raw_bytes / 7);
    }
  }
  v1::LayoutInfo info_;
};

TEST_F(DaemonSays, ATrueDescriptionIsKept) {
  const auto entry = MakeEntry(info_);
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ(entry->daemon_handle, 3u);
  EXPECT_EQ(entry->info.raw_bytes.size(), 4u);
  EXPECT_EQ(entry->info.page_tokens, 32u);
}

TEST_F(DaemonSays, AnythingThatDoesNotFitItselfIsRefused) {
  v1::LayoutInfo wrong = info_;
  wrong.set_hash(std::string(32, 'x'));
  EXPECT_FALSE(MakeEntry(wrong).ok());
  wrong = info_;
  wrong.set_hash("");
  EXPECT_FALSE(MakeEntry(wrong).ok());
  wrong = info_;
  wrong.set_raw_bytes(1, 5);
  EXPECT_FALSE(MakeEntry(wrong).ok());
  wrong = info_;
  wrong.add_raw_bytes(1);
  EXPECT_FALSE(MakeEntry(wrong).ok());
  wrong = info_;
  wrong.mutable_identity()->set_page_tokens(0);
  EXPECT_FALSE(MakeEntry(wrong).ok());
  wrong = info_;
  wrong.mutable_identity()->set_page_tokens(64);
  EXPECT_FALSE(MakeEntry(wrong).ok());
  wrong = info_;
  wrong.clear_handle();
  EXPECT_FALSE(MakeEntry(wrong).ok());
}

}  // namespace
}  // namespace crumb::client
