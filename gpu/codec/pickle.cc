// The interpreter: one table of opcodes, a handler for each that is known. See pickle.h.
// PROMISE: terminates after at most one step per input byte; allocates in proportion to the input.
#include "gpu/codec/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"

namespace crumb {
namespace {

constexpr absl::string_view kRebuildTensor = "torch._utils _rebuild_tensor_v2";
constexpr absl::string_view kOrderedDict = "collections OrderedDict";
struct StorageName {
  absl::string_view global;
  StorageType type;
};
constexpr std::array<StorageName, 4> kStorages = {{
    {"torch FloatStorage", StorageType::kFloat},
    {"torch DoubleStorage", StorageType::kDouble},
    {"torch HalfStorage", StorageType::kHalf},
    {"torch BFloat16Storage", StorageType::kBFloat16},
}};
constexpr size_t kGlobalLineBytesMax = 256;
constexpr size_t kTensorDimsMax = 4;

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

class Machine {
 public:
  explicit Machine(Bytes data) : reader_(data), total_(data.size()) {}

  absl::StatusOr<Pickle> Run();

  // --- handlers, one per known opcode; the table below names them ---
  absl::Status Proto();
  absl::Status Stop();
  absl::Status Mark();
  absl::Status None() { return Push({.kind = PickleKind::kNone}); }
  absl::Status True() { return Push({.kind = PickleKind::kBool, .integer = 1}); }
  absl::Status False() { return Push({.kind = PickleKind::kBool, .integer = 0}); }
  absl::Status BinInt() { return PushInt(reader_.Read<int32_t>()); }
  absl::Status BinInt1() { return PushInt(reader_.Read<uint8_t>()); }
  absl::Status BinInt2() { return PushInt(reader_.Read<uint16_t>()); }
  absl::Status Long1();
  absl::Status BinFloat();
  absl::Status BinUnicode() { return PushString(reader_.Read<uint32_t>()); }
  absl::Status ShortBinUnicode() { return PushString(reader_.Read<uint8_t>()); }
  absl::Status EmptyTuple() { return Push({.kind = PickleKind::kTuple}); }
  absl::Status EmptyList() { return Push({.kind = PickleKind::kList}); }
  absl::Status EmptyDict() { return Push({.kind = PickleKind::kDict}); }
  absl::Status Tuple();
  absl::Status Tuple1() { return TupleOf(1); }
  absl::Status Tuple2() { return TupleOf(2); }
  absl::Status Tuple3() { return TupleOf(3); }
  absl::Status Append() { return AddItems(stack_.size() - 1, PickleKind::kList); }
  absl::Status Appends() { return AddMarked(PickleKind::kList); }
  absl::Status SetItem() { return AddItems(stack_.size() - 2, PickleKind::kDict); }
  absl::Status SetItems() { return AddMarked(PickleKind::kDict); }
  absl::Status BinPut() { return Memoize(reader_.Read<uint8_t>()); }
  absl::Status LongBinPut() { return Memoize(reader_.Read<uint32_t>()); }
  absl::Status BinGet() { return Recall(reader_.Read<uint8_t>()); }
  absl::Status LongBinGet() { return Recall(reader_.Read<uint32_t>()); }
  absl::Status Global();
  absl::Status Reduce();
  absl::Status BinPersId();

 private:
  absl::Status Step();
  absl::Status Push(PickleValue value);
  absl::Status PushHandle(PickleHandle handle);
  absl::Status PushInt(int64_t value) { return Push({.kind = PickleKind::kInt, .integer = value}); }
  absl::Status PushString(size_t size);
  absl::Status TupleOf(size_t count);
  absl::Status AddItems(size_t first, PickleKind kind);
  absl::Status AddMarked(PickleKind kind);
  absl::Status Memoize(uint32_t index);
  absl::Status Recall(uint32_t index);
  absl::StatusOr<size_t> PopMark();
  absl::Status RebuildTensor(const PickleValue& arguments);
  absl::StatusOr<absl::string_view> Line();
  // Items that an opcode may take from the stack: not those below the innermost mark.
  size_t available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  const PickleValue& top() const { return pickle_.values[stack_.back()]; }

