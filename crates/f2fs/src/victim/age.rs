//! Choosing by age (`atgc`): the sections that are cleaned, and the holes that what is moved goes to.
//!
//! Blocks that were written at one time tend to become invalid at one time. So the background cleans
//! sections that have not changed for long, and fills holes of segments as old as what it moves.
//! Stamps are seconds of mounted time. Facts: Linux 6.18, fs/f2fs/gc.c.

/// What `atgc_*` set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeRules {
    /// `atgc_candidate_ratio`: percent of the candidates that are looked at, the oldest first.
    pub ratio: u32,
    /// `atgc_candidate_count`: so many at least.
    pub count: u32,
    /// `atgc_age_threshold`: who changed so many seconds ago, or more, is a candidate.
    pub threshold: u64,
    /// `atgc_age_weight`: percent that age counts; the rest is for what is invalid.
    pub weight: u32,
}

/// Mounted time from which on `atgc` has an effect, and the threshold unless another is set: a week.
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
    /// How many of so many candidates are looked at.
    fn limit(&self, candidates: usize) -> usize {
        let part = u64::from(self.ratio) * candidates as u64 / 100;
        part.max(self.count.into()) as usize
    }
}

/// A section, or a segment, that may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeCandidate {
    /// When its blocks were written, on average.
    pub stamp: u64,
    /// Its number.
    pub number: u32,
    /// Its valid blocks: some, but not all.
    pub valid: u32,
}

/// The finest that age and fill are told apart.
const ACCURACY: u64 = 10_000;

/// The section to clean, of `size` blocks each: old and empty, by weight; among equals the older one.
/// `newest`: the latest stamp of all.
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

/// The segment whose holes blocks of this stamp go to: of those nearest to it, on either side, the
/// fullest; among equals the nearer one.
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

    /// How many candidates come before one, if they are ordered by this key.
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
    fn the_oldest_agrees_with_the_model() {
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
    fn the_nearest_agrees_with_the_model() {
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
        // Ages that far apart are not told from each other any more; none has anything for it.
        let all = vec![one(0), one(u64::MAX)];
        assert_eq!(oldest(all.clone(), u64::MAX, SIZE, &rules), None);
        assert_eq!(nearest(all, u64::MAX, &rules), Some(one(u64::MAX)));
        let end = u64::MAX >> 10;
        let all = vec![one(end), one(0)];
        assert_eq!(oldest(all, end, SIZE, &rules), Some(one(0)));
    }
}
