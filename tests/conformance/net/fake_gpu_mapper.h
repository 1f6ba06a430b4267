// A mapper of GPU memory without a GPU: answers when it is told to, counts what is mapped, and
// fails the test when a mapping or a link is let go anywhere but through Unmap. One thread.
#ifndef CRUMB_TESTS_CONFORMANCE_NET_FAKE_GPU_MAPPER_H_
#define CRUMB_TESTS_CONFORMANCE_NET_FAKE_GPU_MAPPER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "cachesvc/net/gpu_memory.h"

namespace crumb {

class FakeGpuMapper final : public GpuMapper {
 public:
  bool at_once = true;  // answers in the Poll after Map
  size_t most = 1000;   // offers at a time

  ~FakeGpuMapper() override {
    within_ = true;
    offers_.clear();
    answers_.clear();
  }

  bool Map(const GpuOffer& offer) override {
    if (offers_.size() >= most) return false;
    offers_.push_back(offer);
    ++offered_;
    return true;
  }

  // The oldest offer.
  void Answer(UdsRefusal refusal = UdsRefusal::kNone) {
    ASSERT_FALSE(offers_.empty());
    GpuOffer offer = std::move(offers_.front());
    offers_.pop_front();
    GpuAnswer answer{.token = offer.token, .refusal = refusal, .mapping = {}};
    UdsGpuShare share;
    EXPECT_TRUE(ParseUdsGpuShare(offer.share, &share));
    if (refusal == UdsRefusal::kNone) {
      answer.mapping = {.address = ++last_id_ << 40,
                        .bytes = share.bytes,
                        .id = last_id_,
                        .link = offer.link != nullptr ? offer.link : MakeLink()};
      mapped_.insert(last_id_);
    }
    within_ = true;
    offer.link.reset();
    within_ = false;
    answers_.push_back(std::move(answer));
  }

  size_t Poll(absl::Span<GpuAnswer> answers) override {
    while (at_once && !offers_.empty()) Answer();
    const size_t count = std::min(answers.size(), answers_.size());
    for (size_t i = 0; i < count; ++i) {
      answers[i] = std::move(answers_.front());
      answers_.pop_front();
    }
    return count;
  }

  void Unmap(GpuMapping mapping) override {
    EXPECT_TRUE(mapping.id != 0 || mapping.link != nullptr) << "there is nothing to unmap";
    if (mapping.id != 0) {
      EXPECT_EQ(mapped_.erase(mapping.id), 1u) << "unmapped twice, or never mapped";
    }
    within_ = true;
    mapping = {};
    within_ = false;
  }

  size_t offers() const { return offers_.size(); }
  const GpuOffer& first() const { return offers_.front(); }
  size_t offered() const { return offered_; }  // ever
  size_t mapped() const { return mapped_.size(); }
  size_t links() const { return links_; }

 private:
  std::shared_ptr<GpuLink> MakeLink() {
    ++links_;
    std::shared_ptr<char> owner(new char, [this](char* byte) {
      EXPECT_TRUE(within_) << "a link ended on the transport's thread";
      --links_;
      delete byte;
    });
    return {owner, reinterpret_cast<GpuLink*>(owner.get())};
  }

  std::deque<GpuOffer> offers_;
  std::deque<GpuAnswer> answers_;
  std::set<uint64_t> mapped_;
  uint64_t last_id_ = 0;
  size_t offered_ = 0;
  size_t links_ = 0;
  bool within_ = false;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_CONFORMANCE_NET_FAKE_GPU_MAPPER_H_
