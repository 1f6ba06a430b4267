#!/usr/bin/env python3
"""Bugs planted in the product's own code, for the program sim_mutants alone (docs/testing.md).

Each bug is a few edits of sources: a text that must be there exactly once, and what stands in its place,
where M("name") asks whether the bug is on and E("name", n) is true every n-th time. The edited copies
are compiled beside the libraries that hold the originals and take their place in that one program.

  mutate.py ROOT --check       every text is there once; exit 1 and a list of what is not
  mutate.py ROOT --files       the sources that have edits, one a line
  mutate.py ROOT --write DIR   the copies, and DIR/mutation_names.cc
"""
import pathlib
import sys

READ = "storage/segment/log_read.cc"
LIVE = "storage/segment/live_records.cc"
RECOVERY = "storage/segment/log_recovery.cc"
FORGET = "storage/segment/log_forget.cc"
JOB = "cachesvc/core/page_job.cc"
PUT = "cachesvc/core/put.cc"
DISK = "cachesvc/core/disk.cc"
BLOCKS = "cachesvc/core/blocks.cc"
GET = "cachesvc/core/get.cc"
PINS = "cachesvc/core/pins.cc"
ENTRIES = "cachesvc/core/entries.cc"
POOL = "gpu/pool/page_pool.cc"

