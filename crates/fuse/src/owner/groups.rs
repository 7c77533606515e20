//! The groups that processes were seen in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::GroupId;
use steadfs_rt::{Instant, Mutex, Rank, now};

use super::Groups;
use super::cgroup::{Hierarchy, Weight};

/// Groups that are known at a time; processes in others count for the nearest one above.
const MOST: usize = 1024;
/// How often weights are read again.
const PERIOD: Duration = Duration::from_millis(400);
/// How many at a time.
const AT_A_TIME: usize = 16;
const DEFAULT_WEIGHT: u32 = 100;
const MAX_WEIGHT: u32 = 1000;

pub(super) struct Table {
    hierarchy: Option<Hierarchy>,
    groups: Arc<dyn Groups>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// By path, without the root.
    by_path: BTreeMap<String, Group>,
    /// Weights that count more than the files.
    weights: BTreeMap<String, u32>,
    last: u32,
    looked: Option<Instant>,
    /// The path up to which weights were read lately.
    read_to: String,
}

#[derive(Clone, Copy)]
struct Group {
    id: GroupId,
    parent: GroupId,
    weight: u32,
    looked: Instant,
    /// Somebody asked for it by its path: it stays, whether or not there is such a cgroup.
    kept: bool,
}

/// A path's beginnings: `/a`, `/a/b`, … and itself; nothing for the root.
fn ways(path: &str) -> impl Iterator<Item = &str> {
    let path = path.trim_end_matches('/');
    let ends = path.match_indices('/').map(|(at, _)| at);
    ends.chain([path.len()])
        .filter(|end| *end > 0)
        .map(|end| &path[..end])
}

impl Table {
    pub(super) fn new(hierarchy: Option<Hierarchy>, groups: Arc<dyn Groups>) -> Self {
        Self {
            hierarchy,
            groups,
            known: Mutex::new(Rank::Table, Known::default()),
        }
    }

    /// The group that a process is in.
    pub(super) fn group_of(&self, pid: u32) -> GroupId {
        let Some(hierarchy) = &self.hierarchy else {
            return GroupId(0);
        };
        let Some(path) = hierarchy.group_of(pid) else {
            return GroupId(0);
        };
        let mut known = self.known.lock();
        let now = now();
        self.look_around(&mut known, now);
        let group = self.find(&mut known, &path);
        for above in ways(&path) {
            let looked = known.by_path.get(above).map(|group| group.looked);
            if looked.is_some_and(|last| now.since(last) >= PERIOD) {
                self.weigh(&mut known, above);
            }
        }
        group
    }

    /// The group at a path, which stays known.
    pub(super) fn group(&self, path: &str) -> GroupId {
        let mut known = self.known.lock();
        let id = self.find(&mut known, path);
        for above in ways(path) {
            if let Some(group) = known.by_path.get_mut(above) {
                group.kept = true;
            }
        }
        id
    }

    pub(super) fn set_weights(&self, weights: BTreeMap<String, u32>) {
        let mut known = self.known.lock();
        known.weights = weights;
        let paths: Vec<String> = known.by_path.keys().cloned().collect();
        for path in paths {
            self.weigh(&mut known, &path);
        }
    }

    pub(super) fn list(&self) -> Vec<(String, GroupId, u32)> {
        let known = self.known.lock();
        let groups = known.by_path.iter();
        groups
            .map(|(path, group)| (path.clone(), group.id, group.weight))
            .collect()
    }

    /// The group at a path; it and those above it are made if need be.
    fn find(&self, known: &mut Known, path: &str) -> GroupId {
        if let Some(group) = known.by_path.get(path) {
            return group.id;
        }
        let mut parent = GroupId(0);
        for above in ways(path) {
            parent = match known.by_path.get(above) {
                Some(group) => group.id,
                None if known.by_path.len() < MOST => self.add(known, above, parent),
                None => break,
            };
        }
        parent
    }

    fn add(&self, known: &mut Known, path: &str, parent: GroupId) -> GroupId {
        known.last += 1;
        let id = GroupId(known.last);
        let weight = self.weight(known, path).unwrap_or(DEFAULT_WEIGHT);
        self.groups.set(id, parent, weight);
        let group = Group {
            id,
            parent,
            weight,
            looked: now(),
            kept: false,
        };
        known.by_path.insert(path.to_owned(), group);
        id
    }

