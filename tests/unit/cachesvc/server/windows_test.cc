// The table of windows and the rules of codec.windows.
#include "cachesvc/server/windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace crumb {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

WindowPolicy Of(const std::string& text, const std::string& model) {
  return WindowsOf(text, model).windows;
}

constexpr WindowPolicy kDefault{.on = true, .sink_tokens = 64, .recent_tokens = 256};
constexpr WindowPolicy kOff{};

TEST(WindowsTest, AutoAsksTheTableAndSaysWhereItsFiguresComeFrom) {
  EXPECT_EQ(Of("auto", "example/unknown"), kDefault);
  EXPECT_EQ(Of("auto", "Qwen/Qwen3-8B"),
            (WindowPolicy{.on = true, .sink_tokens = 128, .recent_tokens = 2048}));
  EXPECT_EQ(Of("auto", "zai-org/GLM-5.2"),
            (WindowPolicy{.on = true, .sink_tokens = 64, .recent_tokens = 512}));
  EXPECT_THAT(FormatWindows(WindowsOf("auto", "Qwen/Qwen3-8B")), HasSubstr("qwen3-8b.sh"));
  EXPECT_EQ(FormatWindows(WindowsOf("auto", "x")), "64/256 (the default: OSCAR's recipes)");
}

TEST(WindowsTest, TheConfigurationOverridesForAllModelsOrByName) {
  EXPECT_EQ(Of("off", "Qwen/Qwen3-8B"), kOff);
  EXPECT_EQ(FormatWindows(WindowsOf("off", "x")), "off (codec.windows)");
  const WindowPolicy own{.on = true, .sink_tokens = 4, .recent_tokens = 16};
  EXPECT_EQ(Of("4/16", "x"), own);
  const std::string rules = "*/Tiny*=4/16, my/*=off";
  EXPECT_EQ(Of(rules, "a/tiny-1"), own);
  EXPECT_EQ(Of(rules, "my/model"), kOff);
  EXPECT_EQ(Of(rules, "other"), kDefault) << "what no rule fits follows the table";
  EXPECT_EQ(Of("my/*=off, 4/16", "other"), own);
}

TEST(WindowsTest, AWindowOfTooManyPagesIsCutAndSaysSo) {
  Identity identity;
  identity.model = "x";
  identity.page_tokens = 8;
  const WindowRule cut = WindowsFor("64/65536", identity);
  EXPECT_EQ(cut.windows.sink_tokens, 64u);
  EXPECT_EQ(cut.windows.recent_tokens, 8u * 4096);
  EXPECT_EQ(FormatWindows(cut), "64/32768 (codec.windows, cut from 65536: at most 4096 pages)");
  identity.page_tokens = 16;
  EXPECT_EQ(WindowsFor("64/65536", identity).windows.recent_tokens, 65536u);
}

TEST(WindowsTest, WhatIsNoRuleIsRefusedWithTheRemedy) {
  for (const char* bad : {"", "64", "64/", "/256", "64/256/1", "-1/256", "64/65537", "=64/256",
                          "a=auto", "auto,off", "a=64/256,", "on", "64 /256x"}) {
    EXPECT_FALSE(ParseWindows(bad).ok()) << bad;
    EXPECT_THAT(std::string(ParseWindows(bad).status().message()), HasSubstr("write")) << bad;
  }
  EXPECT_TRUE(ParseWindows("0/0").ok());
}

TEST(WindowsTest, ACommaWithoutARuleIsNamedWithTheRemedy) {
  for (const char* bad : {"64/256,", ",64/256", "a=64/256, ,b=off", "a=off,,", ","}) {
    EXPECT_THAT(std::string(ParseWindows(bad).status().message()),
                AllOf(HasSubstr("\"" + std::string(bad) + "\""), HasSubstr("remove that comma")))
        << bad;
  }
  EXPECT_THAT(std::string(ParseWindows("").status().message()), HasSubstr("it is empty"));
}

}  // namespace
}  // namespace crumb
