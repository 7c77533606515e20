//! The cgroups that make requests, and their weights.

mod cgroup;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::GroupId;

pub use cgroup::{Hierarchy, Weight};

use crate::{Instant, Mutex, Rank, now};

/// Largest number of known groups; processes in other groups count for the nearest known ancestor.
const GROUPS_MAX: usize = 1024;
/// Weights older than this are read again.
const REFRESH_PERIOD: Duration = Duration::from_millis(400);
/// Groups refreshed at a time, besides those of the caller.
const REFRESH_BATCH: usize = 16;
const DEFAULT_WEIGHT: u32 = 100;
const MAX_WEIGHT: u32 = 1000;

/// The host's cgroups.
pub trait Cgroups: Send + Sync {
    /// The group of a process, a path below the hierarchy's root; `None` if it is not known.
    fn group_of(&self, pid: u32) -> Option<String>;
    /// The weight of a group.
    fn weight(&self, group: &str) -> Weight;
}

impl Cgroups for Option<Hierarchy> {
    fn group_of(&self, pid: u32) -> Option<String> {
        self.as_ref()?.group_of(pid)
    }

    fn weight(&self, group: &str) -> Weight {
        self.as_ref()
            .map_or(Weight::Gone, |found| found.weight(group))
    }
}

/// Receives the groups and their weights. A group follows its parent and has a larger number.
pub trait Groups: Send + Sync {
    /// Adds a group below `parent`, or changes its weight (1 to 1000).
    fn set(&self, group: GroupId, parent: GroupId, weight: u32);
    /// Removes a group.
    fn forget(&self, group: GroupId);
}

/// The groups that are in use, with their numbers and weights, by path.
pub struct GroupTable {
    cgroups: Box<dyn Cgroups>,
    groups: Arc<dyn Groups>,
    known: Mutex<KnownGroups>,
}

#[derive(Default)]
struct KnownGroups {
    /// By path, without the root.
    by_path: BTreeMap<String, Group>,
    /// Weights that override the cgroups' files.
    weights: BTreeMap<String, u32>,
    last: u32,
    refreshed: Option<Instant>,
    /// The path at which the next refresh continues.
    refresh_cursor: String,
}

#[derive(Clone, Copy)]
struct Group {
    id: GroupId,
    parent: GroupId,
    weight: u32,
    refreshed: Instant,
    /// Looked up by path: it stays known, whether or not there is such a cgroup.
    pinned: bool,
}

/// The prefixes of a path: `/a`, `/a/b`, … and the path itself; nothing for the root.
fn path_and_ancestors(path: &str) -> impl Iterator<Item = &str> {
    let path = path.trim_end_matches('/');
    let ends = path.match_indices('/').map(|(at, _)| at);
    ends.chain([path.len()])
        .filter(|end| *end > 0)
        .map(|end| &path[..end])
}

impl GroupTable {
    /// A table that reports to `groups`.
    pub fn new(cgroups: Box<dyn Cgroups>, groups: Arc<dyn Groups>) -> Self {
        Self {
            cgroups,
            groups,
            known: Mutex::new(Rank::Table, KnownGroups::default()),
        }
    }

    /// The group of a process.
    pub fn group_of(&self, pid: u32) -> GroupId {
        let Some(path) = self.cgroups.group_of(pid) else {
            return GroupId(0);
        };
        let mut known = self.known.lock();
        let now = now();
        self.refresh_some(&mut known, now);
        let group = self.find(&mut known, &path);
        for above in path_and_ancestors(&path) {
            let refreshed = known.by_path.get(above).map(|group| group.refreshed);
            if refreshed.is_some_and(|last| now.since(last) >= REFRESH_PERIOD) {
                self.refresh_weight(&mut known, above);
            }
        }
        group
    }

    /// The group at a path (from the hierarchy's root), with or without processes in it; it stays known.
    pub fn group(&self, path: &str) -> GroupId {
        let mut known = self.known.lock();
        let id = self.find(&mut known, path);
        for above in path_and_ancestors(path) {
            if let Some(group) = known.by_path.get_mut(above) {
                group.pinned = true;
            }
        }
        id
    }

    /// Sets weights by path; they override the cgroups' own files.
    pub fn set_weights(&self, weights: BTreeMap<String, u32>) {
        let mut known = self.known.lock();
        known.weights = weights;
        let paths: Vec<String> = known.by_path.keys().cloned().collect();
        for path in paths {
            self.refresh_weight(&mut known, &path);
        }
    }

    /// The paths of all groups, with their numbers and weights.
    pub fn list(&self) -> Vec<(String, GroupId, u32)> {
        let known = self.known.lock();
        let groups = known.by_path.iter();
        groups
            .map(|(path, group)| (path.clone(), group.id, group.weight))
            .collect()
    }

    /// The group at a path; it and its ancestors are added if needed.
    fn find(&self, known: &mut KnownGroups, path: &str) -> GroupId {
        if let Some(group) = known.by_path.get(path) {
            return group.id;
        }
        let mut parent = GroupId(0);
        for above in path_and_ancestors(path) {
            parent = match known.by_path.get(above) {
                Some(group) => group.id,
                None if known.by_path.len() < GROUPS_MAX => self.add(known, above, parent),
                None => break,
            };
        }
        parent
    }

