//! Rule 7: which files a recovery may have rolled forward, and to which states.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use steadfs_base::InodeNo;
use steadfs_vfs::FileKind;

use super::history::TaskHistory;
use crate::model::State;
use crate::op::RenameHow;
use crate::{Op, TreePath};

/// A file that was made durable beside the last checkpoint (f2fs: its node chain).
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) ino: InodeNo,
    /// The moment whose state of the file it restores.
    pub(super) moment: usize,
    /// The marker at which it was begun.
    pub(super) started: u64,
    /// It was written along with the fsync of another file.
    pub(super) clustered: bool,
    /// For each earlier moment of a checkpoint: the file's path if it is rolled forward from there; `None` if it cannot
    /// be, so that only a later checkpoint can have made it durable.
    pub(super) places: Vec<Option<TreePath>>,
}

/// The intervals during which an fsync of any task was in progress: other files may have been clustered with it.
pub(super) fn windows(tasks: &[TaskHistory]) -> Vec<(u64, u64)> {
    let of = |task: &TaskHistory| {
        let is_file = |index: usize, ino| {
            let node = task.states[index + 1].node(ino);
            node.is_ok_and(|node| node.kind == FileKind::Regular)
        };
        let records = task.records.iter().enumerate();
        let syncs =
            records.filter(|(index, record)| record.synced.is_some_and(|ino| is_file(*index, ino)));
        let times = syncs.map(|(_, record)| (record.started, record.ended));
        times.collect::<Vec<_>>()
    };
    tasks.iter().flat_map(of).collect()
}

/// The chains that a task may have left beside a checkpoint taken at any of its moments; `all` has the paths of each
/// moment.
pub(super) fn chains(
    task: &TaskHistory,
    all: &[BTreeMap<TreePath, InodeNo>],
    windows: &[(u64, u64)],
    strict: bool,
) -> Vec<Chain> {
    let mut found = Vec::new();
    let mut add = |ino, moment, started, clustered| {
        let rules = Rules {
            task,
            all,
            ino,
            moment,
            strict,
        };
        found.extend(rules.name().map(|(dir, name)| {
            Chain {
                ino,
                moment,
                started,
                clustered,
                places: (0..moment)
                    .map(|checkpoint| rules.place(checkpoint, dir, name))
                    .collect(),
            }
        }));
    };
    let mut reshaped = BTreeSet::new();
    for (index, record) in task.records.iter().enumerate() {
        let moment = index + 1;
        if let Some(ino) = record.synced {
            add(ino, moment, record.started, false);
        }
        reshaped.extend(record.reshapes());
        // The state exists from a time in this operation to a time in the next.
        let until = task.records.get(moment).map_or(u64::MAX, |next| next.ended);
        let open = windows
            .iter()
            .filter(|(from, to)| *from <= until && record.started <= *to);
        let Some(started) = open.map(|(from, _)| *from).min() else {
            continue;
        };
        for ino in &reshaped {
            add(*ino, moment, started.max(record.started), true);
        }
    }
    found
}

/// The conditions for rolling one file forward.
struct Rules<'a> {
    task: &'a TaskHistory,
    all: &'a [BTreeMap<TreePath, InodeNo>],
    ino: InodeNo,
    moment: usize,
    strict: bool,
}

impl<'a> Rules<'a> {
    /// The directory and name of a regular file that has only one.
    fn name(&self) -> Option<(InodeNo, &'a [u8])> {
        let node = self.task.states[self.moment].node(self.ino).ok()?;
        if node.kind != FileKind::Regular || node.nlink != 1 {
            return None;
        }
        let paths = &self.all[self.moment];
        let (path, _) = paths.iter().find(|(_, ino)| **ino == self.ino)?;
        let dir = paths.get(&path.parent()?)?;
        Some((*dir, path.name()?))
    }

    /// The file's path if it is rolled forward from the checkpoint of this moment.
    fn place(&self, checkpoint: usize, dir: InodeNo, name: &[u8]) -> Option<TreePath> {
        let then = &self.task.states[checkpoint];
        let mut paths = self.all[checkpoint].iter();
        // No name can be made in a directory that does not exist.
        let (above, _) = paths.find(|(_, ino)| **ino == dir)?;
        let place = above.child(name);
        let attributes = |state: &'a State| state.node(dir).ok().map(|dir| &dir.xattrs);
        if attributes(then) != attributes(&self.task.states[self.moment]) {
            return None;
        }
        if then.node(self.ino).is_ok() {
            // The name is not made again: it must be the existing one.
            let mut names = self.all[checkpoint].iter();
            let mut names = names.by_ref().filter(|(_, ino)| **ino == self.ino);
            return (names.next()?.0 == &place && names.next().is_none()).then_some(place);
        }
        // A file that had the name before loses it.
        let between = &self.task.states[checkpoint..self.moment];
        let others = between
            .iter()
            .filter_map(|state| state.lookup(dir, name).ok());
        let mut others = others.filter(|other| *other != self.ino);
        let lives_on = |other| self.all[self.moment].values().any(|ino| *ino == other);
        if others.any(lives_on) || self.strict && self.renamed_into(dir, checkpoint) {
            return None;
        }
        Some(place)
    }