MUTATIONS = {
    "skip_read_checksum": [  # rotten bytes pass on the way up, and in memory
        (READ, "return check == PageCheck::kOk ? BlockResult::kOk : BlockResult::kCorrupt;",
         'return check == PageCheck::kOk || M("skip_read_checksum") ? BlockResult::kOk'
         " : BlockResult::kCorrupt;"),
        (JOB, "if (Xxh3(sealed, PayloadOf(job, header->payload_bytes)) != header->checksum) return false;",
         "if (Xxh3(sealed, PayloadOf(job, header->payload_bytes)) != header->checksum &&"
         ' !M("skip_read_checksum")) return false;'),
    ],
    "misdirected_read": [  # whatever lies at the place is taken for the record
        (READ, "if (header.magic != kPageMagic || header.key != key || !StampIsValid(header) ||",
         "const bool stale = header.generation != location.generation;\n"
         '  if ((M("misdirected_read") || (stale && M("stale_location_read"))) && header.magic == kPageMagic) {\n'
         "    return CheckPage(record) == PageCheck::kOk ? BlockResult::kOk : BlockResult::kCorrupt;\n  }\n"
         "  if (header.magic != kPageMagic || header.key != key || !StampIsValid(header) ||"),
        (JOB, "if (header->key != job.header.key || header->codec_id != job.header.codec_id) return false;",
         'if (!M("misdirected_read") && !M("stale_location_read") && (header->key != job.header.key ||'
         " header->codec_id != job.header.codec_id)) return false;"),
    ],
    "durable_before_sync": [  # answered when the write was begun
        (PUT, "    if (result != BlockResult::kOk) return Finish(block, BlockResult::kNotDurable), false;\n  }",
         "    if (result != BlockResult::kOk) return Finish(block, BlockResult::kNotDurable), false;\n"
         '    if (M("durable_before_sync")) return Finish(block, done), false;\n  }'),
    ],
    "publish_unencoded": [  # visible before the job that fills and seals the page has ended
        (PUT, "  RunJob(block);\n  return false;\n}\n\n// One page, another rung",
         '  if (block.form == PageForm::kRaw && E("publish_unencoded", 20)) {\n'
         "    block.job.header.payload_bytes = block.job.codec->payload_bytes();\n"
         "    block.step = Step::kPutPublish;\n    return true;\n  }\n"
         "  RunJob(block);\n  return false;\n}\n\n// One page, another rung"),
    ],
    "reuse_pinned_slot": [  # a slot is free as soon as its owner lets go
        (POOL, "  if (impl.meta[slot.value].pins == 0) impl.FreeSlot(slot.value);\n}\n\nvoid PagePool::Pin",
         '  if (M("reuse_pinned_slot") && impl.meta[slot.value].pins > 0 && slot.value < impl.main_units) {\n'
         "    impl.meta[slot.value].pins = 0;\n"
         "    --impl.slabs[impl.HeadOf(slot.value)].slots_pinned;\n    --impl.pinned_slots;\n  }\n"
         "  if (impl.meta[slot.value].pins == 0) impl.FreeSlot(slot.value);\n}\n\nvoid PagePool::Pin"),
        (POOL, "  CRUMB_CHECK(impl.meta[slot.value].pins > 0);\n  if (--impl",
         '  if (M("reuse_pinned_slot") && impl.meta[slot.value].pins == 0) return;\n'
         "  CRUMB_CHECK(impl.meta[slot.value].pins > 0);\n  if (--impl"),
    ],
    "flush_not_written": [  # the watermark of a flush stays in memory
        (FORGET, "  StoreSuperblock(state->superblock, superblock_block.span());",
         '  const uint64_t said = state->superblock.watermark;\n'
         '  if (M("flush_not_written")) state->superblock.watermark = 1;\n'
         "  StoreSuperblock(state->superblock, superblock_block.span());\n"
         "  state->superblock.watermark = said;"),
    ],
    "tombstone_lost": [  # a delete is answered, and nothing on disk says so
        (FORGET, "    block.entries[i] = erases.At(i).tombstone;\n    state->footer().AddTombstone(erases.At(i).tombstone);",
         "    block.entries[i] = erases.At(i).tombstone;\n"
         '    if (M("tombstone_lost")) block.entries[i].key = BlockKey{};\n'
         '    if (!M("tombstone_lost")) state->footer().AddTombstone(erases.At(i).tombstone);'),
    ],
    "older_record_wins": [  # a start keeps the first record of a key in a segment, not the last
        (LIVE, "  size_t kept = records->size();\n",
         '  if (M("older_record_wins")) std::reverse(records->begin(), records->end());\n'
         "  size_t kept = records->size();\n"),
        (LIVE, "  records->erase(records->begin(), records->begin() + static_cast<ptrdiff_t>(kept));\n",
         "  records->erase(records->begin(), records->begin() + static_cast<ptrdiff_t>(kept));\n"
         '  if (M("older_record_wins")) std::reverse(records->begin(), records->end());\n'),
    ],
    "reuse_out_of_order": [  # reclaimed segments are written anew before a start knows that they are dead
        (FORGET, "  return head_stable.watermark != state->superblock.watermark ||\n"
         "         head_stable.generation_min != state->superblock.generation_min;",
         "  return head_stable.watermark != state->superblock.watermark ||\n"
         '         (head_stable.generation_min != state->superblock.generation_min && !M("reuse_out_of_order"));'),
        (RECOVERY, "  if (mark.generation < state_.superblock.generation_min) {",
         '  if (mark.generation < state_.superblock.generation_min && !M("reuse_out_of_order")) {'),
    ],
    "stale_location_read": [  # a place that was written anew is read as if it were the old one
        (READ, "  if (segment.generation != location.generation) return nullptr;",
         '  if (segment.generation != location.generation && !M("stale_location_read")) return nullptr;'),
        (READ, "  if (record == nullptr || record->key != key) return nullptr;",
         '  if (record == nullptr || (record->key != key && !M("stale_location_read"))) return nullptr;'),
        (READ, "  } else if (segment.generation != op.location.generation) {",
         '  } else if (segment.generation != op.location.generation && !M("stale_location_read")) {'),
        (DISK, "  if (id != kNoId && index.location(id) == event.location) LoseRecord(id);\n",
         '  if (M("stale_location_read")) return;\n'
         "  if (id != kNoId && index.location(id) == event.location) LoseRecord(id);\n"),
    ],
    "pin_leaks_on_death": [  # a dead worker's get keeps its page pinned for ever
        (BLOCKS, "  } else if (block.page_pinned) {\n    UnpinSlot(block.page);",
         '  } else if (block.page_pinned) {\n    if (!(M("pin_leaks_on_death") && block.request == kNoId))'
         " UnpinSlot(block.page);"),
    ],
    "lossy_context_forgotten": [  # a page computed from lossy pages is called exact
        (PUT, "  block.lossy_depth = session.served.ChildDepth(block.parent.prefix64(), parent_depth);",
         "  block.lossy_depth = session.served.ChildDepth(block.parent.prefix64(), parent_depth);\n"
         '  if (M("lossy_context_forgotten")) block.lossy_depth = 0;'),
    ],
    "depth_limit_ignored": [  # pages deeper than asked are served
        (GET, "index.kind(id).lossy_depth <= options.max_lossy_depth &&",
         '(M("depth_limit_ignored") || index.kind(id).lossy_depth <= options.max_lossy_depth) &&'),
    ],
    "waiters_unbounded": [  # the bound on parked gets is not looked at
        (GET, "  if (parked.size() >= options.limits.waiters_max) return Finish(block, BlockResult::kBusy);",
         '  if (parked.size() >= options.limits.waiters_max && !M("waiters_unbounded")) {\n'
         "    return Finish(block, BlockResult::kBusy);\n  }"),
    ],
    "deadline_ignored": [  # a request that waits does so past its deadline
        (PINS, "    CancelRequest(id, BlockResult::kTimeout);",
         '    if (!M("deadline_ignored")) CancelRequest(id, BlockResult::kTimeout);'),
    ],
    "gauge_drifts": [  # a page that is forgotten stays in the gauge
        (ENTRIES, "  CountPage(index.kind(id).precision, -1);\n  SetParent(id, 0);",
         '  if (!E("gauge_drifts", 10)) CountPage(index.kind(id).precision, -1);\n  SetParent(id, 0);'),
    ],
    "page_of_another_key": [  # a page from outside is stored under whatever key it was sent with
        (PUT, "  if (header.identity_prefix != want.identity_prefix || header.key != want.key ||",
         "  if (header.identity_prefix != want.identity_prefix ||"
         ' (header.key != want.key && !M("page_of_another_key")) ||'),
    ],
    "damaged_page_stored": [  # a page from outside is not verified
        (JOB, "  if (CheckPage(job.page.subspan(0, kPageHeaderBytes + job.header.payload_bytes)) !=\n      PageCheck::kOk) {",
         '  if (!M("damaged_page_stored") &&\n'
         "      CheckPage(job.page.subspan(0, kPageHeaderBytes + job.header.payload_bytes)) !=\n      PageCheck::kOk) {"),
    ],
}
SWITCHES = ('#include "tests/sim/mutation.h"\n#define M(name) ::crumb::sim::Mutated(name)\n'
            "#define E(name, nth) ::crumb::sim::MutatedEvery(name, nth)\n")


