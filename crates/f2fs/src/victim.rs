//! Scan for a victim segment or section, for GC and SSR: a pure function of bitmaps, costs and a cursor.
//!
//! A scan goes over the candidates from the cursor on, wraps around once, and ends when `limit` candidates were
//! examined. The cheapest one wins; among equals the first. The cursor is then behind the last one examined, so a small
//! limit is a moving window. The caller supplies the costs (`None`: the candidate must not be taken).

pub mod age;

use crate::segment::map::BitSet;

/// Parameters of a scan.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    pub candidates: &'a BitSet,
    /// Number of segments or sections.
    pub total: u32,
    /// Step between candidates: 1, or the number of segments in a section, whose first set bit then stands for all.
    pub unit: u32,
    /// Where the last scan of this kind ended.
    pub cursor: u32,
    /// Whether the scan begins at the cursor; otherwise at 0.
    pub from_cursor: bool,
    /// Candidates examined at most; `None`: all.
    pub limit: Option<u32>,
}

/// Result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanResult {
    /// The cheapest candidate and its cost.
    pub victim: Option<(u32, u64)>,
    /// Where the next scan of this kind begins.
    pub cursor: u32,
    /// Candidates examined.
    pub looked_at: u32,
}

impl ScanResult {
    /// Nothing examined, at this cursor.
    const fn at(cursor: u32) -> Self {
        Self {
            victim: None,
            cursor,
            looked_at: 0,
        }
    }

    /// Takes a candidate that is cheaper than the one found.
    fn compare(&mut self, candidate: u32, cost: Option<u64>) {
        if let Some(cost) = cost
            && self.victim.is_none_or(|(_, least)| cost < least)
        {
            self.victim = Some((candidate, cost));
        }
    }
}

/// Scans for the candidate with the least cost, by the rules of Linux 6.18: each candidate counts towards the limit.
pub fn scan(scan: Scan<'_>, mut cost: impl FnMut(u32) -> Option<u64>) -> ScanResult {
    assert!(scan.unit > 0 && scan.total > 0);
    let start = scan.cursor;
    let mut found = ScanResult::at(start);
    if scan.limit == Some(0) {
        return found;
    }
    let mut at = if scan.from_cursor { start } else { 0 };
    let mut end = scan.total;
    loop {
        let Some(candidate) = scan.candidates.next(at, end) else {
            if found.cursor == 0 {
                return found;
            }
            // Wrap around, to what is before the cursor.
            (at, end, found.cursor) = (0, found.cursor, 0);
            continue;
        };
        at = candidate + scan.unit;
        found.compare(candidate, cost(candidate));
        found.looked_at += 1;
        if scan.limit.is_some_and(|limit| found.looked_at >= limit) {
            let wrapped = found.cursor == 0 && candidate <= start;
            let last = if wrapped { start } else { candidate };
            found.cursor = (last + scan.unit) % scan.total;
            return found;
        }
    }
}