    /// Whether a name was renamed into the directory since the checkpoint, or the directory was renamed.
    fn renamed_into(&self, dir: InodeNo, checkpoint: usize) -> bool {
        (checkpoint..self.moment).any(|index| {
            let record = &self.task.records[index];
            let Op::Rename { from, to, how } = &record.op else {
                return false;
            };
            let there = |path: &TreePath| self.all[index].get(path) == Some(&dir);
            let is_into = |path: &TreePath| path.parent().is_some_and(|above| there(&above));
            let both = *how == RenameHow::Exchange;
            // A rename without effect changed no inode.
            let done = !record.changed.is_empty();
            done && (there(from) || is_into(to) || both && (there(to) || is_into(from)))
        })
    }
}

/// A moment whose state a file may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShownMoment {
    pub(super) moment: usize,
    /// A sync of the file was requested: its size is that moment's.
    pub(super) exact: bool,
}

/// The possible states of a file that may have been rolled forward: path and moment.
type Placements<'a> = Vec<(&'a TreePath, ShownMoment)>;

/// The tree of one checkpoint with the files that may have been rolled forward.
pub(super) struct RecoveredTree {
    /// The inode of each name.
    pub(super) names: BTreeMap<TreePath, InodeNo>,
    /// The states that a file may show, if not just the checkpoint's.
    pub(super) moments: BTreeMap<InodeNo, Vec<ShownMoment>>,
    /// Directories in which recovery made names: their times changed.
    pub(super) touched: BTreeSet<InodeNo>,
}

/// The limits on roll-forward after one crash.
pub(super) struct RollForward<'a> {
    /// The last marker before the crash: a chain that was begun later cannot be there.
    pub(super) mark: u64,
    /// For each file, the first moment that includes all acknowledged changes of it.
    pub(super) required: &'a BTreeMap<InodeNo, usize>,
}

/// Maximum number of assignments of names that are examined: more than one only if a name belonged to several files.
const ASSIGNMENTS: usize = 64;

