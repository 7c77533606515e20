//! The images that a crash at one position may leave.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use steadfs_block::Op;
use steadfs_rt::Random;

use super::change::Change;
use super::content_tree::ContentTree;
use super::image::Image;

/// Number of parts into which a discard or a write of zeroes may be torn.
const ZERO_PARTS: u64 = 8;

/// The undecided changes that survive a crash. Changes are numbered in the order of [`Cut::doubtful`], units through
/// all of them in that order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Survivors {
    /// None.
    None,
    /// All, whole.
    All,
    /// A random choice of this seed, with torn changes.
    Seeded(u64),
    /// Whole changes: one flag each.
    Changes(Vec<bool>),
    /// Atomic units: one flag each.
    Units(Vec<bool>),
}

/// A change that is not in the durable content yet.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The change.
    pub change: Arc<Change>,
    /// Whether it had not completed.
    pub in_flight: bool,
    /// Whether it certainly survives (FUA).
    pub certain: bool,
}

impl Pending {
    /// The byte ranges that survive atomically.
    fn units(&self, atomic: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let (mut at, end) = (self.change.offset, self.change.end());
        let unit = match self.change.op {
            Op::Write => atomic,
            _ => (self.change.len / ZERO_PARTS)
                .next_multiple_of(atomic)
                .max(atomic),
        };
        std::iter::from_fn(move || {
            let next = ((at / unit + 1) * unit).min(end);
            let range = at..next;
            at = next;
            (!range.is_empty()).then_some(range)
        })
    }
}

/// The images that a crash at one position may leave.
#[derive(Clone)]
pub struct Cut {
    durable: ContentTree,
    pending: Vec<Pending>,
    atomic: u64,
    units: usize,
}

impl Cut {
    pub(super) fn new(durable: ContentTree, pending: Vec<Pending>, atomic: u64) -> Self {
        let mut cut = Self {
            durable,
            pending,
            atomic,
            units: 0,
        };
        cut.units = cut.doubtful().map(|p| p.units(atomic).count()).sum();
        cut
    }

    /// The changes that may or may not survive: completed ones in the order of their completion, then those in flight.
    pub fn doubtful(&self) -> impl Iterator<Item = &Pending> {
        self.pending.iter().filter(|pending| !pending.certain)
    }

    /// Number of changes that may or may not survive.
    pub fn changes(&self) -> usize {
        self.doubtful().count()
    }

    /// Number of their atomic units.
    pub fn units(&self) -> usize {
        self.units
    }

    /// At most `limit` distinct choices (at least two). All subsets of units, if `limit` allows; else none and all, and
    /// all subsets of whole changes, if `limit` allows; else each prefix, each all-but-one and each single change up to
    /// half the limit, and random choices of `seed` with torn changes.
    pub fn choices(&self, limit: usize, seed: u64) -> Vec<Survivors> {
        let (changes, units) = (self.changes(), self.units);
        let fits = |bits: usize, limit: usize| bits < 48 && 1u64 << bits <= limit as u64;
        if fits(units, limit) {
            return subsets(units).map(Survivors::Units).collect();
        }
        let mut chosen = vec![Survivors::None, Survivors::All];
        if fits(changes, limit) {
            let proper = subsets(changes).filter(|s| s.contains(&true) && s.contains(&false));
            chosen.extend(proper.map(Survivors::Changes));
        } else {
            let half = (limit / 2).saturating_sub(chosen.len());
            chosen.extend(corners(changes, half).map(Survivors::Changes));
        }
        let rest = limit.saturating_sub(chosen.len()) as u64;
        chosen.extend((0..rest).map(|n| Survivors::Seeded(seed.wrapping_add(n))));
        chosen
    }

