// The .pt reader: the three formats, and hostile files, each
// refused with a message that names what is wrong.
#include "gpu/codec/rotation_import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "gpu/codec/pickle.h"
#include "tests/unit/gpu/codec/pt_builder.h"

namespace crumb {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::MakePt;
using testing::MakePtEntries;
using testing::MakeZip;
using testing::PickleWriter;
using testing::PtSpec;
using testing::View;
using testing::ZipEntries;

std::string ErrorOf(const std::string& file) {
  const auto parsed = ParsePtRotation(View(file), "x.pt");
  return parsed.ok() ? "" : std::string(parsed.status().message());
}

// A file whose pickle is `pickle` and whose only storage is `data`.
std::string FileOf(const PickleWriter& pickle, const std::string& data = std::string(256, '\0')) {
  return MakeZip({{"a/data.pkl", pickle.str()}, {"a/data/0", data}});
}

// A rotation file with one layer, its rotation described by `tensor`, over 64 floats.
std::string OneTensor(const PickleWriter::TensorSpec& tensor) {
  PickleWriter pickle;
  pickle.Proto().EmptyDict().Mark().Text("format_version").Int(1).Text("layers");
  pickle.EmptyDict().Mark().Int(0).EmptyDict().Mark().Text("rotation").Tensor(tensor);
  pickle.SetItems().SetItems().SetItems().Stop();
  return FileOf(pickle, testing::FloatBytes(HadamardMatrix(8)));
}

TEST(PtRotation, ReadsAllThreeFormats) {
  const PtSpec shared;
  auto file = ParsePtRotation(View(MakePt(shared)), "v1.pt");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->layers.at(2).rotation, PtSpecMatrix(shared, 2));
  EXPECT_EQ(file->layers.at(2).eigenvalues.size(), 8u);

  const PtSpec per_head{
      .format_version = 2, .grouping = "per_kv_head", .heads = 4, .layer_ids = {1, 5}};
  file = ParsePtRotation(View(MakePt(per_head)), "v2.pt");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->layers.at(5).heads, 4u);
  EXPECT_EQ(file->layers.at(5).rotation, PtSpecMatrix(per_head, 1));

  const PtSpec companions{
      .format_version = 3, .layer_ids = {7}, .text_keys = true, .k_mean = true, .companions = true};
  file = ParsePtRotation(View(MakePt(companions)), "v3.pt");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->layers.at(7).mean_heads, 1u);
  EXPECT_EQ(file->layers.at(7).k_mean, std::vector<float>(8, 0.5f));
}

TEST(PtRotation, DeflatedFilesReadTheSame) {
  const PtSpec spec;
  const auto file =
      ParsePtRotation(View(MakeZip(MakePtEntries(spec), testing::ZipMethod::kDeflated)), "z.pt");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->layers.at(1).rotation, PtSpecMatrix(spec, 1));
}

TEST(PtRotation, StridedTensorsReadByTheirStrides) {
  const std::vector<float> h = HadamardMatrix(8);
  const auto file = ParsePtRotation(
      View(OneTensor({.elements = 64, .sizes = {8, 8}, .strides = {1, 8}})), "t.pt");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->layers.at(0).rotation, h);  // symmetric: the transpose is the same
}

TEST(PtRotation, NarrowFloatsWiden) {
  PickleWriter pickle;
  pickle.Proto().EmptyDict().Mark().Text("format_version").Int(1).Text("layers");
  pickle.EmptyDict().Mark().Int(0).EmptyDict().Mark().Text("rotation");
  pickle.Tensor({.type = "HalfStorage", .elements = 16, .sizes = {4, 4}, .strides = {4, 1}});
  pickle.SetItems().SetItems().SetItems().Stop();
  std::string data;
  for (const float value : HadamardMatrix(4)) data.append(value > 0 ? "\x00\x38" : "\x00\xb8", 2);
  auto file = ParsePtRotation(View(FileOf(pickle, data)), "half.pt");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->layers.at(0).rotation, HadamardMatrix(4));
}