    fn add(&self, known: &mut KnownGroups, path: &str, parent: GroupId) -> GroupId {
        known.last += 1;
        let id = GroupId(known.last);
        let weight = self.weight(known, path).unwrap_or(DEFAULT_WEIGHT);
        self.groups.set(id, parent, weight);
        let group = Group {
            id,
            parent,
            weight,
            refreshed: now(),
            pinned: false,
        };
        known.by_path.insert(path.to_owned(), group);
        id
    }

    /// A group's weight; `None` if the group does not exist.
    fn weight(&self, known: &KnownGroups, path: &str) -> Option<u32> {
        if let Some(&weight) = known.weights.get(path) {
            return Some(weight);
        }
        match self.cgroups.weight(path) {
            Weight::Is(weight) => Some(weight.clamp(1, MAX_WEIGHT)),
            Weight::Default => Some(DEFAULT_WEIGHT),
            Weight::Gone => None,
        }
    }

    /// Reads a known group's weight again.
    fn refresh_weight(&self, known: &mut KnownGroups, path: &str) {
        let Some(mut group) = known.by_path.get(path).copied() else {
            return;
        };
        let weight = self.weight(known, path);
        match weight.or(group.pinned.then_some(DEFAULT_WEIGHT)) {
            Some(weight) => {
                if weight != group.weight {
                    self.groups.set(group.id, group.parent, weight);
                }
                (group.weight, group.refreshed) = (weight, now());
                known.by_path.insert(path.to_owned(), group);
            }
            None => {
                let below = format!("{path}/");
                let next = known.by_path.range(below.clone()..).next();
                if next.is_none_or(|(path, _)| !path.starts_with(&below)) {
                    known.by_path.remove(path);
                    self.groups.forget(group.id);
                }
            }
        }
    }

    /// Refreshes up to [`REFRESH_BATCH`] groups, at most once per [`REFRESH_PERIOD`]: groups without requests are
    /// refreshed, and removed, too.
    fn refresh_some(&self, known: &mut KnownGroups, now: Instant) {
        if known
            .refreshed
            .is_some_and(|last| now.since(last) < REFRESH_PERIOD)
        {
            return;
        }
        known.refreshed = Some(now);
        let after = std::mem::take(&mut known.refresh_cursor);
        let all = known.by_path.keys();
        // In descending order: a group is removed after its descendants.
        let next = all.clone().rev().filter(|path| **path < after);
        let next = next.chain(all.rev().filter(|path| **path >= after));
        let due: Vec<String> = next.take(REFRESH_BATCH).cloned().collect();
        for path in &due {
            self.refresh_weight(known, path);
        }
        known.refresh_cursor = due.last().cloned().unwrap_or_default();
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::sim;

    struct RecordedGroups(Mutex<Vec<(u32, u32, u32)>>);

    impl Groups for RecordedGroups {
        fn set(&self, group: GroupId, parent: GroupId, weight: u32) {
            self.0.lock().push((group.0, parent.0, weight));
        }

        fn forget(&self, group: GroupId) {
            self.0.lock().push((group.0, 0, 0));
        }
    }

    fn table(hierarchy: Option<Hierarchy>) -> (GroupTable, Arc<RecordedGroups>) {
        let recorded = Arc::new(RecordedGroups(Mutex::new(Rank::Leaf, Vec::new())));
        let cgroups = Box::new(hierarchy);
        (
            GroupTable::new(cgroups, Arc::clone(&recorded) as _),
            recorded,
        )
    }

    #[test]
    fn groups_are_reported_after_their_parents() {
        let (table, recorded) = table(None);
        table.set_weights(BTreeMap::from([("/a/b".to_owned(), 20)]));
        assert_eq!(table.group("/"), GroupId(0));
        assert_eq!(table.group("/a/b/c"), GroupId(3));
        assert_eq!(table.group("/a/d/"), GroupId(4));
        assert_eq!(table.group("/a"), GroupId(1));
        let expected = [(1, 0, 100), (2, 1, 20), (3, 2, 100), (4, 1, 100)];
        assert_eq!(*recorded.0.lock(), expected);
        table.set_weights(BTreeMap::from([("/a".to_owned(), 7)]));
        let changes = recorded.0.lock().split_off(4);
        assert_eq!(changes, [(1, 0, 7), (2, 1, 100)]);
        assert_eq!(table.list().len(), 4);
    }

    #[test]
    fn at_most_1024_groups_are_known() {
        let (table, _) = table(None);
        for n in 0..2 * GROUPS_MAX {
            table.group(&format!("/g{n}/inner"));
        }
        assert_eq!(table.list().len(), GROUPS_MAX);
        assert_eq!(table.group("/new/inner"), GroupId(0));
    }

    #[test]
    fn changed_weights_are_reported_and_removed_groups_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let group = root.join("a");
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("io.weight"), "300").unwrap();
        sim::run(sim::Config::new(1), move || {
            let (table, recorded) = table(Some(Hierarchy::at(&root)));
            let find = || table.find(&mut table.known.lock(), "/a");
            assert_eq!(find(), GroupId(1));
            let pass = || {
                crate::sleep(REFRESH_PERIOD);
                table.refresh_some(&mut table.known.lock(), now());
                std::mem::take(&mut *recorded.0.lock())
            };
            assert_eq!(pass(), [(1, 0, 300)]);
            assert_eq!(pass(), []);
            std::fs::write(group.join("io.weight"), "30").unwrap();
            assert_eq!(pass(), [(1, 0, 30)]);
            std::fs::remove_dir_all(&group).unwrap();
            assert_eq!(pass(), [(1, 0, 0)]);
            assert_eq!(find(), GroupId(2));
        });
    }
}