    /// The flags of all units that `survivors` describes.
    ///
    /// # Panics
    /// If the number of flags differs from the number of changes or units.
    pub fn units_of(&self, survivors: &Survivors) -> Vec<bool> {
        match survivors {
            Survivors::None => vec![false; self.units],
            Survivors::All => vec![true; self.units],
            Survivors::Seeded(seed) => self.seeded(*seed),
            Survivors::Changes(flags) => {
                assert_eq!(flags.len(), self.changes(), "one flag for each change");
                let each = self.doubtful().zip(flags);
                let units = each.flat_map(|(p, keep)| p.units(self.atomic).map(|_| *keep));
                units.collect()
            }
            Survivors::Units(flags) => {
                assert_eq!(flags.len(), self.units, "one flag for each unit");
                flags.clone()
            }
        }
    }

    fn seeded(&self, seed: u64) -> Vec<bool> {
        let mut random = Random::new(seed);
        let keep = [128, 512, 896][random.below(3)];
        let tear = [0, 256, 768][random.below(3)];
        let mut flags = Vec::with_capacity(self.units);
        for pending in self.doubtful() {
            let units = pending.units(self.atomic);
            if random.chance(tear) {
                flags.extend(units.map(|_| random.chance(keep)));
            } else {
                let keep = random.chance(keep);
                flags.extend(units.map(|_| keep));
            }
        }
        flags
    }

    /// The image that is left if `survivors` survive.
    ///
    /// # Panics
    /// As [`Cut::units_of`].
    pub fn image(&self, survivors: &Survivors) -> Image {
        let flags = self.units_of(survivors);
        let mut flags = flags.as_slice();
        let mut tree = self.durable.clone();
        for pending in &self.pending {
            let change = &pending.change;
            if pending.certain {
                change.apply(&mut tree, change.offset..change.end());
                continue;
            }
            let units: Vec<_> = pending.units(self.atomic).collect();
            let (mine, rest) = flags.split_at(units.len());
            flags = rest;
            let mut at = 0;
            for run in mine.chunk_by(|a, b| a == b) {
                let last = at + run.len() - 1;
                if run[0] {
                    change.apply(&mut tree, units[at].start..units[last].end);
                }
                at = last + 1;
            }
        }
        Image { tree }
    }

    /// One line per undecided change: the change, and which part of it survives.
    pub fn describe(&self, survivors: &Survivors) -> String {
        let flags = self.units_of(survivors);
        let mut flags = flags.as_slice();
        let mut text = String::new();
        for pending in self.doubtful() {
            let (mine, rest) = flags.split_at(pending.units(self.atomic).count());
            flags = rest;
            let Change {
                id,
                op,
                offset,
                len,
                ..
            } = &*pending.change;
            let when = if pending.in_flight {
                "in flight"
            } else {
                "completed"
            };
            let kept = mine.iter().filter(|keep| **keep).count();
            let result = match kept {
                0 => "lost".to_owned(),
                n if n == mine.len() => "survives".to_owned(),
                n => format!("torn: {n} of {} units survive", mine.len()),
            };
            writeln!(
                text,
                "#{id} {op:?} of {len} bytes at byte {offset}, {when}: {result}"
            )
            .expect("a string takes text");
        }
        text
    }
}

/// All subsets of `n` elements, the empty one first.
fn subsets(n: usize) -> impl Iterator<Item = Vec<bool>> {
    (0..1u64 << n).map(move |mask| (0..n).map(|bit| mask >> bit & 1 == 1).collect())
}

/// Prefixes, all-but-one and single-element subsets of `n` elements, without the empty and the full set; at most
/// `limit`, evenly chosen.
fn corners(n: usize, limit: usize) -> impl Iterator<Item = Vec<bool>> {
    let flags = move |keep: &dyn Fn(usize) -> bool| (0..n).map(keep).collect::<Vec<_>>();
    let prefixes = (1..n).map(move |upto| flags(&|i| i < upto));
    // The prefix without the last element, and the first element alone, are there already.
    let but_one = (0..n.saturating_sub(1)).map(move |one| flags(&|i| i != one));
    let single = (1..n).map(move |one| flags(&|i| i == one));
    let stride = (3 * n).div_ceil(limit.max(1)).max(1);
    let all = prefixes.chain(but_one).chain(single);
    all.step_by(stride).take(limit)
}