TEST(PtRotation, MeansAndMissingLayersWhenCombined) {
  const auto k = ParsePtRotation(
      View(MakePt({.format_version = 3, .layer_ids = {0, 1}, .k_mean = true})), "k.pt");
  const auto v = ParsePtRotation(
      View(MakePt({.objective = "sst_r_h_pbr", .dim = 16, .layer_ids = {0, 1}})), "v.pt");
  const auto short_v =
      ParsePtRotation(View(MakePt({.objective = "sst_r_h_pbr", .layer_ids = {0}})), "v.pt");
  ASSERT_TRUE(k.ok() && v.ok() && short_v.ok());
  const CombineOptions options{.model = "m", .revision = "r"};
  const auto contents = CombinePtFiles(*k, *v, options);
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->layers[1].k_mean[0], 1.5f);
  EXPECT_EQ(contents->layers[1].v.dim, 16u);
  EXPECT_TRUE(RotationSet::Make(*contents).ok());
  EXPECT_THAT(std::string(CombinePtFiles(*k, *short_v, options).status().message()),
              HasSubstr("layer 1 is in k.pt but not in v.pt"));
  EXPECT_THAT(std::string(CombinePtFiles(*short_v, *k, options).status().message()),
              HasSubstr("swapped"));
}

TEST(PtRotation, RefusesMatricesThatAreNotOrthogonal) {
  EXPECT_THAT(ErrorOf(MakePt({.matrix_error = 0.1f})),
              AllOf(HasSubstr("x.pt: layer 2"), HasSubstr("not orthogonal")));
  EXPECT_THAT(ErrorOf(MakePt({.matrix_error = NAN})), HasSubstr("not orthogonal"));
  EXPECT_THAT(ErrorOf(MakePt({.companions = true, .companion_error = 0.01f})),
              AllOf(HasSubstr("q_rotation differs"), HasSubstr("not supported")));
}

TEST(PtRotation, RefusesWhatIsNoTorchZip) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("zip with 0 entries"));
  EXPECT_THAT(ErrorOf("\x80\x02}q."), HasSubstr("not a readable zip"));
  EXPECT_THAT(ErrorOf(MakeZip({{"a/other", "x"}})), HasSubstr("without data.pkl"));
  EXPECT_THAT(ErrorOf(MakeZip({{"a/data.pkl", "."}, {"b/data.pkl", "."}})),
              HasSubstr("two data.pkl"));
  ZipEntries entries = MakePtEntries({});
  entries[1].second = "big";
  EXPECT_THAT(ErrorOf(MakeZip(entries)), HasSubstr("big-endian"));
}

TEST(PtRotation, RefusesZipBombsBeforeUnpacking) {
  ZipEntries entries = MakePtEntries({});
  entries.emplace_back("archive/data/bomb", std::string(64u << 20, '\0'));
  const std::string bomb = MakeZip(entries, testing::ZipMethod::kDeflated);
  ASSERT_LT(bomb.size(), 200000u);
  EXPECT_THAT(ErrorOf(bomb), HasSubstr("a zip bomb?"));
}

TEST(PtRotation, DamagedDataIsFoundByTheCrc) {
  const std::string file = MakePt({});
  const std::string data = testing::FloatBytes(testing::PtSpecMatrix({}, 1));
  const size_t at = file.find(data);
  ASSERT_NE(at, std::string::npos);
  std::string damaged = file;
  damaged[at + 7] = static_cast<char>(damaged[at + 7] ^ 1);
  EXPECT_THAT(ErrorOf(damaged), AllOf(HasSubstr("layer 1"), HasSubstr("CRC")));
}

TEST(PtRotation, RefusesStoragesThatAreShorterThanClaimed) {
  ZipEntries entries = MakePtEntries({});
  entries[2].second.resize(entries[2].second.size() - 4);
  EXPECT_THAT(ErrorOf(MakeZip(entries)),
              AllOf(HasSubstr("storage '0' has 252 bytes"), HasSubstr("claims 256")));
  entries.erase(entries.begin() + 2);
  EXPECT_THAT(ErrorOf(MakeZip(entries)), HasSubstr("'archive/data/0' is missing"));
}

