//! The tables of the new volume, as staged blocks. All of them have their first copies current, and no journal.

use steadfs_block::Buf;

use super::Result;
use super::geometry::Target;
use super::staged::{COMPARED_MAX, Staging};
use super::state::{State, corrupt};
use super::{ResizeError, disk::Disk};
use crate::disk::checkpoint::CpFlags;
use crate::disk::summary::SummaryBlock;
use crate::disk::{
    BLOCK_SIZE, BlockAddr, Checkpoint, LogType, Nid, SEGMENT_BLOCKS, SegNo, nat, orphan, sit,
};

/// Consecutive blocks that are staged together.
struct Run<'a> {
    staging: &'a mut Staging,
    home: BlockAddr,
    blocks: Vec<Vec<u8>>,
}

impl<'a> Run<'a> {
    const fn new(staging: &'a mut Staging) -> Self {
        Self {
            staging,
            home: BlockAddr::NULL,
            blocks: Vec::new(),
        }
    }

    fn put(&mut self, disk: &mut Disk<'_>, home: BlockAddr, block: Vec<u8>) -> Result<()> {
        let follows = self.home.plus(self.blocks.len() as u32) == home;
        if !follows || self.blocks.len() >= COMPARED_MAX {
            self.end(disk)?;
            self.home = home;
        }
        self.blocks.push(block);
        Ok(())
    }

    fn end(&mut self, disk: &mut Disk<'_>) -> Result<()> {
        let blocks = std::mem::take(&mut self.blocks);
        match blocks.is_empty() {
            true => Ok(()),
            false => self.staging.put_run(disk, self.home, &blocks),
        }
    }
}

/// Refuses a new NAT that has no entries for nodes in use.
pub(super) fn check_nids(state: &State<'_>, target: &Target) -> Result<()> {
    let (old, new) = (&state.layout, target.superblock.layout());
    let beyond = |nid: &Nid| nid.0 >= new.max_nid;
    let journal = state.nat.iter();
    let mut last = journal
        .filter(|(nid, entry)| beyond(nid) && entry.is_used())
        .map(|(nid, _)| *nid)
        .max();
    for number in new.nat_blocks..old.nat_blocks {
        let block = state.nat_block(number)?;
        for slot in 0..nat::PER_BLOCK {
            let nid = Nid(number * nat::PER_BLOCK as u32 + slot as u32);
            let is_used = !state.nat.contains_key(&nid) && nat::get(&block, slot).is_used();
            last = last.max(is_used.then_some(nid));
        }
    }
    match last {
        None => Ok(()),
        Some(nid) => Err(ResizeError::refused(format!(
            "node {nid} is in use, and a volume of the new size has at most {} nodes: -s keeps the tables",
            new.max_nid
        ))),
    }
}

/// Stages all tables and the checkpoint.
pub(super) fn stage(
    state: &mut State<'_>,
    target: &Target,
    staging: &mut Staging,
    cursegs: &Cursegs,
) -> Result<()> {
    stage_sit(state, target, staging)?;
    stage_nat(state, target, staging)?;
    stage_summaries(state, target, staging)?;
    stage_checkpoint(state, target, staging, cursegs)
}

fn stage_sit(state: &mut State<'_>, target: &Target, staging: &mut Staging) -> Result<()> {
    let layout = target.superblock.layout();
    let mut run = Run::new(staging);
    let entries = &state.new[state.keep.start as usize..state.keep.end as usize];
    let mut home = layout.sit_block(0, false);
    for chunk in entries.chunks(sit::PER_BLOCK) {
        let mut block = vec![0; BLOCK_SIZE];
        for (slot, entry) in chunk.iter().enumerate() {
            sit::put(&mut block, slot, entry);
        }
        run.put(&mut state.disk, home, block)?;
        home = home.plus(1);
    }
    run.end(&mut state.disk)?;
    let unused = layout.sit_blocks - layout.sit_used_blocks();
    staging.put_zeros(&mut state.disk, home, unused)
}

fn stage_nat(state: &mut State<'_>, target: &Target, staging: &mut Staging) -> Result<()> {
    let layout = target.superblock.layout();
    let mut run = Run::new(staging);
    for number in 0..layout.nat_blocks {
        let mut block = match number < state.layout.nat_blocks {
            true => state.nat_block(number)?.to_vec(),
            false => vec![0; BLOCK_SIZE],
        };
        let per_block = nat::PER_BLOCK as u32;
        let first = number.saturating_mul(per_block);
        let nids = Nid(first)..Nid(first.saturating_add(per_block));
        for (nid, entry) in state.nat.range(nids) {
            nat::put(&mut block, (nid.0 % per_block) as usize, *entry);
        }
        run.put(&mut state.disk, layout.nat_block(number, false), block)?;
    }
    run.end(&mut state.disk)
}

/// Summary blocks of the old volume, of which several are read at once: the number of the read, and the blocks.
#[derive(Default)]
struct OldSummaries(Option<(u32, Buf)>);

