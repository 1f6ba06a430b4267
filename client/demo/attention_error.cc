// Attention in double over FP32 inputs; see attention_error.h for what is measured.
#include "client/demo/attention_error.h"

#include <algorithm>
#include <cmath>

#include "cachesvc/base/check.h"

namespace crumb::demo {
namespace {

double Dot(const float* a, const float* b, size_t size) {
  double sum = 0.0;
  for (size_t i = 0; i < size; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// Softmax in place over the first `size` logits.
void Softmax(double* logits, size_t size) {
  const double top = *std::max_element(logits, logits + size);
  double sum = 0.0;
  for (size_t i = 0; i < size; ++i) sum += logits[i] = std::exp(logits[i] - top);
  for (size_t i = 0; i < size; ++i) logits[i] /= sum;
}

void AddScaled(double weight, const float* row, size_t size, double* out) {
  for (size_t i = 0; i < size; ++i) out[i] += weight * row[i];
}

// Sums over one layer.
struct Sums {
  double error2 = 0, logit2 = 0, error2_centred = 0, logit2_centred = 0;
  double output_error2 = 0, output2 = 0;
};

// One query's logits and their errors over the keys that it reads restored.
void AddLogits(const double* logits, const double* errors, size_t count, Sums& sums) {
  double error = 0, error2 = 0, logit = 0, logit2 = 0;
  for (size_t i = 0; i < count; ++i) {
    error += errors[i];
    error2 += errors[i] * errors[i];
    logit += logits[i];
    logit2 += logits[i] * logits[i];
  }
  const auto n = static_cast<double>(count);
  sums.error2 += error2;
  sums.logit2 += logit2;
  sums.error2_centred += error2 - error * error / n;
  sums.logit2_centred += logit2 - logit * logit / n;
}

double Ratio(double error2, double size2) { return size2 > 0 ? std::sqrt(error2 / size2) : 0.0; }

}  // namespace

AttentionReference::AttentionReference(const Sample& sample)
    : tokens_(sample.tokens),
      q_heads_(sample.q_heads),
      kv_heads_(sample.kv_heads),
      dim_(sample.dim) {
  CRUMB_CHECK(tokens_ > kFirstQuery);
  for (const SampleLayer& source : sample.layers) {
    Layer layer;
    layer.q = HeadMajor(source.q, q_heads_);
    layer.k = HeadMajor(source.k, kv_heads_);
    layer.v = HeadMajor(source.v, kv_heads_);
    Attend(layer);
    layers_.push_back(std::move(layer));
  }
}

std::vector<float> AttentionReference::HeadMajor(const std::vector<uint16_t>& values,
                                                 uint32_t heads) const {
  CRUMB_CHECK(values.size() == size_t{tokens_} * heads * dim_);
  std::vector<float> out(values.size());
  for (size_t token = 0; token < tokens_; ++token) {
    for (size_t head = 0; head < heads; ++head) {
      const uint16_t* from = values.data() + (token * heads + head) * dim_;
      float* to = out.data() + (head * tokens_ + token) * dim_;
      std::transform(from, from + dim_, to, FloatOfBf16);
    }
  }
  return out;
}

void AttentionReference::Attend(Layer& layer) const {
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim_));
  layer.logits.assign(size_t{q_heads_} * query_count() * tokens_, 0.0);
  layer.outputs.assign(size_t{q_heads_} * query_count() * dim_, 0.0);
  std::vector<double> weights(tokens_);
  for (size_t head = 0; head < q_heads_; ++head) {
    const size_t kv = head / (q_heads_ / kv_heads_) * tokens_ * dim_;
    for (size_t query = 0; query < query_count(); ++query) {
      const size_t token = kFirstQuery + query;
      const float* q = layer.q.data() + (head * tokens_ + token) * dim_;
      double* logits = layer.logits.data() + (head * query_count() + query) * tokens_;
      double* output = layer.outputs.data() + (head * query_count() + query) * dim_;
      for (size_t key = 0; key <= token; ++key) {
        logits[key] = scale * Dot(q, layer.k.data() + kv + key * dim_, dim_);
      }
      std::copy_n(logits, token + 1, weights.begin());
      Softmax(weights.data(), token + 1);
      for (size_t key = 0; key <= token; ++key) {
        AddScaled(weights[key], layer.v.data() + kv + key * dim_, dim_, output);
      }
    }
  }
}

AttentionError AttentionReference::CompareLayer(const Layer& exact,
                                                const SampleLayer& restored) const {
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim_));
  const std::vector<float> k = HeadMajor(restored.k, kv_heads_);
  const std::vector<float> v = HeadMajor(restored.v, kv_heads_);
  Sums sums;
  std::vector<double> weights(tokens_);
  std::vector<double> errors(tokens_);
  std::vector<double> output(dim_);
  for (size_t head = 0; head < q_heads_; ++head) {
    const size_t kv = head / (q_heads_ / kv_heads_) * tokens_ * dim_;
    for (size_t query = 0; query < query_count(); ++query) {
      const size_t token = kFirstQuery + query;
      const size_t end = token - kRecentTokens + 1;  // keys [kSinkTokens, end) are restored ones
      const float* q = exact.q.data() + (head * tokens_ + token) * dim_;
      const double* logits = exact.logits.data() + (head * query_count() + query) * tokens_;
      std::copy_n(logits, token + 1, weights.begin());
      for (size_t key = kSinkTokens; key < end; ++key) {
        weights[key] = scale * Dot(q, k.data() + kv + key * dim_, dim_);
        errors[key] = weights[key] - logits[key];
      }
      AddLogits(logits + kSinkTokens, errors.data() + kSinkTokens, end - kSinkTokens, sums);
      Softmax(weights.data(), token + 1);
      std::fill(output.begin(), output.end(), 0.0);
      for (size_t key = 0; key <= token; ++key) {
        const bool is_restored = key >= kSinkTokens && key < end;
        const std::vector<float>& values = is_restored ? v : exact.v;
        AddScaled(weights[key], values.data() + kv + key * dim_, dim_, output.data());
      }
      const double* wanted = exact.outputs.data() + (head * query_count() + query) * dim_;
      for (size_t i = 0; i < dim_; ++i) {
        sums.output_error2 += (output[i] - wanted[i]) * (output[i] - wanted[i]);
        sums.output2 += wanted[i] * wanted[i];
      }
    }
  }
  return {Ratio(sums.error2, sums.logit2), Ratio(sums.error2_centred, sums.logit2_centred),
          Ratio(sums.output_error2, sums.output2)};
}

AttentionError AttentionReference::Compare(const Sample& restored) const {
  CRUMB_CHECK(restored.layers.size() == layers_.size());
  AttentionError mean;
  const auto count = static_cast<double>(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const AttentionError one = CompareLayer(layers_[i], restored.layers[i]);
    mean.logit += one.logit / count;
    mean.logit_centred += one.logit_centred / count;
    mean.output += one.output / count;
  }
  return mean;
}

}  // namespace crumb::demo