TEST(PtRotation, RefusesTensorsThatReachOutsideTheirStorage) {
  const auto error = [](PickleWriter::TensorSpec spec) { return ErrorOf(OneTensor(spec)); };
  EXPECT_THAT(error({.elements = 64, .sizes = {8, 8}, .strides = {9, 1}}),
              HasSubstr("reaches element 70 of a storage of 64"));
  EXPECT_THAT(error({.elements = 64, .offset = 1, .sizes = {8, 8}, .strides = {8, 1}}),
              HasSubstr("reaches element 64"));
  EXPECT_THAT(error({.elements = 64, .offset = -1, .sizes = {8, 8}, .strides = {8, 1}}),
              HasSubstr("tensor offset -1"));
  EXPECT_THAT(error({.elements = 64, .sizes = {8, 8}, .strides = {-8, 1}}),
              HasSubstr("size 8 and stride -8"));
  EXPECT_THAT(error({.elements = 64, .sizes = {-8, 8}, .strides = {8, 1}}), HasSubstr("size -8"));
  EXPECT_THAT(error({.elements = 64, .sizes = {8, 8}, .strides = {INT64_MAX, 1}}),
              HasSubstr("stride 9223372036854775807"));
  EXPECT_THAT(error({.elements = 64, .sizes = {INT64_MAX, 8}, .strides = {0, 1}}),
              HasSubstr("size 9223372036854775807"));
  EXPECT_THAT(error({.elements = -64, .sizes = {8, 8}, .strides = {8, 1}}),
              HasSubstr("a storage of -64 elements"));
  EXPECT_THAT(error({.elements = INT64_MAX, .sizes = {8, 8}, .strides = {8, 1}}),
              HasSubstr("a storage of 9223372036854775807 elements"));
  EXPECT_THAT(error({.elements = 64, .sizes = {8, 8}, .strides = {8}}), HasSubstr("not a tensor"));
  EXPECT_THAT(error({.elements = 64, .sizes = {2, 2, 2, 2, 4}, .strides = {0, 0, 0, 0, 1}}),
              HasSubstr("1 to 4 dimensions"));
  EXPECT_THAT(error({.elements = 64, .sizes = {1048576, 1048576}, .strides = {0, 0}}),
              HasSubstr("square matrices of at most 1024"));
  EXPECT_THAT(error({.elements = 64, .sizes = {8, 4}, .strides = {8, 1}}),
              HasSubstr("shape 1 x 8 x 4"));
  EXPECT_THAT(error({.elements = 64, .sizes = {64}, .strides = {1}}), HasSubstr("1 dimensions"));
}

TEST(PtRotation, TensorsBeyondTheBudgetAreNeverAllocated) {
  // A small file that asks for 4 GiB by strides of zero.
  EXPECT_THAT(
      ErrorOf(OneTensor({.elements = 64, .sizes = {1024, 1024, 1024}, .strides = {0, 0, 0}})),
      HasSubstr("tensors of over 1 GiB"));
}

TEST(PtRotation, RefusesWrongDictionaries) {
  const auto error = [](auto fill) {
    PickleWriter pickle;
    pickle.Proto();
    fill(pickle);
    pickle.Stop();
    return ErrorOf(FileOf(pickle));
  };
  EXPECT_THAT(error([](PickleWriter& p) { p.Int(1); }), HasSubstr("rotation file but: integer"));
  EXPECT_THAT(error([](PickleWriter& p) {
                p.Tensor({.elements = 64, .sizes = {8, 8}, .strides = {8, 1}});
              }),
              HasSubstr("rotation file but: tensor"));
  EXPECT_THAT(error([](PickleWriter& p) { p.EmptyDict(); }), HasSubstr("'format_version'"));
  EXPECT_THAT(
      error([](PickleWriter& p) { p.EmptyDict().Mark().Text("format_version").Int(4).SetItems(); }),
      HasSubstr("not 1, 2 or 3"));
  EXPECT_THAT(
      error([](PickleWriter& p) { p.EmptyDict().Mark().Text("format_version").Int(1).SetItems(); }),
      HasSubstr("'layers' is not a dictionary"));
  const auto layer = [&](auto key_and_value) {
    return error([&](PickleWriter& p) {
      p.EmptyDict().Mark().Text("format_version").Int(1).Text("layers").EmptyDict().Mark();
      key_and_value(p);
      p.SetItems().SetItems();
    });
  };
  EXPECT_THAT(layer([](PickleWriter& p) { p.Text("one").EmptyDict(); }),
              HasSubstr("layer key 'one'"));
  EXPECT_THAT(layer([](PickleWriter& p) { p.Int(-1).EmptyDict(); }), HasSubstr("layer key"));
  EXPECT_THAT(layer([](PickleWriter& p) { p.Int(0).EmptyDict(); }),
              HasSubstr("layer 0: no 'rotation'"));
  EXPECT_THAT(layer([](PickleWriter& p) { p.Int(0).Int(7); }), HasSubstr("not a small dictionary"));
  EXPECT_THAT(layer([](PickleWriter& p) {
                p.Int(0).EmptyDict().Mark().Text("rotation").Int(5).SetItems();
              }),
              HasSubstr("not a tensor but: integer"));
  EXPECT_THAT(ErrorOf(MakePt({.objective = "qqt\n"})), HasSubstr("'objective' holds a control"));
  EXPECT_THAT(ErrorOf(MakePt({.layer_ids = {4, 4}})), HasSubstr("layer 4 is there twice"));
}

