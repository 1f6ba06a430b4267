// Which codec a layout gets: asked for, default, refused, and why.
#include "cachesvc/server/codec_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/cachesvc/base/identity_samples.h"
#include "tests/unit/cachesvc/server/rotation_samples.h"

namespace crumb {
namespace {

using testing::Calibration;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::SmallIdentity;
using testing::SmallSet;

class CodecChoiceTest : public ::testing::Test {
 protected:
  CodecChoiceTest() {
    config_.default_precision = "int2";
    config_.int2 = "require_evaluation";
    config_.effort = "normal";
  }
  absl::StatusOr<CodecChoice> Choose() {
    auto layout = Layout::Make(identity_);
    EXPECT_TRUE(layout.ok()) << layout.status();
    layout_ = std::make_unique<Layout>(*std::move(layout));
    return ChooseCodec({.layout = layout_.get(),
                        .cache = &cache_,
                        .wish = wish_,
                        .config = &config_,
                        .rotations = rotations_,
                        .evaluations = evaluations_,
                        .bounds = {.perplexity_permille_max = 20, .kl_millinats_max = 50}});
  }
  CodecChoice Good() {
    auto choice = Choose();
    EXPECT_TRUE(choice.ok()) << choice.status();
    return choice.ok() ? *std::move(choice) : CodecChoice{};
  }
  std::string Refused(absl::StatusCode code = absl::StatusCode::kFailedPrecondition) {
    const auto choice = Choose();
    EXPECT_EQ(choice.status().code(), code) << choice.status();
    return std::string(choice.status().message());
  }
  // Of the default codec with the set at hand: good enough.
  Evaluation Evaluated() const {
    return {.model = identity_.model,
            .revision = identity_.revision,
            .rotation = rotations_->hash(),
            .codec = CodecKind::kCrumbInt2,
            .perplexity_change = 0.005,
            .kl = 0.0071,
            .tokens = 16384,
            .date = "2026-01-31",
            .source = "a test"};
  }
  static std::vector<CodecKind> Kinds(const CodecChoice& choice) {
    std::vector<CodecKind> kinds;
    for (const CodecDescriptor& descriptor : choice.ladder) kinds.push_back(descriptor.kind);
    return kinds;
  }

