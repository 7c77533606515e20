//! Loads the NAT and the SIT with their journals.

use std::collections::BTreeSet;

use steadfs_base::is_zero;
use zerocopy::FromBytes;

use super::pack::Journals;
use super::{Checker, Issue, Refusal};
use crate::disk::checkpoint::{CpFlags, NatBits};
use crate::disk::nat::{self, PER_BLOCK};
use crate::disk::sit::{self, RawSitEntry};
use crate::disk::{
    BLOCK_SIZE, BlockAddr, DiskError, NatEntry, Nid, SegNo, SitEntry, Structure, journal,
};

/// The address in the NAT entries of the two internal inodes that are never on disk.
const NO_ADDRESS: BlockAddr = BlockAddr(1);

/// Blocks of a table read per request.
const WINDOW: u32 = 64;

impl Checker<'_> {
    /// Loads the NAT. Returns false if nothing can be checked without it.
    pub(super) fn load_nat(&mut self, journals: &Journals) -> bool {
        let entries = match journal::parse_nat(&self.layout, &journals.nat) {
            Ok(entries) => entries,
            Err(error) => {
                self.issue(Issue::Pack(error));
                return false;
            }
        };
        let bits = self.nat_bits();
        let mut buf = Vec::new();
        let mut block = 0;
        while block < self.layout.nat_blocks {
            let (at, count) = self.nat_window(block);
            if self.read_blocks(at, count, &mut buf) {
                for (bytes, number) in buf.chunks(BLOCK_SIZE).zip(block..) {
                    self.load_nat_block(number, bytes, bits.as_ref());
                }
            }
            if self.nat.bytes > self.options.memory_limit {
                let needed = self.nat.bytes;
                self.report.refused = Some(Refusal::TooLarge { needed });
                return false;
            }
            block += count;
        }
        let mut seen = BTreeSet::new();
        for (nid, entry) in entries {
            if !seen.insert(nid) {
                let (table, number) = ("NAT", nid.0);
                self.issue(Issue::JournalTwice { table, number });
            }
            self.load_nat_entry(nid, entry);
        }
        true
    }

    /// Current NAT blocks that are consecutive, starting with this one.
    fn nat_window(&self, block: u32) -> (BlockAddr, u32) {
        let at = |n: u32| self.layout.nat_block(n, self.checkpoint.nat_second(n));
        let first = at(block);
        let end = block.saturating_add(WINDOW).min(self.layout.nat_blocks);
        let rest = (block + 1..end).take_while(|&n| at(n).0 == first.0 + (n - block));
        (first, rest.count() as u32 + 1)
    }

    fn load_nat_block(&mut self, block: u32, bytes: &[u8], bits: Option<&NatBits>) {
        // The first block has the entries of internal inodes, which are always in use.
        let empty = block > 0 && is_zero(bytes);
        let mut used = 0;
        if !empty {
            for slot in 0..PER_BLOCK {
                let nid = Nid(block * PER_BLOCK as u32 + slot as u32);
                let entry = nat::get(bytes, slot);
                used += usize::from(entry.is_used());
                self.load_nat_entry(nid, entry);
            }
        }
        // Node 0 does not exist, but its entry counts as used.
        let reserved = usize::from(block == 0);
        let Some(bits) = bits else {
            return;
        };
        let why = if bits.is_empty(block) && used + reserved > 0 {
            "has entries in use, but is marked empty"
        } else if bits.is_full(block) && used + reserved < PER_BLOCK {
            "has free entries, but is marked full"
        } else {
            return;
        };
        self.issue(Issue::NatBits { block, why });
    }

    fn load_nat_entry(&mut self, nid: Nid, entry: NatEntry) {
        let mut kept = entry;
        if let Err(error) = self.check_nat_entry(nid, entry) {
            self.issue(Issue::Nat(error));
            kept.addr = BlockAddr::NULL;
        }
        // The entries of internal inodes have no address.
        if nid < Nid::ROOT || nid.0 >= self.layout.max_nid {
            kept.addr = BlockAddr::NULL;
        }
        self.nat.put(&self.layout, nid, kept);
    }

    fn check_nat_entry(&self, nid: Nid, entry: NatEntry) -> Result<(), DiskError> {
        let is_reserved = matches!(nid, Nid::NODE | Nid::META);
        if !entry.is_used() && !is_reserved {
            return Ok(());
        }
        let bad = |rule| {
            let addr = entry.addr.0;
            let error = DiskError::field(Structure::Nat, "block_addr", addr, rule);
            Err(error.in_node(nid))
        };
        match nid {
            Nid::NODE | Nid::META if entry.addr != NO_ADDRESS => {
                bad("not the address of a reserved inode")
            }
            Nid::NODE | Nid::META => Ok(()),
            Nid(0) => bad("the entry of node 0, which cannot exist"),
            _ => entry.validate(&self.layout, nid),
        }
    }

    /// `nat_bits`, if the pack has it and it belongs to this checkpoint.
    fn nat_bits(&mut self) -> Option<NatBits> {
        if !self.checkpoint.flags.contains(CpFlags::NAT_BITS) {
            return None;
        }
        let first = NatBits::address(&self.layout, self.pack, self.checkpoint.pack_blocks)?;
        let mut blocks = Vec::new();
        let count = self.layout.nat_bits_blocks();
        if !self.read_blocks(first, count, &mut blocks) {
            return None;
        }
        NatBits::parse(&self.layout, &self.checkpoint, &blocks)
    }

    /// Loads the SIT.
    pub(super) fn load_sit(&mut self, journals: &Journals) {
        let entries = match journal::raw_sit(&journals.sit) {
            Ok(entries) => entries,
            Err(error) => {
                self.issue(Issue::Pack(error));
                Vec::new()
            }
        };
        let mut journaled = BTreeSet::new();
        for (segment, raw) in &entries {
            let number = segment.0;
            if number >= self.layout.main_segments {
                let rule = "not a segment";
                let what = Structure::Sit;
                let error = DiskError::field(what, "journal segno", number, rule);
                self.issue(Issue::Pack(error));
                continue;
            }
            if !journaled.insert(*segment) {
                let table = "SIT";
                self.issue(Issue::JournalTwice { table, number });
            }
            self.load_sit_entry(*segment, raw);
        }
        let mut buf = Vec::new();
        for block in 0..self.layout.sit_used_blocks() {
            let second = self.checkpoint.sit_second(block);
            let at = self.layout.sit_block(block, second);
            if self.read_block(at, &mut buf) {
                self.load_sit_block(block, &buf, &journaled);
            }
        }
    }

    fn load_sit_block(&mut self, block: u32, bytes: &[u8], journaled: &BTreeSet<SegNo>) {
        let size = size_of::<RawSitEntry>();
        let per_block = sit::PER_BLOCK as u32;
        let last = self.layout.main_segments;
        for (number, entry) in (block * per_block..last).zip(bytes.chunks_exact(size)) {
            let segment = SegNo(number);
            if let (false, Ok(raw)) = (
                journaled.contains(&segment),
                RawSitEntry::ref_from_bytes(entry),
            ) {
                self.load_sit_entry(segment, raw);
            }
        }
    }

    fn load_sit_entry(&mut self, segment: SegNo, raw: &RawSitEntry) {
        // The valid map is used as it is, also if count or type are wrong.
        if let Err(error) = SitEntry::decode(raw, segment) {
            self.issue(Issue::Sit(error));
        }
        self.segments[segment.0 as usize].kind = (raw.vblocks.get() >> sit::COUNT_BITS) as u8;
        self.valid.load(segment, &raw.valid_map);
    }
}
