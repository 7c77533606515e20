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

use steadfs_base::IoTag;

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

#[cfg(test)]
mod tests {
    use steadfs_base::{GroupId, OwnerId};

    use super::*;

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
}