  Identity identity_ = SmallIdentity();
  CodecWish wish_;
  CodecConfig config_;
  std::shared_ptr<const RotationSet> rotations_;
  std::vector<Evaluation> evaluations_;
  std::unique_ptr<Layout> layout_;
  CodecCache cache_;
};

TEST_F(CodecChoiceTest, WithoutASetItIsInt4WithHadamardAndSaysWhy) {
  const CodecChoice choice = Good();
  EXPECT_EQ(Kinds(choice), (std::vector{CodecKind::kCrumbInt4, CodecKind::kRaw}));
  EXPECT_EQ(choice.ladder[0].rotation_set, Sha256{});
  EXPECT_THAT(choice.note, HasSubstr("no rotation set for example/small at r1"));
  EXPECT_THAT(choice.note, HasSubstr("crumbctl rotation import"));
  ASSERT_EQ(choice.codecs.size(), 1u);
  EXPECT_EQ(choice.codecs[0].size(), 2u);
}

TEST_F(CodecChoiceTest, ASetAloneIsNotEnoughForTwoBits) {
  rotations_ = SmallSet(identity_, Calibration::kFull);
  const CodecChoice choice = Good();
  EXPECT_EQ(Kinds(choice).front(), CodecKind::kCrumbInt4);
  EXPECT_THAT(choice.note, HasSubstr("codec.int2: accept"));
}

TEST_F(CodecChoiceTest, ACalibratedSetAndTheOperatorsWordGiveTwoBits) {
  rotations_ = SmallSet(identity_, Calibration::kFull);
  config_.int2 = "accept";
  const CodecChoice choice = Good();
  EXPECT_EQ(Kinds(choice), (std::vector{CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2,
                                        CodecKind::kCrumbInt4, CodecKind::kRaw}));
  EXPECT_EQ(choice.ladder[0].rotation_set, rotations_->hash());
  EXPECT_THAT(choice.note, IsEmpty());
}

TEST_F(CodecChoiceTest, ACalibratedSetAndAGoodEvaluationGiveTwoBits) {
  rotations_ = SmallSet(identity_, Calibration::kFull);
  evaluations_ = {Evaluated()};
  const CodecChoice choice = Good();
  EXPECT_EQ(Kinds(choice).front(), CodecKind::kCrumbInt2);
  EXPECT_THAT(choice.note, IsEmpty());
  wish_.codec = "crumb-int2";
  EXPECT_EQ(Kinds(Good()).front(), CodecKind::kCrumbInt2);
  wish_.codec = "oscar-int2";  // another codec than the evaluated one
  EXPECT_THAT(Refused(), HasSubstr("no evaluation"));
}

TEST_F(CodecChoiceTest, AnEvaluationOfSomethingElseIsNone) {
  rotations_ = SmallSet(identity_, Calibration::kFull);
  for (int field = 0; field < 4; ++field) {
    Evaluation other = Evaluated();
    if (field == 0) other.model += "x";
    if (field == 1) other.revision += "x";
    if (field == 2) other.rotation[0] ^= 1;
    if (field == 3) other.codec = CodecKind::kCrumbK3V2;
    evaluations_ = {other};
    const CodecChoice choice = Good();
    EXPECT_EQ(Kinds(choice).front(), CodecKind::kCrumbInt4) << field;
    EXPECT_THAT(choice.note, HasSubstr("crumbctl quality record")) << field;
  }
}

TEST_F(CodecChoiceTest, ABadEvaluationIsNamedWithItsFigures) {
  rotations_ = SmallSet(identity_, Calibration::kFull);
  evaluations_ = {Evaluated()};
  evaluations_[0].perplexity_change = 0.021;
  EXPECT_EQ(Kinds(Good()).front(), CodecKind::kCrumbInt4);
  EXPECT_THAT(Good().note, HasSubstr("perplexity +2.1 %"));
  evaluations_[0] = Evaluated();
  evaluations_[0].kl = 0.051;
  EXPECT_THAT(Good().note, HasSubstr("quality.kl_millinats_max (50)"));
  evaluations_[0].kl = 0.05;
  EXPECT_EQ(Kinds(Good()).front(), CodecKind::kCrumbInt2);
}

TEST(EvaluationTest, EveryFieldIsChecked) {
  const Evaluation good{.model = "m",
                        .revision = "r",
                        .rotation = {},
                        .codec = CodecKind::kCrumbInt2,
                        .perplexity_change = -0.01,
                        .kl = 0,
                        .tokens = 1,
                        .date = "2026-02-28",
                        .source = "s"};
  EXPECT_TRUE(CheckEvaluation(good).ok());
  const auto refused = [&good](auto change, const char* field) {
    Evaluation bad = good;
    change(&bad);
    const absl::Status status = CheckEvaluation(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  };
  refused([](Evaluation* e) { e->model.clear(); }, "model");
  refused([](Evaluation* e) { e->revision.assign(2000, 'x'); }, "revision");
  refused([](Evaluation* e) { e->source.clear(); }, "source");
  refused([](Evaluation* e) { e->date = "2026-02-30"; }, "date");
  refused([](Evaluation* e) { e->date = "yesterday"; }, "date");
  refused([](Evaluation* e) { e->tokens = 0; }, "tokens");
  refused([](Evaluation* e) { e->perplexity_change = std::nan(""); }, "perplexity_change");
  refused([](Evaluation* e) { e->perplexity_change = -1; }, "perplexity_change");
  refused([](Evaluation* e) { e->kl = -0.1; }, "kl");
  refused([](Evaluation* e) { e->kl = INFINITY; }, "kl");
}

TEST_F(CodecChoiceTest, AnUncalibratedSetDoesNot) {
  rotations_ = SmallSet(identity_, Calibration::kNone);
  config_.int2 = "accept";
  const CodecChoice choice = Good();
  EXPECT_EQ(Kinds(choice).front(), CodecKind::kCrumbInt4);
  EXPECT_THAT(choice.note, HasSubstr("no query moments and means"));
}

TEST_F(CodecChoiceTest, DefaultPrecisionsOfTheOperator) {
  rotations_ = SmallSet(identity_, Calibration::kFull);
  config_.int2 = "accept";
  config_.default_precision = "k3v2";
  EXPECT_EQ(Kinds(Good()).front(), CodecKind::kCrumbK3V2);
  config_.default_precision = "int4";
  EXPECT_EQ(Kinds(Good()).front(), CodecKind::kCrumbInt4);
  EXPECT_THAT(Good().note, IsEmpty());
  config_.default_precision = "raw";
  EXPECT_EQ(Kinds(Good()), std::vector{CodecKind::kRaw});
  EXPECT_THAT(Good().note, IsEmpty());
}

TEST_F(CodecChoiceTest, WhatNoLossyCodecServesIsKeptRaw) {
  identity_.dtype = RawDtype::kFp16;
  EXPECT_EQ(Kinds(Good()), std::vector{CodecKind::kRaw});
  EXPECT_THAT(Good().note, HasSubstr("fp16"));
  identity_ = testing::MlaIdentity();
  EXPECT_EQ(Kinds(Good()), std::vector{CodecKind::kRaw});
  EXPECT_THAT(Good().note, HasSubstr("MLA"));
  identity_ = SmallIdentity();
  identity_.groups[0].k_dim = 96;  // no Hadamard matrix
  identity_.groups[0].v_dim = 96;
  EXPECT_EQ(Kinds(Good()), std::vector{CodecKind::kRaw});
  EXPECT_THAT(Good().note, HasSubstr("96"));
}

TEST_F(CodecChoiceTest, TwoBitsByNameNeedTheOperatorsWord) {
  rotations_ = SmallSet(identity_, Calibration::kFull);
  for (const char* codec :
       {"crumb-int2", "crumb-k3v2", "oscar-int2", "hadamard-int2", "naive-int2"}) {
    wish_.codec = codec;
    config_.int2 = "require_evaluation";
    const std::string message = Refused();
    EXPECT_THAT(message, HasSubstr(codec));
    EXPECT_THAT(message, HasSubstr("codec.int2: accept"));
    config_.int2 = "accept";
    const CodecChoice choice = Good();
    EXPECT_STREQ(ToString(choice.ladder.front().kind), codec);
    EXPECT_EQ(choice.ladder.back().kind, CodecKind::kRaw);
    EXPECT_THAT(choice.note, IsEmpty());
  }
}

TEST_F(CodecChoiceTest, OtherCodecsByNameNeedNoWord) {
  for (const char* codec : {"crumb-int4", "int4", "hadamard-int4", "raw"}) {
    wish_.codec = codec;
    EXPECT_STREQ(ToString(Good().ladder.front().kind), codec);
  }
}

TEST_F(CodecChoiceTest, OscarNeedsASet) {
  wish_.codec = "oscar-int2";
  config_.int2 = "accept";
  EXPECT_THAT(Refused(), HasSubstr("needs a rotation set for example/small at r1"));
}

TEST_F(CodecChoiceTest, CrumbInt2ByNameWithoutASetIsCalledUncalibrated) {
  wish_.codec = "crumb-int2";
  config_.int2 = "accept";
  EXPECT_THAT(Good().note, HasSubstr("uncalibrated"));
}

TEST_F(CodecChoiceTest, MetadataFormsOfOscar) {
  rotations_ = SmallSet(identity_, Calibration::kFull);
  config_.int2 = "accept";
  wish_.codec = "oscar-int2";
  wish_.metadata = "fp32";
  EXPECT_EQ(Good().ladder[0].meta, MetaForm::kFp32);
  wish_.metadata = "bf16";
  EXPECT_EQ(Good().ladder[0].meta, MetaForm::kBf16);
  wish_.metadata = "fp16";
  EXPECT_THAT(Refused(absl::StatusCode::kInvalidArgument), HasSubstr("bf16 or fp32"));
  wish_.codec = "crumb-int2";
  EXPECT_THAT(Refused(absl::StatusCode::kInvalidArgument), HasSubstr("only oscar-int2"));
  wish_.codec = "";
  EXPECT_THAT(Refused(absl::StatusCode::kInvalidArgument), HasSubstr("name codec oscar-int2"));
}

TEST_F(CodecChoiceTest, LossyByNameIsRefusedWhereItCannotBe) {
  wish_.codec = "crumb-int4";
  identity_.dtype = RawDtype::kFp8E4M3;
  EXPECT_THAT(Refused(), HasSubstr("ask for raw"));
  identity_ = SmallIdentity();
  identity_.groups[0].k_dim = 96;
  identity_.groups[0].v_dim = 96;
  EXPECT_THAT(Refused(), HasSubstr("crumb-int4"));
}

TEST_F(CodecChoiceTest, ASetThatDoesNotCoverTheLayersIsNoUse) {
  rotations_ = SmallSet(identity_, Calibration::kFull);
  config_.int2 = "accept";
  identity_.groups[0].layer_ids = {0, 1, 2};
  const CodecChoice choice = Good();
  EXPECT_EQ(Kinds(choice).front(), CodecKind::kCrumbInt4);
  EXPECT_THAT(choice.note, HasSubstr("2"));
  wish_.codec = "crumb-int2";
  Refused();
}

TEST_F(CodecChoiceTest, UnknownWordsAreInvalid) {
  wish_.codec = "zip";
  EXPECT_THAT(Refused(absl::StatusCode::kInvalidArgument), HasSubstr("zip"));
  wish_.codec = "";
  wish_.effort = "heroic";
  EXPECT_THAT(Refused(absl::StatusCode::kInvalidArgument), HasSubstr("heroic"));
}

TEST_F(CodecChoiceTest, EffortIsTheWishElseTheOperators) {
  config_.effort = "draft";
  EXPECT_EQ(Good().effort, Effort::kDraft);
  wish_.effort = "best";
  EXPECT_EQ(Good().effort, Effort::kBest);
}

TEST_F(CodecChoiceTest, LayoutsThatDifferInANamespaceShareCodecs) {
  const CodecChoice first = Good();
  identity_.name_space = "lora:1";
  const CodecChoice second = Good();
  EXPECT_EQ(first.codecs[0][0].get(), second.codecs[0][0].get());
  identity_.groups[0].layer_ids = {0, 5};
  EXPECT_NE(first.codecs[0][0].get(), Good().codecs[0][0].get());
}

}  // namespace
}  // namespace crumb
