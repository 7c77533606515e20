//! The smallest volume for what it is filled with (`format --fit`).
//!
//! **Problem.** How many blocks a tree takes depends on the format: extents or maps of blocks, directories and their
//! index, attributes outside of inodes, inline data. **Rule.** The volume itself is asked. It is made in passes over one
//! sparse file, and at most [`PASSES_MAX`] of them:
//!
//! 1. A volume that is larger than needed, by the number of names and the sizes of files, is filled and measured.
//! 2. The smallest volume that has room for the measured blocks and inodes, and for the space that shall stay free, is
//!    filled. Its size comes from the numbers of mkfs alone, without another volume being made.
//! 3. If that one is full before its end, because free space in it is more scattered and files need more extents, or has
//!    too little left, the next one has room for more.
//!
//! All of this follows from the tree and the options, so that a reproducible volume has the same size everywhere: the
//! numbers of blocks that the host stores files in are not used. Of 13 000 files in 190 MB, 4 of 186 520 blocks were free in
//! the result on ext4 and 7 on ext2, and less than a segment of 2 MiB on f2fs; each pass after the second one adds 0.1 %,
//! 0.2 %, 0.4 % and so on.

use steadfs_ext4::format as ext;
use steadfs_f2fs::format as f2fs;
use steadfs_vfs::StatFs;

use crate::fill::FillSource;

/// Most times that a volume is made and filled.
const PASSES_MAX: u32 = 8;
/// Most times that the volume which is measured is made larger.
const GUESSES_MAX: u32 = 3;
/// Sector size of an image file in bytes.
const SECTOR: u32 = 512;
/// Bytes of free space for each free inode, as mke2fs has it by default.
const FREE_BYTES_PER_INODE: u64 = 16 << 10;
/// Inodes that a volume has for itself, at most, and fewest that it can have.
const OWN_INODES: u64 = 32;
const INODES_MIN: u64 = 16;
/// Most blocks that Linux keeps back on volumes with extents, of which it shows users a 50th less.
const KERNEL_RESERVE_MAX: u64 = 4096;
/// Most inodes of a volume.
const INODES_MAX: u64 = 1 << 32;
/// Bytes by which the volume that is measured is larger at least: f2fs needs about as many for itself.
const GUESS_BYTES: u64 = 64 << 20;
/// Most sizes that mkfs may refuse as too small.
const REFUSALS_MAX: u32 = 1024;
/// Bytes of a segment and of a block of f2fs.
const SEGMENT_BYTES: u64 = 2 << 20;
const F2FS_BLOCK: u32 = 4096;
/// Most of the volume that can be asked to stay free, in percent.
pub const FREE_PERCENT_MAX: f64 = 90.0;

/// What shall stay free in the volume for users without privileges. Without that, root's reserve may be used up, too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FitFree {
    /// Bytes; 0: nothing.
    Bytes(u64),
    /// Percent of the volume's size, at most [`FREE_PERCENT_MAX`].
    Percent(f64),
}

/// The volume to be made: its size is not given.
#[derive(Clone, Debug)]
pub enum FitKind {
    /// ext2, ext3 or ext4.
    Ext(Box<ext::FormatOptions>),
    /// f2fs.
    F2fs(Box<f2fs::FormatOptions>),
}

/// What an ext volume is made with beside its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitPlan {
    /// Size of the volume in bytes.
    pub size: u64,
    /// ext: number of inodes, if the options do not have it.
    pub inodes: Option<u64>,
    /// ext: bytes in a block.
    pub block_size: Option<u32>,
}

/// Result of a pass.
#[derive(Clone, Debug)]
pub enum FitPass {
    /// All was copied; this is the usage of the volume then, synced.
    Filled(StatFs),
    /// The volume was full before its end.
    Full(StatFs),
}

/// What files need on any volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weight {
    names: u64,
    name_bytes: u64,
    /// Bytes of the contents of files, in units of 4 KiB.
    content: u64,
}

/// Blocks and inodes in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    blocks: u64,
    inodes: u64,
}

/// What a new volume offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Capacity {
    /// Its size in blocks.
    blocks: u64,
    block_size: u32,
    /// Blocks that can be used, the reserved ones among them.
    free: u64,
    /// Blocks that users without privileges are not shown: root's, and those that Linux keeps back for extents.
    reserved: u64,
    inodes: u64,
}

/// The search for the smallest volume.
#[derive(Debug)]
pub struct Fit {
    kind: FitKind,
    free: FitFree,
    plan: FitPlan,
    passes: u32,
    /// By how much the measured volume was made larger.
    guesses: u32,
    weight: Weight,
    /// Known once a volume was filled.
    need: Option<Need>,
    /// How often that was not enough.
    growths: u32,
    /// Size of the last volume that was planned by it.
    tried: Option<u64>,
}