  ByteReader reader_;
  size_t total_;
  Pickle pickle_;
  std::vector<PickleHandle> stack_;
  std::vector<size_t> marks_;
  std::vector<PickleHandle> memo_;  // value + 1; 0 = empty
  bool stopped_ = false;
};

using Handler = absl::Status (Machine::*)();
struct Opcode {
  char code;
  const char* name;
  uint8_t takes;              // items it needs above the innermost mark
  Handler handler = nullptr;  // null: refused by name
};

// Every opcode of the pickle protocols 0 to 5.
constexpr Opcode kOpcodes[] = {
    {'\x80', "PROTO", 0, &Machine::Proto},
    {'.', "STOP", 1, &Machine::Stop},
    {'(', "MARK", 0, &Machine::Mark},
    {'N', "NONE", 0, &Machine::None},
    {'\x88', "NEWTRUE", 0, &Machine::True},
    {'\x89', "NEWFALSE", 0, &Machine::False},
    {'J', "BININT", 0, &Machine::BinInt},
    {'K', "BININT1", 0, &Machine::BinInt1},
    {'M', "BININT2", 0, &Machine::BinInt2},
    {'\x8a', "LONG1", 0, &Machine::Long1},
    {'G', "BINFLOAT", 0, &Machine::BinFloat},
    {'X', "BINUNICODE", 0, &Machine::BinUnicode},
    {'\x8c', "SHORT_BINUNICODE", 0, &Machine::ShortBinUnicode},
    {')', "EMPTY_TUPLE", 0, &Machine::EmptyTuple},
    {']', "EMPTY_LIST", 0, &Machine::EmptyList},
    {'}', "EMPTY_DICT", 0, &Machine::EmptyDict},
    {'t', "TUPLE", 0, &Machine::Tuple},
    {'\x85', "TUPLE1", 1, &Machine::Tuple1},
    {'\x86', "TUPLE2", 2, &Machine::Tuple2},
    {'\x87', "TUPLE3", 3, &Machine::Tuple3},
    {'a', "APPEND", 2, &Machine::Append},
    {'e', "APPENDS", 0, &Machine::Appends},
    {'s', "SETITEM", 3, &Machine::SetItem},
    {'u', "SETITEMS", 0, &Machine::SetItems},
    {'q', "BINPUT", 1, &Machine::BinPut},
    {'r', "LONG_BINPUT", 1, &Machine::LongBinPut},
    {'h', "BINGET", 0, &Machine::BinGet},
    {'j', "LONG_BINGET", 0, &Machine::LongBinGet},
    {'c', "GLOBAL", 0, &Machine::Global},
    {'R', "REDUCE", 2, &Machine::Reduce},
    {'Q', "BINPERSID", 1, &Machine::BinPersId},
    {'0', "POP", 0},
    {'1', "POP_MARK", 0},
    {'2', "DUP", 0},
    {'F', "FLOAT", 0},
    {'I', "INT", 0},
    {'L', "LONG", 0},
    {'P', "PERSID", 0},
    {'S', "STRING", 0},
    {'T', "BINSTRING", 0},
    {'U', "SHORT_BINSTRING", 0},
    {'V', "UNICODE", 0},
    {'b', "BUILD", 0},
    {'d', "DICT", 0},
    {'g', "GET", 0},
    {'i', "INST", 0},
    {'l', "LIST", 0},
    {'o', "OBJ", 0},
    {'p', "PUT", 0},
    {'\x81', "NEWOBJ", 0},
    {'\x82', "EXT1", 0},
    {'\x83', "EXT2", 0},
    {'\x84', "EXT4", 0},
    {'\x8b', "LONG4", 0},
    {'B', "BINBYTES", 0},
    {'C', "SHORT_BINBYTES", 0},
    {'\x8d', "BINUNICODE8", 0},
    {'\x8e', "BINBYTES8", 0},
    {'\x8f', "EMPTY_SET", 0},
    {'\x90', "ADDITEMS", 0},
    {'\x91', "FROZENSET", 0},
    {'\x92', "NEWOBJ_EX", 0},
    {'\x93', "STACK_GLOBAL", 0},
    {'\x94', "MEMOIZE", 0},
    {'\x95', "FRAME", 0},
    {'\x96', "BYTEARRAY8", 0},
    {'\x97', "NEXT_BUFFER", 0},
    {'\x98', "READONLY_BUFFER", 0},
};

const Opcode* FindOpcode(char code) {
  const auto* found = std::find_if(std::begin(kOpcodes), std::end(kOpcodes),
                                   [code](const Opcode& op) { return op.code == code; });
  return found == std::end(kOpcodes) ? nullptr : found;
}

absl::StatusOr<Pickle> Machine::Run() {
  while (!stopped_) CRUMB_TRY(Step());
  return std::move(pickle_);
}

absl::Status Machine::Step() {
  const size_t position = total_ - reader_.remaining();
  const auto code = static_cast<char>(reader_.Read<uint8_t>());
  if (!reader_.ok()) return Bad("pickle ends without STOP: truncated");
  const Opcode* opcode = FindOpcode(code);
  if (opcode == nullptr) {
    return Bad(absl::StrCat("byte ", position, " of the pickle is no opcode"));
  }
  absl::Status status;
  if (opcode->handler == nullptr) {
    status = Bad("not used by rotation files, and refused");
  } else if (available() < opcode->takes) {
    status = Bad("takes more than is on the stack");
  } else {
    status = (this->*opcode->handler)();
    if (status.ok() && !reader_.ok()) status = Bad("truncated");
  }
  if (status.ok()) return status;
  return Bad(
      absl::StrCat("pickle opcode ", opcode->name, " at byte ", position, ": ", status.message()));
}

absl::Status Machine::Push(PickleValue value) {
  if (pickle_.values.size() >= kPickleValuesMax) return Bad("too many values");
  pickle_.values.push_back(std::move(value));
  return PushHandle(static_cast<PickleHandle>(pickle_.values.size() - 1));
}

absl::Status Machine::PushHandle(PickleHandle handle) {
  if (stack_.size() >= kPickleStackMax) return Bad("too deep a stack");
  stack_.push_back(handle);
  return absl::OkStatus();
}

absl::Status Machine::Proto() {
  const auto version = reader_.Read<uint8_t>();
  if (version != 2) return Bad(absl::StrCat("protocol ", version, "; torch.save writes 2"));
  return absl::OkStatus();
}

absl::Status Machine::Stop() {
  if (stack_.size() != 1 || !marks_.empty()) return Bad("more than one value is left");
  if (reader_.remaining() != 0) return Bad("bytes follow the end");
  pickle_.root = stack_.back();
  stopped_ = true;
  return absl::OkStatus();
}

absl::Status Machine::Mark() {
  if (marks_.size() >= kPickleMarksMax) return Bad("nested too deeply");
  marks_.push_back(stack_.size());
  return absl::OkStatus();
}

absl::StatusOr<size_t> Machine::PopMark() {
  if (marks_.empty()) return Bad("no mark on the stack");
  const size_t mark = marks_.back();
  marks_.pop_back();
  return mark;
}

absl::Status Machine::Long1() {
  const auto size = reader_.Read<uint8_t>();
  if (size > sizeof(int64_t)) return Bad(absl::StrCat("an integer of ", size, " bytes"));
  const Bytes bytes = reader_.ReadBytes(size);
  if (bytes.empty()) return PushInt(0);
  // Two's complement, little-endian, sign-extended from the last byte.
  uint64_t value = (bytes.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
  for (size_t i = bytes.size(); i > 0; --i) value = value << 8 | bytes[i - 1];
  return PushInt(static_cast<int64_t>(value));
}

absl::Status Machine::BinFloat() {
  uint64_t bits = 0;  // big-endian, unlike the rest
  for (const uint8_t byte : reader_.ReadArray<8>()) bits = bits << 8 | byte;
  return Push({.kind = PickleKind::kFloat, .real = std::bit_cast<double>(bits)});
}

absl::Status Machine::PushString(size_t size) {
  if (size > kPickleStringBytesMax) return Bad(absl::StrCat("a string of ", size, " bytes"));
  const Bytes bytes = reader_.ReadBytes(size);
  return Push({.kind = PickleKind::kString, .text = std::string(bytes.begin(), bytes.end())});
}

absl::Status Machine::Tuple() {
  CRUMB_ASSIGN(const size_t mark, PopMark());
  return TupleOf(stack_.size() - mark);
}

absl::Status Machine::TupleOf(size_t count) {
  PickleValue tuple{.kind = PickleKind::kTuple};
  tuple.items.assign(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
  stack_.resize(stack_.size() - count);
  return Push(std::move(tuple));
}

absl::Status Machine::AddMarked(PickleKind kind) {
  CRUMB_ASSIGN(const size_t mark, PopMark());
  return AddItems(mark, kind);
}

// Moves stack items from `first` on into the container right below them.
absl::Status Machine::AddItems(size_t first, PickleKind kind) {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (first <= floor) return Bad("no container below the items");
  PickleValue& container = pickle_.values[stack_[first - 1]];
  if (container.kind != kind) {
    return Bad(absl::StrCat("into ", ToString(container.kind), " instead of ", ToString(kind)));
  }
  if (kind == PickleKind::kDict && (stack_.size() - first) % 2 != 0) return Bad("a key alone");
  container.items.insert(container.items.end(), stack_.begin() + static_cast<ptrdiff_t>(first),
                         stack_.end());
  stack_.resize(first);
  return absl::OkStatus();
}

absl::Status Machine::Memoize(uint32_t index) {
  if (index >= kPickleMemoMax) {
    return Bad(absl::StrCat("memo index ", index, "; at most ", kPickleMemoMax));
  }
  if (index >= memo_.size()) memo_.resize(index + 1, 0);
  memo_[index] = stack_.back() + 1;
  return absl::OkStatus();
}

absl::Status Machine::Recall(uint32_t index) {
  if (index >= memo_.size() || memo_[index] == 0) {
    return Bad(absl::StrCat("memo index ", index, " was never stored"));
  }
  return PushHandle(memo_[index] - 1);
}

absl::StatusOr<absl::string_view> Machine::Line() {
  absl::string_view line;
  for (size_t size = 0; size <= kGlobalLineBytesMax; ++size) {
    const Bytes byte = reader_.ReadBytes(1);
    if (byte.empty()) return Bad("truncated");
    const auto* text = reinterpret_cast<const char*>(byte.data());
    if (*text == '\n') return line;
    line = size == 0 ? absl::string_view(text, 1) : absl::string_view(line.data(), size + 1);
  }
  return Bad("an overlong name");
}

absl::Status Machine::Global() {
  CRUMB_ASSIGN(const absl::string_view module, Line());
  CRUMB_ASSIGN(const absl::string_view name, Line());
  PickleValue value{.kind = PickleKind::kGlobal, .text = absl::StrCat(module, " ", name)};
  if (value.text == kRebuildTensor || value.text == kOrderedDict) return Push(std::move(value));
  for (const StorageName& storage : kStorages) {
    if (value.text != storage.global) continue;
    value.storage_type = storage.type;
    return Push(std::move(value));
  }
  return Bad(absl::StrCat("names '", absl::CHexEscape(module), ".", absl::CHexEscape(name),
                          "', which rotation files do not use: refused, not executed"));
}

absl::Status Machine::Reduce() {
  const PickleHandle arguments_handle = stack_.back();
  stack_.pop_back();
  const PickleHandle callee_handle = stack_.back();
  stack_.pop_back();
  const PickleValue& arguments = pickle_.values[arguments_handle];
  const PickleValue& callee = pickle_.values[callee_handle];
  if (callee.kind != PickleKind::kGlobal || arguments.kind != PickleKind::kTuple) {
    return Bad("a call of something that is not a known name");
  }
  if (callee.text == kRebuildTensor) return RebuildTensor(arguments);
  if (callee.text == kOrderedDict && arguments.items.empty()) {
    return Push({.kind = PickleKind::kDict});
  }
  return Bad(absl::StrCat("a call of '", callee.text, "' with these arguments is refused"));
}

// ('storage', type, key, location, elements)
absl::Status Machine::BinPersId() {
  const PickleValue& id = top();
  if (id.kind != PickleKind::kTuple || id.items.size() != 5) return Bad("not a storage");
  const auto item = [&](size_t i) -> const PickleValue& { return pickle_.values[id.items[i]]; };
  const PickleValue& type = item(1);
  const PickleValue& elements = item(4);
  const bool named = item(0).kind == PickleKind::kString && item(0).text == "storage" &&
                     item(2).kind == PickleKind::kString && item(3).kind == PickleKind::kString;
  const bool typed =
      type.kind == PickleKind::kGlobal && type.text != kRebuildTensor && type.text != kOrderedDict;
  if (!named || !typed || elements.kind != PickleKind::kInt) return Bad("not a storage");
  if (elements.integer <= 0 || static_cast<uint64_t>(elements.integer) > kPickleElementsMax) {
    return Bad(absl::StrCat("a storage of ", elements.integer, " elements"));
  }
  PickleValue storage{.kind = PickleKind::kStorage,
                      .storage_type = type.storage_type,
                      .integer = elements.integer,
                      .text = item(2).text};
  stack_.pop_back();
  return Push(std::move(storage));
}

// (storage, offset, sizes, strides, requires_grad, hooks[, metadata]): checks that every element
// lies inside the storage. At most 4 x 2^20 x 2^28 is summed, so nothing can wrap.
absl::Status Machine::RebuildTensor(const PickleValue& arguments) {
  if (arguments.items.size() < 4 || arguments.items.size() > 7) return Bad("not a tensor");
  const auto item = [&](size_t i) -> const PickleValue& {
    return pickle_.values[arguments.items[i]];
  };
  const PickleValue& storage = item(0);
  const PickleValue& sizes = item(2);
  const PickleValue& strides = item(3);
  if (storage.kind != PickleKind::kStorage || item(1).kind != PickleKind::kInt ||
      sizes.kind != PickleKind::kTuple || strides.kind != PickleKind::kTuple ||
      sizes.items.size() != strides.items.size() || sizes.items.empty() ||
      sizes.items.size() > kTensorDimsMax) {
    return Bad("not a tensor of 1 to 4 dimensions over a storage");
  }
  const int64_t elements = storage.integer;
  const int64_t offset = item(1).integer;
  if (offset < 0 || offset >= elements) {
    return Bad(absl::StrCat("tensor offset ", offset, " outside a storage of ", elements));
  }
  PickleValue tensor{.kind = PickleKind::kTensor, .integer = offset};
  tensor.items.push_back(arguments.items[0]);
  int64_t last = offset;
  for (size_t i = 0; i < sizes.items.size(); ++i) {
    const PickleValue& size = pickle_.values[sizes.items[i]];
    const PickleValue& stride = pickle_.values[strides.items[i]];
    if (size.kind != PickleKind::kInt || size.integer < 1 || size.integer > kPickleDimMax ||
        stride.kind != PickleKind::kInt || stride.integer < 0 || stride.integer > elements) {
      return Bad(absl::StrCat("tensor with size ", size.integer, " and stride ", stride.integer));
    }
    last += (size.integer - 1) * stride.integer;
    tensor.sizes.push_back(static_cast<uint64_t>(size.integer));
    tensor.strides.push_back(static_cast<uint64_t>(stride.integer));
  }
  if (last >= elements) {
    return Bad(absl::StrCat("tensor reaches element ", last, " of a storage of ", elements));
  }
  return Push(std::move(tensor));
}

}  // namespace

const char* ToString(PickleKind kind) {
  static constexpr const char* kNames[] = {"none", "bool", "integer", "float",   "string", "tuple",
                                           "list", "dict", "name",    "storage", "tensor"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

uint32_t StorageElementBytes(StorageType type) {
  switch (type) {
    case StorageType::kFloat:
      return 4;
    case StorageType::kDouble:
      return 8;
    case StorageType::kHalf:
    case StorageType::kBFloat16:
      return 2;
  }
  return 0;
}

const PickleValue* Pickle::Find(const PickleValue& dict, absl::string_view key) const {
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue& candidate = values[dict.items[i]];
    if (candidate.kind == PickleKind::kString && candidate.text == key) {
      return &values[dict.items[i + 1]];
    }
  }
  return nullptr;
}

absl::StatusOr<Pickle> ParsePickle(Bytes data) { return Machine(data).Run(); }

}  // namespace crumb