/// The same by the rules of Linux 3.11 (before `max_victim_search`): candidates that must not be taken do not count
/// towards the limit, one more than the limit is examined, the cursor stays on the last one, and a scan that wrapped
/// around goes over all of them.
pub fn scan_2013(scan: Scan<'_>, mut cost: impl FnMut(u32) -> Option<u64>) -> ScanResult {
    assert!(scan.unit > 0 && scan.total > 0);
    let mut found = ScanResult::at(scan.cursor);
    if scan.limit == Some(0) {
        return found;
    }
    let mut at = if scan.from_cursor { scan.cursor } else { 0 };
    loop {
        let Some(candidate) = scan.candidates.next(at, scan.total) else {
            if found.cursor == 0 {
                return found;
            }
            (at, found.cursor) = (0, 0);
            continue;
        };
        at = candidate - candidate % scan.unit + scan.unit;
        let cost = cost(candidate);
        found.compare(candidate, cost);
        if cost.is_none() {
            continue;
        }
        found.looked_at += 1;
        if scan.limit.is_some_and(|limit| found.looked_at > limit) {
            found.cursor = candidate;
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfs_rt::Random;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Rules {
        Linux618,
        Linux2013,
    }

    /// A model: lists the candidates examined, in order, and takes the first of the cheapest.
    fn model(rules: Rules, scan: Scan<'_>, costs: &[Option<u64>]) -> ScanResult {
        let unit = scan.unit;
        let listed = |from: u32, to: u32| {
            let mut list = Vec::new();
            let mut at = from;
            while at < to {
                if scan.candidates.get(at) {
                    list.push(at);
                    at = match rules {
                        Rules::Linux2013 => (at / unit + 1) * unit,
                        Rules::Linux618 => at + unit,
                    };
                } else {
                    at += 1;
                }
            }
            list
        };
        let first = if scan.from_cursor { scan.cursor } else { 0 };
        let mut order = listed(first, scan.total);
        let before_wrap = order.len();
        if scan.cursor > 0 {
            order.extend(match rules {
                Rules::Linux2013 => listed(0, scan.total),
                Rules::Linux618 => listed(0, scan.cursor),
            });
        }
        let counts = |n: &u32| rules == Rules::Linux618 || costs[*n as usize].is_some();
        let limit = scan.limit.map(|limit| match rules {
            Rules::Linux2013 if limit > 0 => limit as usize + 1,
            _ => limit as usize,
        });
        let mut looked_at = 0;
        let mut seen = Vec::new();
        let mut stopped = None;
        for (i, n) in order.iter().enumerate() {
            if limit == Some(0) {
                break;
            }
            seen.push(*n);
            looked_at += u32::from(counts(n));
            if counts(n) && Some(looked_at as usize) == limit {
                stopped = Some((i, *n));
                break;
            }
        }
        let victim = seen
            .iter()
            .filter_map(|n| costs[*n as usize].map(|cost| (*n, cost)))
            .reduce(|a, b| if b.1 < a.1 { b } else { a });
        let cursor = match (stopped, rules) {
            (None, _) if limit == Some(0) => scan.cursor,
            (None, _) => 0,
            (Some((_, n)), Rules::Linux2013) => n,
            (Some((i, n)), Rules::Linux618) => {
                let wrapped = scan.cursor > 0 && i >= before_wrap;
                let no_cursor = scan.cursor == 0 && n == 0;
                let last = if wrapped || no_cursor { scan.cursor } else { n };
                (last + unit) % scan.total
            }
        };
        ScanResult {
            victim,
            cursor,
            looked_at,
        }
    }

    #[test]
    fn agrees_with_the_model() {
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let unit = [1, 1, 4][random.below(3)];
            let total = (1 + random.below(40) as u32) * unit;
            let mut candidates = BitSet::new(total);
            let mut costs = vec![None; total as usize];
            for n in (0..total).step_by(unit as usize) {
                candidates.put(n, random.chance(500));
                costs[n as usize] = random.chance(800).then(|| random.below(6) as u64);
            }
            let scan_of = Scan {
                candidates: &candidates,
                total,
                unit,
                cursor: random.below((total / unit) as usize) as u32 * unit,
                from_cursor: random.chance(700),
                limit: random.chance(700).then(|| random.below(12) as u32),
            };
            let rules = [Rules::Linux2013, Rules::Linux618][random.below(2)];
            let cost = |n: u32| costs[n as usize];
            let found = match rules {
                Rules::Linux618 => scan(scan_of, cost),
                Rules::Linux2013 => scan_2013(scan_of, cost),
            };
            let due = model(rules, scan_of, &costs);
            assert_eq!(found, due, "{rules:?} {scan_of:?} {costs:?}");
        }
    }

    #[test]
    fn a_small_limit_is_a_moving_window() {
        let mut candidates = BitSet::new(100);
        for n in 0..100 {
            candidates.put(n, true);
        }
        let mut cursor = 0;
        let mut victims = Vec::new();
        for _ in 0..5 {
            let found = scan(
                Scan {
                    candidates: &candidates,
                    total: 100,
                    unit: 1,
                    cursor,
                    from_cursor: true,
                    limit: Some(30),
                },
                |n| Some(u64::from(100 - n)),
            );
            cursor = found.cursor;
            victims.push(found.victim.unwrap().0);
        }
        // As in Linux, a scan that wrapped around moves the cursor by one only.
        assert_eq!((victims, cursor), (vec![29, 59, 89, 99, 99], 92));
    }
}