    /// What a group weighs; `None` if it is gone.
    fn weight(&self, known: &Known, path: &str) -> Option<u32> {
        if let Some(&weight) = known.weights.get(path) {
            return Some(weight);
        }
        match self.hierarchy.as_ref().map(|h| h.weight(path)) {
            Some(Weight::Is(weight)) => Some(weight.clamp(1, MAX_WEIGHT)),
            Some(Weight::Unsaid) => Some(DEFAULT_WEIGHT),
            Some(Weight::Gone) | None => None,
        }
    }

    /// Reads a known group's weight again.
    fn weigh(&self, known: &mut Known, path: &str) {
        let Some(mut group) = known.by_path.get(path).copied() else {
            return;
        };
        let weight = self.weight(known, path);
        match weight.or(group.kept.then_some(DEFAULT_WEIGHT)) {
            Some(weight) => {
                if weight != group.weight {
                    self.groups.set(group.id, group.parent, weight);
                }
                (group.weight, group.looked) = (weight, now());
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

    /// Looks at some of the groups that nobody may ask for any more, if that was not done lately.
    fn look_around(&self, known: &mut Known, now: Instant) {
        if known.looked.is_some_and(|last| now.since(last) < PERIOD) {
            return;
        }
        known.looked = Some(now);
        let after = std::mem::take(&mut known.read_to);
        let all = known.by_path.keys();
        // From the last ones: groups go after those below them.
        let next = all.clone().rev().filter(|path| **path < after);
        let next = next.chain(all.rev().filter(|path| **path >= after));
        let due: Vec<String> = next.take(AT_A_TIME).cloned().collect();
        for path in &due {
            self.weigh(known, path);
        }
        known.read_to = due.last().cloned().unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use steadfs_rt::sim;

    use super::*;

    struct Told(Mutex<Vec<(u32, u32, u32)>>);

    impl Groups for Told {
        fn set(&self, group: GroupId, parent: GroupId, weight: u32) {
            self.0.lock().push((group.0, parent.0, weight));
        }

        fn forget(&self, group: GroupId) {
            self.0.lock().push((group.0, 0, 0));
        }
    }

    fn table(hierarchy: Option<Hierarchy>) -> (Table, Arc<Told>) {
        let told = Arc::new(Told(Mutex::new(Rank::Leaf, Vec::new())));
        (Table::new(hierarchy, Arc::clone(&told) as _), told)
    }

    #[test]
    fn groups_come_after_their_parents() {
        let (table, told) = table(None);
        table.set_weights(BTreeMap::from([("/a/b".to_owned(), 20)]));
        assert_eq!(table.group("/"), GroupId(0));
        assert_eq!(table.group("/a/b/c"), GroupId(3));
        assert_eq!(table.group("/a/d/"), GroupId(4));
        assert_eq!(table.group("/a"), GroupId(1));
        let expected = [(1, 0, 100), (2, 1, 20), (3, 2, 100), (4, 1, 100)];
        assert_eq!(*told.0.lock(), expected);
        table.set_weights(BTreeMap::from([("/a".to_owned(), 7)]));
        let changes = told.0.lock().split_off(4);
        assert_eq!(changes, [(1, 0, 7), (2, 1, 100)]);
        assert_eq!(table.list().len(), 4);
    }

    #[test]
    fn there_are_only_so_many() {
        let (table, _) = table(None);
        for n in 0..2 * MOST {
            table.group(&format!("/g{n}/inner"));
        }
        assert_eq!(table.list().len(), MOST);
        assert_eq!(table.group("/new/inner"), GroupId(0));
    }

    #[test]
    fn weights_are_followed_and_groups_that_go_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let group = root.join("a");
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("io.weight"), "300").unwrap();
        sim::run(sim::Config::new(1), move || {
            let (table, told) = table(Some(Hierarchy::at(&root)));
            let find = || table.find(&mut table.known.lock(), "/a");
            assert_eq!(find(), GroupId(1));
            let pass = || {
                steadfs_rt::sleep(PERIOD);
                table.look_around(&mut table.known.lock(), now());
                std::mem::take(&mut *told.0.lock())
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