impl RollForward<'_> {
    /// The trees that may be found beside the checkpoint of moment `checkpoint`, where these names are `found`.
    ///
    /// # Errors
    /// A file that was made durable and that nothing can have restored.
    pub(super) fn from(
        &self,
        task: &TaskHistory,
        checkpoint: usize,
        found: &BTreeMap<&TreePath, InodeNo>,
    ) -> Result<Vec<RecoveredTree>, String> {
        let files = self.files(task, checkpoint);
        let state = &task.states[checkpoint];
        let is_new = |ino: &InodeNo| state.node(*ino).is_err();
        // The new files that may have each name.
        let mut claims: BTreeMap<&TreePath, Vec<InodeNo>> = BTreeMap::new();
        for (ino, fit) in files.iter().filter(|(ino, _)| is_new(ino)) {
            for (place, _) in fit.iter().filter(|(place, _)| found.contains_key(place)) {
                let claims = claims.entry(place).or_default();
                if !claims.contains(ino) {
                    claims.push(*ino);
                }
            }
        }
        let mut assignments: Vec<BTreeMap<&TreePath, InodeNo>> = vec![BTreeMap::new()];
        for (place, claims) in claims {
            let kept = task.paths[checkpoint].contains_key(place).then_some(None);
            let choices = kept.into_iter().chain(claims.into_iter().map(Some));
            let choices: Vec<_> = choices.collect();
            assignments = assignments
                .iter()
                .flat_map(|assignment| {
                    choices.iter().map(|choice| {
                        let mut assignment = assignment.clone();
                        assignment.extend(choice.map(|ino| (place, ino)));
                        assignment
                    })
                })
                .take(ASSIGNMENTS)
                .collect();
        }
        let mut views = Vec::new();
        let mut wrong = String::new();
        for assignment in assignments {
            match self.view(task, checkpoint, &files, &assignment) {
                Ok(view) => views.push(view),
                Err(text) => wrong = text,
            }
        }
        match views.is_empty() {
            true => Err(wrong),
            false => Ok(views),
        }
    }

    /// The files that may have been rolled forward from a checkpoint: to which paths and moments.
    fn files<'a>(
        &self,
        task: &'a TaskHistory,
        checkpoint: usize,
    ) -> BTreeMap<InodeNo, Placements<'a>> {
        let mut files: BTreeMap<InodeNo, Placements<'_>> = BTreeMap::new();
        for chain in &task.chains {
            if chain.moment <= checkpoint || chain.started > self.mark {
                continue;
            }
            let fit = files.entry(chain.ino).or_default();
            let required = self.required.get(&chain.ino).copied().unwrap_or(0);
            let place = chain.places[checkpoint].as_ref();
            let shown = ShownMoment {
                moment: chain.moment,
                exact: !chain.clustered,
            };
            fit.extend(
                place
                    .filter(|_| chain.moment >= required)
                    .map(|place| (place, shown)),
            );
        }
        files
    }

    /// The tree with these new files.
    fn view(
        &self,
        task: &TaskHistory,
        checkpoint: usize,
        files: &BTreeMap<InodeNo, Placements<'_>>,
        chosen: &BTreeMap<&TreePath, InodeNo>,
    ) -> Result<RecoveredTree, String> {
        let mut view = RecoveredTree {
            names: task.paths[checkpoint].clone(),
            moments: BTreeMap::new(),
            touched: BTreeSet::new(),
        };
        for (place, ino) in chosen {
            let dir = place.parent().and_then(|dir| view.names.get(&dir).copied());
            view.touched.extend(dir);
            view.names.insert((*place).clone(), *ino);
        }
        for (ino, fit) in files {
            let required = self.required.get(ino).copied().unwrap_or(0);
            if task.states[checkpoint].node(*ino).is_ok() {
                let unchanged = (required <= checkpoint).then_some(ShownMoment {
                    moment: checkpoint,
                    exact: false,
                });
                let rolled = fit.iter().map(|(_, shown)| *shown);
                let moments: Vec<_> = unchanged.into_iter().chain(rolled).collect();
                if moments.is_empty() {
                    return gone(required);
                }
                view.moments.insert(*ino, moments);
                continue;
            }
            let here = fit
                .iter()
                .filter(|(place, _)| chosen.get(place) == Some(ino));
            let moments: Vec<_> = here.map(|(_, shown)| *shown).collect();
            // Replaced by a file that had the name later.
            let has_later = |other: &InodeNo, place| {
                let mut fit = files[other].iter();
                fit.any(|(there, shown)| *there == place && shown.moment > required)
            };
            let is_replaced = fit.iter().any(|(place, _)| {
                let other = chosen.get(place);
                other.is_some_and(|other| has_later(other, *place))
            });
            if moments.is_empty() && required > checkpoint && !is_replaced {
                return gone(required);
            }
            view.moments.insert(*ino, moments);
        }
        self.add_alone(task, checkpoint, files, &mut view)?;
        Ok(view)
    }

    /// Adds the files that no chain can restore: the checkpoint must have each as it was synced.
    fn add_alone(
        &self,
        task: &TaskHistory,
        checkpoint: usize,
        files: &BTreeMap<InodeNo, Placements<'_>>,
        view: &mut RecoveredTree,
    ) -> Result<(), String> {
        let alone = self
            .required
            .iter()
            .filter(|(ino, required)| !files.contains_key(ino) && **required > checkpoint);
        for (ino, &required) in alone {
            if !same_names(task, *ino, checkpoint, required) {
                return gone(required);
            }
            // The changes since the checkpoint may have left it as it was.
            let synced = ShownMoment {
                moment: required,
                exact: true,
            };
            view.moments.insert(*ino, vec![synced]);
        }
        Ok(())
    }
}

fn gone<T>(required: usize) -> Result<T, String> {
    Err(format!(
        "a file that was durable after {required} operations is missing"
    ))
}

/// Whether a regular file has the same names, at least one, at both moments.
fn same_names(task: &TaskHistory, ino: InodeNo, one: usize, other: usize) -> bool {
    let names = |moment: usize| -> BTreeSet<&TreePath> {
        let all = task.paths[moment].iter();
        all.filter(|(_, of)| **of == ino)
            .map(|(path, _)| path)
            .collect()
    };
    let node = task.states[one].node(ino);
    let is_file = node.is_ok_and(|node| node.kind == FileKind::Regular);
    is_file && !names(one).is_empty() && names(one) == names(other)
}
