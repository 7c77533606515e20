//! Victim selection by age (ATGC, `atgc`): which sections are cleaned, and in which segments SSR places moved blocks.
//!
//! Blocks that were written at the same time tend to become invalid at the same time. So background GC cleans sections
//! that have not changed for long, and fills segments as old as the blocks it moves. Time stamps are seconds of mounted
//! time. Source: Linux 6.18, fs/f2fs/gc.c.

/// Values of the `atgc_*` settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeRules {
    /// `atgc_candidate_ratio`: percentage of the candidates that are examined, the oldest first.
    pub ratio: u32,
    /// `atgc_candidate_count`: candidates examined at least.
    pub count: u32,
    /// `atgc_age_threshold`: minimum age of a candidate, in seconds.
    pub threshold: u64,
    /// `atgc_age_weight`: percentage by which age counts; the rest is the share of invalid blocks.
    pub weight: u32,
}

/// Mounted time in seconds before `atgc` has an effect, and the default threshold: one week.
pub const AGE_THRESHOLD: u64 = 7 * 24 * 3600;

impl Default for AgeRules {
    fn default() -> Self {
        Self {
            ratio: 20,
            count: 10,
            threshold: AGE_THRESHOLD,
            weight: 60,
        }
    }
}

impl AgeRules {
    /// Number of candidates examined, of `candidates`.
    fn limit(&self, candidates: usize) -> usize {
        let part = u64::from(self.ratio) * candidates as u64 / 100;
        part.max(self.count.into()) as usize
    }
}

/// A candidate section or segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeCandidate {
    /// Mean time at which its blocks were written.
    pub stamp: u64,
    pub number: u32,
    /// Valid blocks: some, but not all.
    pub valid: u32,
}

/// Resolution of age and utilisation in a score.
const ACCURACY: u64 = 10_000;

/// The section to clean, of `size` blocks: the best by weighted age and share of invalid blocks; among equals the
/// older one. `newest`: the latest stamp of all sections.
pub fn oldest(
    mut candidates: Vec<AgeCandidate>,
    newest: u64,
    size: u32,
    rules: &AgeRules,
) -> Option<AgeCandidate> {
    candidates.retain(|c| newest.saturating_sub(c.stamp) >= rules.threshold);
    candidates.sort_unstable_by_key(|c| (c.stamp, c.number));
    let least = candidates.first()?.stamp;
    let end = newest.saturating_add(1);
    let span = end.saturating_sub(least).max(1);
    let accuracy = (u64::MAX / span / 100).min(ACCURACY);
    let weight = u64::from(rules.weight.min(100));
    let score = |c: &AgeCandidate| {
        let age = accuracy * end.saturating_sub(c.stamp) / span * weight;
        let free = u64::from(size.saturating_sub(c.valid));
        (
            age + accuracy * free / u64::from(size) * (100 - weight),
            age,
        )
    };
    let limit = rules.limit(candidates.len());
    let looked_at = candidates.into_iter().take(limit);
    let scored = looked_at.map(|c| (score(&c), c));
    let best = scored.reduce(|best, other| if other.0 > best.0 { other } else { best });
    best.filter(|((score, _), _)| *score > 0).map(|(_, c)| c)
}

