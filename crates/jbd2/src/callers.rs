//! The callers of a commit: tasks that wait for a transaction to become durable.
//!
//! **Problem.** Callers of a heavy and of a light cgroup share commits, which end for all of them at the same time. A
//! leader of the heavy group that waits for a light caller (group commit) waits for data that the scheduler holds back
//! for the leader's own group. And a light caller whose commits the heavy group pays for always has its data written at
//! once, which the next commit then waits for.
//!
//! **Rule.** A leader waits only for callers that no usual caller outweighs, and a caller of a light group waits for
//! those of the heavy one like any leader. The log blocks and the commit record with its FLUSH are charged in full to
//! each group that has a caller in the transaction, and to no other: a caller of the next transaction boosts them and
//! is not charged. So the scheduler delays the data of a light group until it has earned the next commit.

use std::time::Duration;

use steadfs_base::{GroupId, IoTag};
use steadfs_rt::Instant;

/// Most groups that are charged for one commit.
const GROUPS_MAX: usize = 64;

/// The callers of one transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callers {
    count: u32,
    /// The tag of the first caller of each group.
    tags: Vec<IoTag>,
}

impl Callers {
    /// A caller joins. `heaviest` is the tag of the heaviest caller of recent commits; `outweighs(a, b)`: the group of
    /// `a` is served more than that of `b`.
    pub(crate) fn join(
        &mut self,
        heaviest: &mut Option<IoTag>,
        tag: IoTag,
        outweighs: impl Fn(IoTag, IoTag) -> bool,
    ) {
        self.add_group(tag);
        match *heaviest {
            Some(other) if outweighs(other, tag) => {}
            // The latest one is remembered: the other may have stopped.
            Some(other) if !outweighs(tag, other) => {
                (*heaviest, self.count) = (Some(tag), self.count + 1);
            }
            _ => (*heaviest, self.count) = (Some(tag), 1),
        }
    }

    fn add_group(&mut self, tag: IoTag) {
        if self.tags.len() < GROUPS_MAX && self.tags.iter().all(|other| other.group != tag.group) {
            self.tags.push(tag);
        }
    }

    /// Adds the groups of other callers, without counting these.
    pub(crate) fn add_groups(&mut self, others: &Self) {
        for &tag in &others.tags {
            self.add_group(tag);
        }
    }

    /// The number of callers, without those of groups lighter than the heaviest.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// One tag for each group, if there are several.
    pub(crate) fn groups(&self) -> &[IoTag] {
        match self.tags.len() {
            0 | 1 => &[],
            _ => &self.tags,
        }
    }

    /// The tag with which `leader` submits the commit: its own, unless it leads for callers of other groups only.
    pub(crate) fn submitter(&self, leader: IoTag) -> IoTag {
        let of_group = self.tags.iter().any(|tag| tag.group == leader.group);
        match self.tags.first() {
            Some(first) if !of_group => *first,
            _ => leader,
        }
    }
}

/// How long a group counts as one that commits.
const LATELY: Duration = Duration::from_secs(1);

/// The two groups that have joined a commit last, the later one first, and when.
#[derive(Debug, Default)]
pub(crate) struct LateGroups([Option<(GroupId, Instant)>; 2]);

impl LateGroups {
    /// A caller of `group` joins a commit.
    pub(crate) fn joined(&mut self, group: GroupId, now: Instant) {
        if self.0[0].is_some_and(|(last, _)| last != group) {
            self.0[1] = self.0[0];
        }
        self.0[0] = Some((group, now));
    }

    /// Whether no other group has joined a commit lately.
    pub(crate) fn are_only(&self, group: GroupId, now: Instant) -> bool {
        let is_other = |&(other, at): &(GroupId, Instant)| other != group && now.since(at) < LATELY;
        !self.0.iter().flatten().any(is_other)
    }
}

#[cfg(test)]
mod tests {
    use steadfs_base::OwnerId;

    use super::*;

    #[test]
    fn a_group_is_alone_a_second_after_the_last_other_one() {
        let (one, other) = (GroupId(1), GroupId(2));
        let at = |ms| steadfs_rt::now() + Duration::from_millis(ms);
        let mut late = LateGroups::default();
        let start = at(0);
        assert!(late.are_only(one, start));
        late.joined(one, start);
        assert!(late.are_only(one, start) && !late.are_only(other, start));
        late.joined(other, start + Duration::from_millis(10));
        for ms in [20, 900, 1005] {
            late.joined(one, start + Duration::from_millis(ms));
            assert!(
                !late.are_only(one, start + Duration::from_millis(ms)),
                "{ms}"
            );
        }
        assert!(late.are_only(one, start + Duration::from_millis(1011)));
        assert!(!late.are_only(other, start + Duration::from_millis(1011)));
        // One second after the other one: not lately.
        assert!(late.are_only(one, start + Duration::from_millis(1010)));
        assert!(!late.are_only(one, start + Duration::from_millis(1009)));
    }

    /// The weight of a group is its number.
    fn outweighs(a: IoTag, b: IoTag) -> bool {
        a.group > b.group
    }

    fn tag(group: u32, owner: u32) -> IoTag {
        IoTag {
            group: GroupId(group),
            owner: OwnerId(owner),
            ..IoTag::default()
        }
    }

    #[test]
    fn callers_of_light_groups_are_charged_and_not_waited_for() {
        let (mut callers, mut heaviest) = (Callers::default(), None);
        let mut join = |tag| {
            callers.join(&mut heaviest, tag, outweighs);
            (callers.count(), callers.groups().len())
        };
        assert_eq!(join(tag(20, 1)), (1, 0));
        assert_eq!(join(tag(20, 2)), (2, 0));
        assert_eq!(join(tag(100, 3)), (1, 2), "only the heavy one counts now");
        assert_eq!(join(tag(20, 4)), (1, 2));
        assert_eq!(join(tag(100, 5)), (2, 2));
        // The heavy group is remembered for the next transaction.
        let mut next = Callers::default();
        next.join(&mut heaviest, tag(20, 1), outweighs);
        assert_eq!(next.count(), 0);
    }

    #[test]
    fn a_leader_submits_for_the_first_caller_unless_its_group_calls() {
        let mut callers = Callers::default();
        assert_eq!(callers.submitter(tag(7, 1)), tag(7, 1));
        for group in [20, 30] {
            callers.add_group(tag(group, 1));
        }
        assert_eq!(callers.submitter(tag(7, 1)), tag(20, 1));
        assert_eq!(callers.submitter(tag(20, 9)), tag(20, 9));
        assert_eq!(callers.submitter(tag(30, 9)), tag(30, 9));
    }

    #[test]
    fn a_bounded_number_of_groups_is_charged() {
        let mut callers = Callers::default();
        let mut others = Callers::default();
        for group in 0..2 * GROUPS_MAX as u32 {
            others.add_group(tag(group, 1));
            others.add_group(tag(group, 2));
        }
        assert_eq!(others.groups().len(), GROUPS_MAX);
        callers.add_group(tag(1, 1));
        callers.add_groups(&others);
        assert_eq!(callers.groups().len(), GROUPS_MAX);
        assert_eq!(callers.groups()[..2], [tag(1, 1), tag(0, 1)]);
        assert_eq!(callers.count(), 0);
    }
}