impl Fit {
    /// Begins with a volume that has room for what `source` has.
    ///
    /// # Errors
    /// The options make no volume.
    pub fn new(kind: FitKind, free: FitFree, source: &FillSource) -> Result<Self, String> {
        let mut fit = Self {
            kind,
            free,
            plan: FitPlan {
                size: 0,
                inodes: None,
                block_size: None,
            },
            passes: 0,
            guesses: 0,
            weight: weigh(source),
            need: None,
            growths: 0,
            tried: None,
        };
        fit.guess()?;
        Ok(fit)
    }

    /// What the next volume is made with.
    pub fn plan(&self) -> FitPlan {
        self.plan
    }

    /// Takes the result of a pass. Returns whether the volume is the one to be made; if not, there is a new plan.
    ///
    /// # Errors
    /// Nothing more can be tried.
    pub fn record(&mut self, pass: &FitPass) -> Result<bool, String> {
        self.passes += 1;
        match pass {
            FitPass::Filled(space) => {
                let offered = self.capacity(self.plan.size, self.plan.inodes)?;
                if self.tried.is_some() && self.is_enough(space, &offered) {
                    return Ok(true);
                }
                self.need = Some(Need {
                    blocks: offered.free.saturating_sub(space.blocks_free),
                    inodes: space.files.saturating_sub(space.files_free).min(INODES_MAX),
                });
            }
            FitPass::Full(space) => self.grow(space)?,
        }
        if self.passes >= PASSES_MAX {
            return Err(format!("no size was found in {PASSES_MAX} attempts"));
        }
        match self.need {
            None => self.guess()?,
            Some(need) => {
                let least = self.tried.map_or(0, |tried| tried + self.step());
                self.plan = self.smallest(need)?;
                self.plan.size = self.plan.size.max(least);
                self.tried = Some(self.plan.size);
            }
        }
        Ok(false)
    }

    /// Makes the next volume larger than one that was full.
    fn grow(&mut self, space: &StatFs) -> Result<(), String> {
        if let FitKind::Ext(options) = &self.kind
            && let Some(count) = options.inodes
            && space.files_free == 0
        {
            return Err(format!("{count} inodes (-N) are too few for the files"));
        }
        match &mut self.need {
            Some(need) => {
                need.blocks += (need.blocks >> 10).max(4) << self.growths;
                self.growths += 1;
            }
            None if self.guesses >= GUESSES_MAX => {
                let why = "more space does not help";
                return Err(format!(
                    "the volume is full with {} bytes: {why}",
                    self.plan.size
                ));
            }
            None => self.guesses += 1,
        }
        Ok(())
    }

    fn is_enough(&self, space: &StatFs, offered: &Capacity) -> bool {
        let extra = self.free.bytes_of(self.plan.size);
        let left = space.blocks_free.saturating_sub(offered.reserved);
        extra == 0 || left.saturating_mul(offered.block_size.into()) >= extra
    }

    /// Plans a volume that is larger than the tree needs.
    fn guess(&mut self) -> Result<(), String> {
        let inodes = self.weight.names.saturating_add(OWN_INODES);
        let of_content = self.weight.bytes().saturating_mul(1 << (2 * self.guesses));
        let with_tables = of_content.saturating_add(of_content / 4 + GUESS_BYTES);
        let mut size = with_tables - with_tables % self.step();
        loop {
            match self.offer(size, inodes) {
                Ok((inodes, offered)) => {
                    self.plan = FitPlan {
                        size,
                        inodes,
                        // Its default depends on the size; it is the same in all passes.
                        block_size: Some(offered.block_size),
                    };
                    return Ok(());
                }
                // Files of holes can be larger than any volume.
                Err(_) if size >= 1 << 40 => size = size / 2 / self.step() * self.step(),
                Err(error) => return Err(error),
            }
        }
    }