/// The segment for blocks of this stamp: of the candidates nearest in age, on either side, the one with the most valid
/// blocks; among equals the nearer one.
pub fn nearest(
    mut candidates: Vec<AgeCandidate>,
    wanted: u64,
    rules: &AgeRules,
) -> Option<AgeCandidate> {
    candidates.sort_unstable_by_key(|c| (c.stamp, c.number));
    let limit = rules.limit(candidates.len());
    let middle = candidates.partition_point(|c| c.stamp <= wanted);
    let (below, above) = candidates.split_at(middle);
    let near = below.iter().rev().take(limit);
    let near = near.chain(above.iter().take(limit));
    near.copied().reduce(|best, other| {
        let rank = |c: &AgeCandidate| (c.valid, u64::MAX - c.stamp.abs_diff(wanted));
        if rank(&other) > rank(&best) {
            other
        } else {
            best
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfs_rt::Random;

    const SIZE: u32 = 16;

    fn random(random: &mut Random) -> (Vec<AgeCandidate>, AgeRules) {
        let mut candidates = Vec::new();
        for number in 0..random.below(40) as u32 {
            candidates.push(AgeCandidate {
                stamp: random.below(50) as u64,
                number,
                valid: 1 + random.below(SIZE as usize - 1) as u32,
            });
        }
        let rules = AgeRules {
            ratio: random.below(101) as u32,
            count: 1 + random.below(12) as u32,
            threshold: random.below(40) as u64,
            weight: random.below(101) as u32,
        };
        (candidates, rules)
    }

    /// Number of candidates ordered before `one` by this key.
    fn rank<K: Ord>(
        all: &[AgeCandidate],
        one: &AgeCandidate,
        key: impl Fn(&AgeCandidate) -> K,
    ) -> usize {
        all.iter().filter(|c| key(c) < key(one)).count()
    }

    fn looked_at(rules: &AgeRules, all: usize) -> usize {
        (rules.ratio as usize * all / 100).max(rules.count as usize)
    }

    #[test]
    fn oldest_agrees_with_the_model() {
        let mut from = Random::new(11);
        let mut chosen = 0;
        for _ in 0..20_000 {
            let (candidates, rules) = random(&mut from);
            let newest = 50 + from.below(3) as u64;
            let is_old = |c: &&AgeCandidate| c.stamp + rules.threshold <= newest;
            let old: Vec<_> = candidates.iter().filter(is_old).copied().collect();
            let least = old.iter().map(|c| c.stamp).min().unwrap_or(0);
            let span = newest + 1 - least;
            let parts = |c: &AgeCandidate| {
                let age = 10_000 * (newest + 1 - c.stamp) / span * u64::from(rules.weight);
                let free = 10_000 * u64::from(SIZE - c.valid) / u64::from(SIZE);
                (age, age + free * u64::from(100 - rules.weight))
            };
            let limit = looked_at(&rules, old.len());
            let expected = old
                .iter()
                .filter(|c| rank(&old, c, |c| (c.stamp, c.number)) < limit)
                .filter(|c| parts(c).1 > 0)
                .min_by_key(|c| {
                    let (age, score) = parts(c);
                    (u64::MAX - score, u64::MAX - age, c.stamp, c.number)
                });
            let found = oldest(candidates, newest, SIZE, &rules);
            assert_eq!(found.as_ref(), expected, "{rules:?}");
            chosen += u32::from(found.is_some());
        }
        assert!(chosen > 10_000);
    }

    #[test]
    fn nearest_agrees_with_the_model() {
        let mut from = Random::new(12);
        for _ in 0..20_000 {
            let (candidates, rules) = random(&mut from);
            let wanted = from.below(60) as u64;
            let limit = looked_at(&rules, candidates.len());
            let (below, above): (Vec<AgeCandidate>, Vec<AgeCandidate>) =
                candidates.iter().partition(|c| c.stamp <= wanted);
            let later = |c: &AgeCandidate| (u64::MAX - c.stamp, u32::MAX - c.number);
            let near = |c: &&AgeCandidate| match c.stamp <= wanted {
                true => rank(&below, c, later) < limit,
                false => rank(&above, c, |c| (c.stamp, c.number)) < limit,
            };
            let expected = candidates.iter().filter(near).map(|c| {
                let far = c.stamp.abs_diff(wanted);
                (SIZE - c.valid, far)
            });
            let found = nearest(candidates.clone(), wanted, &rules);
            let found = found.map(|c| (SIZE - c.valid, c.stamp.abs_diff(wanted)));
            assert_eq!(found, expected.min(), "{rules:?}");
        }
    }

    #[test]
    fn huge_stamps_do_not_overflow() {
        let one = |stamp| AgeCandidate {
            stamp,
            number: 1,
            valid: 1,
        };
        let rules = AgeRules::default();
        // The resolution is too small for ages this far apart: no candidate has a score.
        let all = vec![one(0), one(u64::MAX)];
        assert_eq!(oldest(all.clone(), u64::MAX, SIZE, &rules), None);
        assert_eq!(nearest(all, u64::MAX, &rules), Some(one(u64::MAX)));
        let end = u64::MAX >> 10;
        let all = vec![one(end), one(0)];
        assert_eq!(oldest(all, end, SIZE, &rules), Some(one(0)));
    }
}
