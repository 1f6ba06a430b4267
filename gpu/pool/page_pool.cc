// Slabs, extents (runs of slabs of one class) and slots. All metadata is sized in Create; memory of
// pages is never read or written here. One thread (the shard).
#include "gpu/pool/page_pool.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/page_header.h"
#include "gpu/pool/arena.h"
#include "gpu/pool/staging_area.h"

namespace crumb {
namespace {

constexpr uint32_t kNone = 0xffffffff;
constexpr uint64_t kUnit = kPageAlignment;
constexpr uint64_t kSlabBytesMin = 64u << 10;
constexpr uint64_t kSlabBytesMax = 4u << 20;
constexpr uint64_t kStagingBytesMax = 1ull << 30;
constexpr uint64_t kStagingBytesWanted = 64ull << 20;
constexpr uint32_t kExtraSlabsMax = 8;  // a run is at most this much longer than it must be

enum class SlotState : uint8_t { kNotASlot = 0, kFree, kOwned, kZombie };

struct SlotMeta {
  uint32_t pins = 0;
  uint32_t next_free = kNone;
};

// What the slots of a slab have in common.
struct SlabClass {
  uint32_t units = 0;
  SlabKind kind = SlabKind::kLasting;
  uint64_t key() const { return uint64_t{units} << 1 | static_cast<uint64_t>(kind); }
  friend bool operator==(const SlabClass&, const SlabClass&) = default;
};

// Kept at the first slab of a run; other slabs of the run only know `head`.
struct Slab {
  uint32_t head = kNone;  // first slab of the extent; kNone = free
  uint32_t slabs = 0;
  uint32_t class_units = 0;
  SlabKind kind = SlabKind::kLasting;
  SlabClass slab_class() const { return {class_units, kind}; }
  uint32_t slots = 0;
  uint32_t slots_taken = 0;  // owned or zombie
  uint32_t slots_pinned = 0;
  uint32_t free_head = kNone;
  uint32_t prev = kNone, next = kNone;  // extents of the class that have a free slot
  bool listed = false;
};

// How the arena is cut.
struct Areas {
  uint32_t waste_share = 1;
  uint64_t main_bytes = 0;
  uint64_t staging_bytes = 0;
  uint64_t slab_bytes = 0;
  uint64_t bytes() const { return main_bytes + staging_bytes; }
};

struct Geometry {
  uint32_t slabs = 0;
  uint32_t slots = 0;
};

struct Window {  // the run that is being emptied
  uint32_t first = kNone;
  uint32_t slabs = 0;
  SlabClass slab_class;
  bool active() const { return first != kNone; }
  bool Contains(uint32_t slab) const { return active() && slab >= first && slab < first + slabs; }
};

absl::Status CheckPoolBytes(const char* field, uint64_t bytes) {
  if (bytes >= kPoolBytesMin && bytes <= kPoolBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", bytes, "; it must be between ",
                                                 kPoolBytesMin, " and ", kPoolBytesMax, " bytes"));
}

absl::Status CheckMemory(MutableBytes memory) {
  const auto base = reinterpret_cast<uintptr_t>(memory.data());
  if (base == 0 || base % kUnit != 0) {
    return absl::InvalidArgumentError(absl::StrCat("memory.data() is 0x", absl::Hex(base),
                                                   "; it must be a multiple of ", kUnit,
                                                   " other than 0"));
  }
  CRUMB_TRY(CheckPoolBytes("memory.size()", memory.size()));
  if (memory.size() % kUnit != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory.size() is ", memory.size(), "; it must be a multiple of ", kUnit));
  }
  if (memory.size() > ~uintptr_t{0} - base) {
    return absl::InvalidArgumentError(absl::StrCat("memory.data() is 0x", absl::Hex(base),
                                                   "; with memory.size() ", memory.size(),
                                                   " it ends beyond the address space"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Areas> CutAreas(const PagePoolOptions& options) {
  uint64_t staging = options.staging_bytes;
  if (staging == 0) {
    staging = std::max(options.bytes / 4, std::min(options.bytes / 2, kStagingBytesWanted));
    staging = std::min(staging, kStagingBytesMax);
  }
  uint64_t slab = options.slab_bytes;
  if (slab == 0)
    slab = std::clamp(std::bit_floor(options.bytes / 64), kSlabBytesMin, kSlabBytesMax);
  staging = staging / (2 * kUnit) * (2 * kUnit);
  if (slab < kUnit || slab % kUnit != 0 || slab > options.bytes || staging > options.bytes - slab) {
    return absl::InvalidArgumentError(absl::StrCat("slab_bytes ", slab, " and staging_bytes ",
                                                   staging, " do not fit a pool of ", options.bytes,
                                                   " bytes; slabs are multiples of ", kUnit));
  }
  return Areas{.waste_share = std::max(options.waste_share, 1u),
               .main_bytes = (options.bytes - staging) / slab * slab,
               .staging_bytes = staging,
               .slab_bytes = slab};
}

}  // namespace

struct PagePool::Impl {
  Arena mapped;        // empty over memory of somebody else
  MutableBytes arena;  // an address and a length, never touched: it may be a GPU's
  uint32_t main_units = 0;
  uint32_t units_per_slab = 0, waste_share = 1;
  std::vector<Slab> slabs;
  Arena meta_memory, state_memory;  // WHY mappings: zero without touching, so idle RSS stays small
  std::span<SlotMeta> meta;
  std::span<SlotState> state;
  std::array<std::unique_ptr<StagingArea>, 2> staging;   // by StageHalf, equal halves
  absl::flat_hash_map<uint64_t, uint32_t> open_extents;  // class key -> first with a free slot
  Window window;
  uint64_t used_units = 0, used_slots = 0, pinned_slots = 0, fresh_units = 0, fresh_slabs = 0;
  uint32_t free_slabs = 0;

  absl::Status MakeSlots(const Areas& areas);
  Geometry GeometryOf(uint32_t class_units) const;
  struct Staged {
    StagingArea* area;
    uint32_t unit;
  };
  Staged StagedAt(uint32_t unit) const {
    const uint32_t half = staging[0]->units(), at = unit - main_units;
    return at < half ? Staged{staging[0].get(), at} : Staged{staging[1].get(), at - half};
  }
  uint32_t HeadOf(uint32_t unit) const { return slabs[unit / units_per_slab].head; }
  uint32_t FindFreeRun(uint32_t count, SlabClass wanted) const;
  bool MakeExtent(SlabClass wanted);
  void List(uint32_t head);
  void Unlist(uint32_t head);
  void FreeSlot(uint32_t unit);
  void DissolveExtent(uint32_t head);
  bool WindowIsClear() const;
  bool TryWindow(uint32_t first, uint32_t count, SlabClass wanted);
  void CloseWindow();
  void OpenWindow();
};

// All slots are free. Only metadata is made here.
absl::Status PagePool::Impl::MakeSlots(const Areas& areas) {
  const uint64_t units = areas.bytes() / kUnit;
  CRUMB_CHECK(areas.bytes() <= arena.size());
  CRUMB_ASSIGN(meta_memory, Arena::Map(units * sizeof(SlotMeta), HugePages::kNo));
  CRUMB_ASSIGN(state_memory, Arena::Map(units * sizeof(SlotState), HugePages::kNo));
  meta = {reinterpret_cast<SlotMeta*>(meta_memory.bytes().data()), units};
  state = {reinterpret_cast<SlotState*>(state_memory.bytes().data()), units};
  main_units = static_cast<uint32_t>(areas.main_bytes / kUnit);
  units_per_slab = static_cast<uint32_t>(areas.slab_bytes / kUnit);
  waste_share = areas.waste_share;
  slabs.resize(areas.main_bytes / areas.slab_bytes);
  free_slabs = static_cast<uint32_t>(slabs.size());
  open_extents.reserve(2 * slabs.size());
  for (auto& half : staging) {
    half = std::make_unique<StagingArea>(static_cast<uint32_t>(areas.staging_bytes / kUnit / 2));
  }
  return absl::OkStatus();
}

Geometry PagePool::Impl::GeometryOf(uint32_t class_units) const {
  const auto total = static_cast<uint32_t>(slabs.size());
  const uint32_t least = (class_units + units_per_slab - 1) / units_per_slab;
  if (least > total) return {};
  const uint32_t most = std::min(least + kExtraSlabsMax, std::max(least, total / 8));
  Geometry best;
  uint64_t best_waste = ~0ull, best_units = 1;
  for (uint32_t count = least; count <= most; ++count) {
    const uint64_t units = static_cast<uint64_t>(count) * units_per_slab;
    const uint64_t waste = units % class_units;
    if (best.slabs == 0 || waste * best_units < best_waste * units) {
      best = {count, static_cast<uint32_t>(units / class_units)};
      best_waste = waste;
      best_units = units;
    }
    if (waste * waste_share <= units) break;
  }
  return best;
}

uint32_t PagePool::Impl::FindFreeRun(uint32_t count, SlabClass wanted) const {
  uint32_t run = 0;
  for (uint32_t slab = 0; slab < slabs.size(); ++slab) {
    const bool closed = window.Contains(slab) && window.slab_class != wanted;
    run = slabs[slab].head == kNone && !closed ? run + 1 : 0;
    if (run == count) return slab + 1 - count;
  }
  return kNone;
}

bool PagePool::Impl::MakeExtent(SlabClass wanted) {
  const uint32_t class_units = wanted.units;
  const Geometry geometry = GeometryOf(class_units);
  if (geometry.slabs == 0 || free_slabs < geometry.slabs) return false;
  const uint32_t head = FindFreeRun(geometry.slabs, wanted);
  if (head == kNone) return false;
  for (uint32_t i = 0; i < geometry.slabs; ++i) slabs[head + i].head = head;
  free_slabs -= geometry.slabs;
  Slab& extent = slabs[head];
  extent.slabs = geometry.slabs;
  extent.class_units = class_units;
  extent.kind = wanted.kind;
  if (wanted.kind == SlabKind::kFresh) fresh_slabs += geometry.slabs;
  extent.slots = geometry.slots;
  extent.slots_taken = extent.slots_pinned = 0;
  const uint32_t first_unit = head * units_per_slab;
  extent.free_head = first_unit;
  for (uint32_t i = 0; i < geometry.slots; ++i) {
    const uint32_t unit = first_unit + i * class_units;
    state[unit] = SlotState::kFree;
    meta[unit] = {0, i + 1 < geometry.slots ? unit + class_units : kNone};
  }
  if (window.active() && window.slab_class == wanted) OpenWindow();
  List(head);
  return true;
}

void PagePool::Impl::List(uint32_t head) {
  Slab& extent = slabs[head];
  if (extent.listed) return;
  auto [it, fresh] = open_extents.try_emplace(extent.slab_class().key(), kNone);
  extent.prev = kNone;
  extent.next = fresh ? kNone : it->second;
  if (extent.next != kNone) slabs[extent.next].prev = head;
  it->second = head;
  extent.listed = true;
}

void PagePool::Impl::Unlist(uint32_t head) {
  Slab& extent = slabs[head];
  if (!extent.listed) return;
  if (extent.next != kNone) slabs[extent.next].prev = extent.prev;
  if (extent.prev != kNone) {
    slabs[extent.prev].next = extent.next;
  } else if (extent.next != kNone) {
    open_extents[extent.slab_class().key()] = extent.next;
  } else {
    open_extents.erase(extent.slab_class().key());
  }
  extent.listed = false;
}

void PagePool::Impl::FreeSlot(uint32_t unit) {
  if (unit >= main_units) {
    const Staged staged = StagedAt(unit);
    staged.area->Free(staged.unit);
    state[unit] = SlotState::kNotASlot;
    return;
  }
  const uint32_t head = HeadOf(unit);
  Slab& extent = slabs[head];
  state[unit] = SlotState::kFree;
  meta[unit].next_free = extent.free_head;
  extent.free_head = unit;
  --extent.slots_taken;
  used_units -= extent.class_units;
  if (extent.kind == SlabKind::kFresh) fresh_units -= extent.class_units;
  --used_slots;
  if (extent.slots_taken == 0) {
    DissolveExtent(head);
  } else if (!window.Contains(head)) {
    List(head);
  }
}

void PagePool::Impl::DissolveExtent(uint32_t head) {
  Unlist(head);
  const Slab extent = slabs[head];
  for (uint32_t i = 0; i < extent.slots; ++i) {
    state[head * units_per_slab + i * extent.class_units] = SlotState::kNotASlot;
  }
  for (uint32_t i = 0; i < extent.slabs; ++i) slabs[head + i] = Slab{};
  free_slabs += extent.slabs;
  if (extent.kind == SlabKind::kFresh) fresh_slabs -= extent.slabs;
}

// The window grows to whole extents, so that what is closed empties as a unit.
bool PagePool::Impl::TryWindow(uint32_t first, uint32_t count, SlabClass wanted) {
  if (slabs[first].head != kNone) {
    const uint32_t head = slabs[first].head;
    count += first - head;
    first = head;
  }
  uint32_t slab = first;
  while (slab < first + count) {
    const uint32_t head = slabs[slab].head;
    if (head == kNone) {
      ++slab;
      continue;
    }
    if (slabs[head].slots_pinned > 0) return false;
    slab = head + slabs[head].slabs;
  }
  window = {first, slab - first, wanted};
  return true;
}

void PagePool::Impl::CloseWindow() {
  for (uint32_t slab = window.first; slab < window.first + window.slabs; ++slab) {
    if (slabs[slab].head == slab) Unlist(slab);
  }
}

void PagePool::Impl::OpenWindow() {
  const Window closed = std::exchange(window, Window{});
  if (!closed.active()) return;
  for (uint32_t slab = closed.first; slab < closed.first + closed.slabs; ++slab) {
    const Slab& extent = slabs[slab];
    if (extent.head == slab && extent.free_head != kNone) List(slab);
  }
}

PagePool::PagePool() : impl_(std::make_unique<Impl>()) {}
PagePool::~PagePool() = default;

absl::StatusOr<std::unique_ptr<PagePool>> PagePool::Create(const PagePoolOptions& options) {
  CRUMB_TRY(CheckPoolBytes("pool.dram_bytes", options.bytes));
  CRUMB_ASSIGN(const Areas areas, CutAreas(options));
  std::unique_ptr<PagePool> pool(new PagePool());
  const HugePages huge = options.hugepages ? HugePages::kWanted : HugePages::kNo;
  CRUMB_ASSIGN(pool->impl_->mapped, Arena::Map(areas.bytes(), huge));
  pool->impl_->arena = pool->impl_->mapped.bytes();
  CRUMB_TRY(pool->impl_->MakeSlots(areas));
  return pool;
}

absl::StatusOr<std::unique_ptr<PagePool>> PagePool::CreateOver(MutableBytes memory,
                                                               const PagePoolOptions& options) {
  CRUMB_TRY(CheckMemory(memory));
  PagePoolOptions whole = options;
  if (whole.bytes == 0) whole.bytes = memory.size();
  CRUMB_TRY(CheckPoolBytes("bytes", whole.bytes));
  if (whole.bytes > memory.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes is ", whole.bytes, "; memory.size() is ", memory.size()));
  }
  if (whole.hugepages) {
    return absl::InvalidArgumentError("hugepages is for memory that the pool maps itself");
  }
  CRUMB_ASSIGN(const Areas areas, CutAreas(whole));
  std::unique_ptr<PagePool> pool(new PagePool());
  pool->impl_->arena = memory;
  CRUMB_TRY(pool->impl_->MakeSlots(areas));
  return pool;
}

SlotId PagePool::Allocate(uint64_t bytes, SlabKind kind) {
  Impl& impl = *impl_;
  if (!CanEverFit(bytes)) return {};
  const auto class_units = static_cast<uint32_t>(ClassBytes(bytes) / kUnit);
  const SlabClass wanted{class_units, kind};
  auto it = impl.open_extents.find(wanted.key());
  if (it == impl.open_extents.end()) {
    if (!impl.MakeExtent(wanted)) return {};
    it = impl.open_extents.find(wanted.key());
  }
  const uint32_t head = it->second;
  Slab& extent = impl.slabs[head];
  const uint32_t unit = extent.free_head;
  CRUMB_CHECK(unit != kNone && impl.state[unit] == SlotState::kFree);
  extent.free_head = impl.meta[unit].next_free;
  impl.state[unit] = SlotState::kOwned;
  ++extent.slots_taken;
  if (extent.free_head == kNone) impl.Unlist(head);
  impl.used_units += class_units;
  if (kind == SlabKind::kFresh) impl.fresh_units += class_units;
  ++impl.used_slots;
  return SlotId{unit};
}

SlotId PagePool::AllocateStaging(uint64_t bytes, StageHalf half) {
  Impl& impl = *impl_;
  if (!CanEverStage(bytes)) return {};
  const auto which = static_cast<uint32_t>(half);
  const auto units = static_cast<uint32_t>(ClassBytes(bytes) / kUnit);
  const uint32_t first = impl.staging[which]->Allocate(units);
  if (first == StagingArea::kNone) return {};
  const uint32_t unit = impl.main_units + which * impl.staging[0]->units() + first;
  impl.state[unit] = SlotState::kOwned;
  impl.meta[unit].pins = 0;
  return SlotId{unit};
}

void PagePool::Release(SlotId slot) {
  Impl& impl = *impl_;
  CRUMB_CHECK(slot.value < impl.state.size() && impl.state[slot.value] == SlotState::kOwned);
  impl.state[slot.value] = SlotState::kZombie;
  if (impl.meta[slot.value].pins == 0) impl.FreeSlot(slot.value);
}

void PagePool::Pin(SlotId slot) {
  Impl& impl = *impl_;
  CRUMB_CHECK(slot.value < impl.state.size() && impl.state[slot.value] >= SlotState::kOwned);
  CRUMB_CHECK(impl.meta[slot.value].pins < 0xffffffff);
  if (impl.meta[slot.value].pins++ == 0 && slot.value < impl.main_units) {
    ++impl.slabs[impl.HeadOf(slot.value)].slots_pinned;
    ++impl.pinned_slots;
  }
}

void PagePool::Unpin(SlotId slot) {
  Impl& impl = *impl_;
  CRUMB_CHECK(slot.value < impl.state.size() && impl.state[slot.value] >= SlotState::kOwned);
  CRUMB_CHECK(impl.meta[slot.value].pins > 0);
  if (--impl.meta[slot.value].pins > 0) return;
  if (slot.value < impl.main_units) {
    --impl.slabs[impl.HeadOf(slot.value)].slots_pinned;
    --impl.pinned_slots;
  }
  if (impl.state[slot.value] == SlotState::kZombie) impl.FreeSlot(slot.value);
}

uint32_t PagePool::pins(SlotId slot) const { return impl_->meta[slot.value].pins; }

MutableBytes PagePool::memory(SlotId slot) const {
  const Impl& impl = *impl_;
  CRUMB_CHECK(slot.value < impl.state.size() && impl.state[slot.value] >= SlotState::kOwned);
  uint32_t units = 0;
  if (slot.value < impl.main_units) {
    units = impl.slabs[impl.HeadOf(slot.value)].class_units;
  } else {
    const Impl::Staged staged = impl.StagedAt(slot.value);
    units = staged.area->units_of(staged.unit);
  }
  return impl.arena.subspan(slot.value * kUnit, units * kUnit);
}

uint64_t PagePool::ClassBytes(uint64_t bytes) {
  CRUMB_CHECK(bytes <= kPoolBytesMax);
  return (std::max<uint64_t>(bytes, 1) + kUnit - 1) / kUnit * kUnit;
}

bool PagePool::CanEverFit(uint64_t bytes) const {
  const uint64_t main_bytes = static_cast<uint64_t>(impl_->main_units) * kUnit;
  return bytes <= main_bytes;
}

bool PagePool::CanEverStage(uint64_t bytes) const {
  return bytes <= static_cast<uint64_t>(impl_->staging[0]->units()) * kUnit;
}

bool PagePool::BeginClear(uint64_t bytes, SlotId hint, SlabKind kind) {
  Impl& impl = *impl_;
  CancelClear();
  if (!CanEverFit(bytes)) return false;
  const auto class_units = static_cast<uint32_t>(ClassBytes(bytes) / kUnit);
  const uint32_t count = impl.GeometryOf(class_units).slabs;
  const auto starts = static_cast<uint32_t>(impl.slabs.size()) - count + 1;
  const uint32_t wanted =
      hint.valid() && hint.value < impl.main_units ? hint.value / impl.units_per_slab : 0;
  const uint32_t begin = std::min(wanted, starts - 1);
  for (uint32_t i = 0; i < starts; ++i) {
    if (impl.TryWindow((begin + i) % starts, count, {class_units, kind})) {
      impl.CloseWindow();
      return true;
    }
  }
  return false;
}

size_t PagePool::NextToClear(absl::Span<SlotId> out) const {
  const Impl& impl = *impl_;
  size_t found = 0;
  if (!impl.window.active()) return 0;
  for (uint32_t slab = impl.window.first; slab < impl.window.first + impl.window.slabs; ++slab) {
    const Slab& extent = impl.slabs[slab];
    if (extent.head != slab) continue;
    for (uint32_t i = 0; i < extent.slots && found < out.size(); ++i) {
      const uint32_t unit = slab * impl.units_per_slab + i * extent.class_units;
      if (impl.state[unit] == SlotState::kOwned) out[found++] = SlotId{unit};
    }
  }
  return found;
}

uint64_t PagePool::clearing_bytes() const {
  return impl_->window.active() ? impl_->window.slab_class.units * kUnit : 0;
}

SlabKind PagePool::clearing_kind() const { return impl_->window.slab_class.kind; }
void PagePool::CancelClear() { impl_->OpenWindow(); }

MutableBytes PagePool::arena() const { return impl_->arena; }
uint64_t PagePool::capacity_bytes() const {
  return static_cast<uint64_t>(impl_->main_units) * kUnit;
}
uint64_t PagePool::used_bytes() const { return impl_->used_units * kUnit; }
uint64_t PagePool::pinned_slots() const { return impl_->pinned_slots; }
uint64_t PagePool::used_slots() const { return impl_->used_slots; }
uint64_t PagePool::free_slabs() const { return impl_->free_slabs; }
SlabKind PagePool::kind(SlotId slot) const {
  CRUMB_CHECK(slot.value < impl_->main_units);
  return impl_->slabs[impl_->HeadOf(slot.value)].kind;
}
uint64_t PagePool::fresh_used_bytes() const { return impl_->fresh_units * kUnit; }
uint64_t PagePool::fresh_slab_bytes() const {
  return impl_->fresh_slabs * impl_->units_per_slab * kUnit;
}
bool PagePool::FreshFits(uint64_t bytes, uint64_t limit) const {
  const auto class_units = static_cast<uint32_t>(ClassBytes(bytes) / kUnit);
  if (impl_->open_extents.contains(SlabClass{class_units, SlabKind::kFresh}.key())) return true;
  const uint64_t run = RunBytes(bytes);
  return run != 0 && run <= limit && fresh_slab_bytes() <= limit - run;
}
uint64_t PagePool::RunBytes(uint64_t bytes) const {
  if (!CanEverFit(bytes)) return 0;
  const auto class_units = static_cast<uint32_t>(ClassBytes(bytes) / kUnit);
  return uint64_t{impl_->GeometryOf(class_units).slabs} * impl_->units_per_slab * kUnit;
}
uint64_t PagePool::staging_capacity_bytes() const {
  return 2 * static_cast<uint64_t>(impl_->staging[0]->units()) * kUnit;
}
uint64_t PagePool::staging_free_bytes(StageHalf half) const {
  const StagingArea& area = *impl_->staging[static_cast<size_t>(half)];
  return static_cast<uint64_t>(area.units() - area.used()) * kUnit;
}
uint64_t PagePool::staging_used_bytes() const {
  return (static_cast<uint64_t>(impl_->staging[0]->used()) + impl_->staging[1]->used()) * kUnit;
}

}  // namespace crumb