def edits_by_file():
    by_file = {}
    for name, edits in MUTATIONS.items():
        for path, before, after in edits:
            by_file.setdefault(path, []).append((name, before, after))
    return by_file


def missing(root):
    """(path, bug, text, times found) of every edit that cannot be made."""
    found = []
    for path, edits in edits_by_file().items():
        text = (root / path).read_text()
        found += [(path, name, before, text.count(before)) for name, before, _ in edits
                  if text.count(before) != 1]
    return found


def check(root):
    problems = missing(root)
    for path, name, before, times in problems:
        print(f"{path}: {name}: found {times} times, not once: {before.splitlines()[0].strip()}")
    if problems:
        print("the code has moved on: say in tests/sim/mutate.py where the bug can be planted now")
        return 1
    return 0


def write(root, out):
    """Bugs that cannot be planted any more are left out here, and fail the test that runs --check."""
    gone = {name for _, name, _, _ in missing(root)}
    for path, edits in edits_by_file().items():
        text = (root / path).read_text()
        for name, before, after in edits:
            if name not in gone:
                text = text.replace(before, after)
        head, last, rest = text.rpartition("\n#include ")
        line, rest = rest.split("\n", 1)
        fresh = head + last + line + "\n" + SWITCHES + rest
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text() != fresh:
            target.write_text(fresh)
    names = ", ".join(f'"{name}"' for name in MUTATIONS if name not in gone)
    (out / "mutation_names.cc").write_text(
        "// Made by mutate.py.\n#include \"tests/sim/mutation.h\"\n\nnamespace crumb::sim {\n\n"
        "const std::vector<std::string>& MutationNames() {\n"
        f"  static const auto* const names = new std::vector<std::string>{{{names}}};\n"
        "  return *names;\n}\n\n}  // namespace crumb::sim\n")


def main():
    root = pathlib.Path(sys.argv[1])
    if sys.argv[2] == "--files":
        print("\n".join(sorted(edits_by_file())))
        return 0
    if sys.argv[2] == "--write":
        write(root, pathlib.Path(sys.argv[3]))
        return 0
    return check(root)


if __name__ == "__main__":
    sys.exit(main())