    /// The smallest volume with room for `need` and what shall stay free. A step never passes it: a further block of the
    /// volume gives at most one free block, without its part that is reserved or shall stay free.
    fn smallest(&self, need: Need) -> Result<FitPlan, String> {
        let step = self.step();
        let table = match &self.kind {
            FitKind::Ext(options) => need.inodes * u64::from(options.inode_size.unwrap_or(256)),
            FitKind::F2fs(_) => 0,
        };
        let unit = u64::from(self.plan.block_size.unwrap_or(1024));
        let mut size = (need.blocks * unit + table)
            .next_multiple_of(step)
            .max(step);
        let mut refusals = 0;
        loop {
            let extra = self.free.bytes_of(size);
            let wanted_inodes = need.inodes + extra / FREE_BYTES_PER_INODE;
            let (inodes, offered) = match self.offer(size, wanted_inodes) {
                Ok(offer) => offer,
                Err(error) if refusals == REFUSALS_MAX => return Err(error),
                // Too small.
                Err(_) => {
                    refusals += 1;
                    size += step << (refusals / 64).min(20);
                    continue;
                }
            };
            let reserved = if extra > 0 { offered.reserved } else { 0 };
            let wanted = need.blocks + extra.div_ceil(unit) + reserved;
            let missing = wanted.saturating_sub(offered.free);
            let missing_inodes = need.inodes.saturating_sub(offered.inodes);
            if missing == 0 && missing_inodes == 0 {
                return Ok(FitPlan {
                    // Blocks that are too few for a group of their own are left out.
                    size: size.min(offered.blocks * unit),
                    inodes,
                    ..self.plan
                });
            }
            // Both parts are rounded to blocks.
            let more = missing.saturating_sub(2) as f64 / self.share_for_files();
            let more = more as u64 * unit;
            let more = more.max(missing_inodes.saturating_mul(self.inode_ratio()));
            size += (more / step * step).max(step);
        }
    }

    /// What a volume of this size offers, with at least `wanted` inodes if their number is open, and that number.
    fn offer(&self, size: u64, wanted: u64) -> Result<(Option<u64>, Capacity), String> {
        let mut inodes = self.inodes(wanted.max(INODES_MIN));
        loop {
            let offered = self.capacity(size, inodes)?;
            match &mut inodes {
                // mkfs rounds the number down to whole blocks of each group's table.
                Some(count) if offered.inodes < wanted => *count += wanted - offered.inodes,
                _ => return Ok((inodes, offered)),
            }
        }
    }

    /// The part of a further block that files can use.
    fn share_for_files(&self) -> f64 {
        let reserved = match &self.kind {
            FitKind::Ext(options) if self.free.bytes_of(1 << 30) > 0 => options.reserved_percent,
            _ => 0.0,
        };
        let free = match self.free {
            FitFree::Bytes(_) => 0.0,
            FitFree::Percent(percent) => percent,
        };
        (1.0 - (free + reserved) / 100.0).max(0.01)
    }

    /// Bytes that sizes are multiples of.
    fn step(&self) -> u64 {
        match &self.kind {
            FitKind::Ext(options) => options.allocation_unit(self.plan.block_size.unwrap_or(1024)),
            FitKind::F2fs(options) => {
                let segments = u64::from(options.segments_per_section);
                SEGMENT_BYTES * (segments * u64::from(options.sections_per_zone)).max(1)
            }
        }
    }

    /// A number of inodes, if the options leave it open.
    fn inodes(&self, count: u64) -> Option<u64> {
        match &self.kind {
            FitKind::Ext(options) if options.inodes.is_none() && options.inode_ratio.is_none() => {
                Some(count)
            }
            _ => None,
        }
    }

    fn inode_ratio(&self) -> u64 {
        match &self.kind {
            FitKind::Ext(options) => options.inode_ratio.unwrap_or(1).into(),
            FitKind::F2fs(_) => 1,
        }
    }

    fn capacity(&self, size: u64, inodes: Option<u64>) -> Result<Capacity, String> {
        let plan = FitPlan {
            size,
            inodes,
            ..self.plan
        };
        match &self.kind {
            FitKind::Ext(options) => {
                let report = ext::dry_run(size, SECTOR, &plan.ext(options));
                let report = report.map_err(|error| error.to_string())?;
                let of_kernel = match report.features.iter().any(|name| name == "extent") {
                    true => (report.blocks / 50).min(KERNEL_RESERVE_MAX),
                    false => 0,
                };
                Ok(Capacity {
                    blocks: report.blocks,
                    block_size: report.block_size,
                    free: report.free_blocks,
                    reserved: report.reserved_blocks + of_kernel,
                    inodes: report.inodes.into(),
                })
            }
            FitKind::F2fs(options) => {
                let report = f2fs::dry_run(size, SECTOR, options);
                let report = report.map_err(|error| error.to_string())?;
                Ok(Capacity {
                    blocks: report.blocks,
                    block_size: F2FS_BLOCK,
                    free: report.user_blocks,
                    reserved: 0,
                    inodes: u64::MAX,
                })
            }
        }
    }
}

impl FitPlan {
    /// The options of an ext volume with what is planned.
    pub fn ext(&self, options: &ext::FormatOptions) -> ext::FormatOptions {
        ext::FormatOptions {
            block_size: self.block_size.or(options.block_size),
            inodes: self.inodes.or(options.inodes),
            ..options.clone()
        }
    }
}

impl FitFree {
    /// Bytes of a volume of this size.
    fn bytes_of(self, size: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (size as f64 * percent / 100.0).ceil() as u64,
        }
    }
}