// --- the pickle alone ---

std::string PickleError(const PickleWriter& pickle) {
  const auto parsed = ParsePickle(View(pickle.str()));
  return parsed.ok() ? "" : std::string(parsed.status().message());
}

TEST(Pickle, RefusesToNameWhatItDoesNotKnow) {
  PickleWriter system;
  system.Proto().Global("os", "system").Mark().Text("true").Tuple().Reduce().Stop();
  EXPECT_THAT(PickleError(system),
              AllOf(HasSubstr("GLOBAL at byte 2"), HasSubstr("'os.system'"), HasSubstr("refused")));
  PickleWriter builtin;
  builtin.Proto().Global("builtins", "eval\x1b[2J").Stop();
  EXPECT_THAT(PickleError(builtin), HasSubstr("eval\\x1b[2J"));  // no terminal escapes pass
  PickleWriter storage;
  storage.Proto().Global("torch", "LongStorage").Stop();
  EXPECT_THAT(PickleError(storage), HasSubstr("'torch.LongStorage'"));
  PickleWriter overlong;
  overlong.Proto().Global(std::string(1000, 'm'), "x").Stop();
  EXPECT_THAT(PickleError(overlong), HasSubstr("overlong name"));
}

TEST(Pickle, RefusesEveryOtherOpcodeByName) {
  for (const auto& [code, name] : {std::pair{"i", "INST"},
                                   {"o", "OBJ"},
                                   {"b", "BUILD"},
                                   {"\x81", "NEWOBJ"},
                                   {"\x93", "STACK_GLOBAL"},
                                   {"\x82", "EXT1"},
                                   {"2", "DUP"},
                                   {"P", "PERSID"},
                                   {"\x8b", "LONG4"}}) {
    PickleWriter pickle;
    pickle.Proto().EmptyDict().Raw(code);
    EXPECT_THAT(PickleError(pickle), AllOf(HasSubstr(std::string("opcode ") + name + " at byte 3"),
                                           HasSubstr("refused")));
  }
  PickleWriter unknown;
  unknown.Proto().Raw("\xff");
  EXPECT_THAT(PickleError(unknown), HasSubstr("byte 2 of the pickle is no opcode"));
  EXPECT_THAT(PickleError(PickleWriter().Raw("\x80\x04")), HasSubstr("protocol 4"));
}

TEST(Pickle, CallsOnlyWhatItKnows) {
  PickleWriter ordered;
  ordered.Proto().Global("collections", "OrderedDict").Mark().Int(1).Tuple().Reduce().Stop();
  EXPECT_THAT(PickleError(ordered), HasSubstr("a call of 'collections OrderedDict'"));
  PickleWriter storage;
  storage.Proto().Global("torch", "FloatStorage").Raw(")").Reduce().Stop();
  EXPECT_THAT(PickleError(storage), HasSubstr("a call of 'torch FloatStorage'"));
  PickleWriter number;
  number.Proto().Int(1).Raw(")").Reduce().Stop();
  EXPECT_THAT(PickleError(number), HasSubstr("not a known name"));
  PickleWriter id;
  id.Proto().Mark().Text("module").Int(1).Int(2).Int(3).Int(4).Tuple().Raw("Q").Stop();
  EXPECT_THAT(PickleError(id), HasSubstr("BINPERSID at byte 23: not a storage"));
}