impl OldSummaries {
    fn block(&mut self, state: &State<'_>, segment: u32) -> Result<Vec<u8>> {
        const AT_ONCE: u32 = COMPARED_MAX as u32;
        let number = segment / AT_ONCE;
        let blocks = match self.0.take() {
            Some((read, blocks)) if read == number => blocks,
            _ => {
                let first = SegNo(number * AT_ONCE);
                let count = state.layout.main_segments.saturating_sub(first.0);
                let at = state.layout.summary_block(first);
                state.disk.read(at, count.min(AT_ONCE))?
            }
        };
        let at = (segment % AT_ONCE) as usize * BLOCK_SIZE;
        let block = blocks.get(at..at + BLOCK_SIZE).map(<[u8]>::to_vec);
        self.0 = Some((number, blocks));
        block.ok_or_else(|| corrupt("a segment has no summary"))
    }
}

fn stage_summaries(state: &mut State<'_>, target: &Target, staging: &mut Staging) -> Result<()> {
    let layout = target.superblock.layout();
    let mut run = Run::new(staging);
    let mut old = OldSummaries::default();
    for segment in state.keep.clone() {
        let home = layout.summary_block(state.number(segment));
        let block = if let Some(block) = state.summaries.get(&segment) {
            block.encode()
        } else if state.new[segment as usize].valid == 0 {
            continue;
        } else if state.log_of(segment).is_some() {
            let block = state.summary(segment)?;
            SummaryBlock {
                journal: [0; _],
                ..block
            }
            .encode()
        } else {
            old.block(state, segment)?
        };
        run.put(&mut state.disk, home, block)?;
    }
    run.end(&mut state.disk)
}

/// The logs of the new checkpoint.
pub(super) type Cursegs = [(crate::disk::checkpoint::CursegState, SummaryBlock); 6];

fn stage_checkpoint(
    state: &mut State<'_>,
    target: &Target,
    staging: &mut Staging,
    cursegs: &Cursegs,
) -> Result<()> {
    let layout = target.superblock.layout();
    let mut checkpoint = checkpoint(state, target, cursegs);
    let head = checkpoint.encode(layout)?;
    let mut pack: Vec<Vec<u8>> = head.chunks(BLOCK_SIZE).map(<[u8]>::to_vec).collect();
    pack.extend(orphan::encode(&state.current.orphans));
    pack.extend(cursegs.iter().map(|(_, summary)| {
        let (journal, entries) = ([0; _], summary.entries.clone());
        SummaryBlock {
            journal,
            entries,
            holds: summary.holds,
        }
        .encode()
    }));
    pack.push(head[..BLOCK_SIZE].to_vec());
    let old = layout.pack_start(state.current.pack);
    let new = layout.pack_start(1 - state.current.pack);
    staging.put_run(&mut state.disk, new, &pack)?;
    // The old pack ends to be valid.
    staging.put_zeros(&mut state.disk, old, 1)
}

fn checkpoint(state: &State<'_>, target: &Target, cursegs: &Cursegs) -> Checkpoint {
    let layout = target.superblock.layout();
    let old = &state.current.checkpoint;
    let orphans = state.current.orphans.len().div_ceil(orphan::PER_BLOCK) as u32;
    let mut flags = CpFlags::UNMOUNT;
    for kept in [
        CpFlags::CRC_RECOVERY,
        CpFlags::NOCRC_RECOVERY,
        CpFlags::LARGE_NAT_BITMAP,
    ] {
        if old.flags.contains(kept) {
            flags = flags.union(kept);
        }
    }
    if orphans > 0 {
        flags = flags.union(CpFlags::ORPHANS);
    }
    let open: Vec<SegNo> = cursegs.iter().map(|(curseg, _)| curseg.segment).collect();
    let kept = &state.new[state.keep.start as usize..state.keep.end as usize];
    let free = (0..).map(SegNo).zip(kept);
    let free = free.filter(|(number, entry)| entry.valid == 0 && !open.contains(number));
    let next_free_nid = match old.next_free_nid {
        nid if nid.0 < layout.max_nid => nid,
        _ => Nid::ROOT,
    };
    Checkpoint {
        version: old.version + 1,
        user_blocks: target.user_blocks(),
        reserved_segments: target.reserved,
        overprovision_segments: target.overprovision,
        free_segments: free.count() as u32,
        logs: LogType::ALL.map(|log| cursegs[log.index()].0),
        flags,
        pack_blocks: 1 + layout.cp_payload + orphans + 6 + 1,
        start_sum: 1 + layout.cp_payload + orphans,
        next_free_nid,
        sit_bitmap: vec![0; (layout.sit_blocks / 8) as usize],
        nat_bitmap: vec![0; (layout.nat_blocks / 8) as usize],
        ..old.clone()
    }
}

/// Segments of the new volume that no log and no block uses.
pub(super) fn free_segments(state: &State<'_>, target: &Target, cursegs: &Cursegs) -> u32 {
    checkpoint(state, target, cursegs).free_segments
}

const _: () = assert!(COMPARED_MAX < SEGMENT_BLOCKS as usize);