impl Weight {
    fn add(&mut self, name: usize, size: u64) {
        self.names += 1;
        self.name_bytes += name as u64;
        self.content = self.content.saturating_add(size.next_multiple_of(4096));
    }

    /// More bytes than it takes on a volume: for each file an inode, and a block of 4 KiB each for attributes, a
    /// directory and a map; directories that are half full.
    fn bytes(&self) -> u64 {
        let of_names =
            self.names.saturating_mul(3 * 4096 + 512) + self.name_bytes.saturating_mul(4);
        self.content.saturating_add(of_names)
    }
}

/// The names and sizes below the source's top. What cannot be read counts nothing: the copy reports it.
fn weigh(source: &FillSource) -> Weight {
    let mut weight = Weight::default();
    match source {
        FillSource::Archive(tree) => {
            for (name, size) in tree.names() {
                weight.add(name.len(), size);
            }
        }
        FillSource::Directory(top) => {
            let mut folders = vec![top.clone()];
            while let Some(folder) = folders.pop() {
                for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                    let Ok(found) = entry.metadata() else {
                        continue;
                    };
                    let size = if found.is_file() { found.len() } else { 0 };
                    weight.add(entry.file_name().len(), size);
                    if found.is_dir() {
                        folders.push(entry.path());
                    }
                }
            }
        }
    }
    weight
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn fit(kind: FitKind, free: FitFree) -> Fit {
        let plan = FitPlan {
            size: 0,
            inodes: None,
            block_size: Some(4096),
        };
        Fit {
            kind,
            free,
            plan,
            passes: 0,
            guesses: 0,
            weight: Weight::default(),
            need: None,
            growths: 0,
            tried: None,
        }
    }

    fn ext(options: ext::FormatOptions) -> FitKind {
        FitKind::Ext(Box::new(options))
    }

    /// No smaller volume has the room.
    #[test]
    fn the_planned_volume_is_the_smallest_one() {
        let kinds = [
            ext(ext::FormatOptions::default()),
            ext(ext::FormatOptions::of(ext::Kind::Ext2)),
            ext(ext::FormatOptions {
                inode_ratio: Some(65536),
                ..ext::FormatOptions::default()
            }),
            FitKind::F2fs(Box::default()),
        ];
        let frees = [
            FitFree::Bytes(0),
            FitFree::Bytes(5 * MIB + 1),
            FitFree::Percent(25.0),
            FitFree::Percent(FREE_PERCENT_MAX),
        ];
        for (kind, free) in kinds.iter().flat_map(|kind| frees.map(|free| (kind, free))) {
            let fit = fit(kind.clone(), free);
            for (blocks, inodes) in [(20, 12), (900, 3000), (33_000, 400), (70_000, 20_000)] {
                let plan = fit.smallest(Need { blocks, inodes }).unwrap();
                let holds = |size: u64| {
                    let Ok(offered) = fit.capacity(size, plan.inodes) else {
                        return false;
                    };
                    let extra = free.bytes_of(size);
                    let reserved = if extra > 0 { offered.reserved } else { 0 };
                    offered.inodes >= inodes
                        && offered.free >= blocks + reserved + extra.div_ceil(4096)
                };
                assert!(holds(plan.size), "{kind:?} {free:?} {blocks}: {plan:?}");
                // With a given ratio the number of inodes is rounded up as well.
                let is_exact = plan.inodes.is_some() || matches!(kind, FitKind::F2fs(_));
                for smaller in 1..=if is_exact { 40 } else { 0 } {
                    let size = plan.size.saturating_sub(smaller * fit.step());
                    assert!(
                        !holds(size),
                        "{kind:?} {free:?} {blocks}: {plan:?}, {smaller}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_full_volume_is_followed_by_a_larger_one() {
        let mut fit = fit(ext(ext::FormatOptions::default()), FitFree::Bytes(0));
        fit.guess().unwrap();
        let full = FitPass::Full(StatFs {
            files_free: 9,
            ..StatFs::default()
        });
        let mut last = fit.plan().size;
        for _ in 0..GUESSES_MAX {
            assert_eq!(fit.record(&full), Ok(false));
            assert!(fit.plan().size >= last);
            last = fit.plan().size;
        }
        assert!(fit.record(&full).unwrap_err().contains("does not help"));
        fit.passes = 1;
        fit.need = Some(Need {
            blocks: 5000,
            inodes: 100,
        });
        fit.plan = fit.smallest(fit.need.unwrap()).unwrap();
        for _ in 2..PASSES_MAX {
            last = fit.plan().size;
            assert_eq!(fit.record(&full), Ok(false));
            assert!(fit.plan().size > last);
        }
        assert!(fit.record(&full).unwrap_err().contains("attempts"));
    }
}