TEST(Pickle, BoundsEverything) {
  PickleWriter nested;
  nested.Proto();
  for (int i = 0; i < 300; ++i) nested.Mark();
  EXPECT_THAT(PickleError(nested), HasSubstr("nested too deeply"));
  PickleWriter deep;
  deep.Proto();
  for (int i = 0; i < 70000; ++i) deep.Raw("N");
  EXPECT_THAT(PickleError(deep), HasSubstr("too deep a stack"));
  PickleWriter many;
  many.Proto();
  many.Raw("N");
  for (int i = 0; i < 300000; ++i) many.Raw("\x85");
  EXPECT_THAT(PickleError(many), HasSubstr("too many values"));
  PickleWriter memo;
  memo.Proto().Int(1).Put(0xffffffff);
  EXPECT_THAT(PickleError(memo), HasSubstr("memo index 4294967295"));
  EXPECT_THAT(PickleError(PickleWriter().Proto().Get(3)), HasSubstr("never stored"));
  EXPECT_THAT(PickleError(PickleWriter().Proto().Raw(std::string_view("X\xff\xff\xff\x7f", 5))),
              HasSubstr("a string of 2147483647 bytes"));
  EXPECT_THAT(PickleError(PickleWriter().Proto().Raw("\x8a\x10")), HasSubstr("of 16 bytes"));
}

TEST(Pickle, SelfReferenceIsHarmless) {
  // A dictionary that holds itself: readers walk a fixed depth, so nothing loops.
  PickleWriter pickle;
  pickle.Proto().EmptyDict().Put(0).Mark().Text("layers").Get(0);
  pickle.Text("format_version").Int(1).SetItems().Stop();
  EXPECT_EQ(PickleError(pickle), "");
  EXPECT_THAT(ErrorOf(FileOf(pickle)), HasSubstr("layer key 'layers'"));
}

TEST(Pickle, UnderflowsAndLeftoversAreRefused) {
  EXPECT_THAT(PickleError(PickleWriter().Proto().Raw("R")), HasSubstr("more than is on the stack"));
  EXPECT_THAT(PickleError(PickleWriter().Proto().Raw("s")), HasSubstr("more than is on the stack"));
  EXPECT_THAT(PickleError(PickleWriter().Proto().Raw("u")), HasSubstr("no mark"));
  EXPECT_THAT(PickleError(PickleWriter().Proto().Raw("(u")), HasSubstr("no container"));
  EXPECT_THAT(PickleError(PickleWriter().Proto().EmptyDict().Mark().Raw("\x85")),
              HasSubstr("more than is on the stack"));
  EXPECT_THAT(PickleError(PickleWriter().Proto().EmptyDict().Mark().Int(1).SetItems()),
              HasSubstr("a key alone"));
  EXPECT_THAT(PickleError(PickleWriter().Proto().Int(1).Mark().Int(1).SetItems()),
              HasSubstr("into integer instead of dict"));
  EXPECT_THAT(PickleError(PickleWriter().Proto().Int(1).Int(2).Stop()),
              HasSubstr("more than one value"));
  EXPECT_THAT(PickleError(PickleWriter().Proto().Int(1).Stop().Int(2)),
              HasSubstr("bytes follow the end"));
  EXPECT_THAT(PickleError(PickleWriter().Proto().Int(1)), HasSubstr("without STOP"));
}

TEST(Pickle, IntegersAndFloatsAreRead) {
  const auto value = [](const PickleWriter& pickle) {
    auto parsed = ParsePickle(View(pickle.str()));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.ok() ? parsed->at(parsed->root) : PickleValue{};
  };
  for (const int64_t number : {int64_t{0}, int64_t{255}, int64_t{65535}, int64_t{-1},
                               int64_t{-2147483648}, int64_t{1} << 40, INT64_MIN, INT64_MAX}) {
    EXPECT_EQ(value(PickleWriter().Proto().Int(number).Stop()).integer, number);
  }
  EXPECT_EQ(value(PickleWriter().Proto().Raw("\x8a\x01\xff").Stop()).integer, -1);
  EXPECT_EQ(value(PickleWriter().Proto().Raw(std::string_view("\x8a\x00", 2)).Stop()).integer, 0);
  EXPECT_EQ(value(PickleWriter()
                      .Proto()
                      .Raw(std::string_view("G\x3f\xf8\x00\x00\x00\x00\x00\x00", 9))
                      .Stop())
                .real,
            1.5);
}

}  // namespace
}  // namespace crumb
