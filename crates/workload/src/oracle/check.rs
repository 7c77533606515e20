//! Compares the state found after a crash with a history.

use std::collections::{BTreeMap, BTreeSet};

use steadfs_base::InodeNo;

use super::file::{File, compare_content};
use super::history::{Ack, Event, History, TaskHistory};
use super::roll_forward::{RecoveredTree, RollForward};
use super::verdict::{Explanation, Violation};
use crate::model::Node;
use crate::observe::{InodeSnapshot, Observed};
use crate::{Recovery, TreePath};

/// The moments that a task may show after a crash.
struct Bounds {
    /// The first and the last allowed moment.
    first: usize,
    last: usize,
    /// For each file, the moment up to which its data was acknowledged.
    durable: BTreeMap<InodeNo, usize>,
    /// The same for every file, by a sync.
    all_durable: usize,
    /// For each inode, the first moment that includes all acknowledged changes of it.
    required: BTreeMap<InodeNo, usize>,
    /// The last marker, if files may have been rolled forward beyond the common moment.
    rolled: Option<u64>,
}

impl Bounds {
    fn durable(&self, ino: InodeNo) -> usize {
        let own = self.durable.get(&ino).copied().unwrap_or(0);
        own.max(self.all_durable)
    }

    /// A file was made durable at `moment`, with all changes of it up to moment `needed`.
    fn acknowledge(&mut self, ino: InodeNo, moment: usize, needed: usize) {
        self.durable.insert(ino, moment);
        let required = self.required.entry(ino).or_default();
        *required = needed.max(*required);
        if self.rolled.is_none() {
            self.first = self.first.max(needed);
        }
    }
}

impl TaskHistory {
    /// The bounds if the last marker before the crash was `mark`, without regard to other tasks' syncs.
    fn bounds(&self, mark: u64, recovery: Recovery) -> Bounds {
        let mut bounds = Bounds {
            first: 0,
            last: self
                .records
                .iter()
                .take_while(|record| record.started <= mark)
                .count(),
            durable: BTreeMap::new(),
            all_durable: 0,
            required: BTreeMap::new(),
            rolled: matches!(recovery, Recovery::RollForward { .. }).then_some(mark),
        };
        for (index, record) in self.records.iter().enumerate() {
            let moment = index + 1;
            if record.ended > mark {
                break;
            }
            match record.ack {
                None => {}
                Some(Ack::All) => {
                    bounds.first = moment;
                    bounds.all_durable = moment;
                }
                Some(Ack::Inode(ino)) => {
                    bounds.acknowledge(ino, moment, self.needed(index, ino, false))
                }
                Some(Ack::Data(ino)) => {
                    bounds.acknowledge(ino, moment, self.needed(index, ino, true))
                }
            }
        }
        bounds
    }

    /// The first moment that includes every change of `ino` that a sync as operation `index` acknowledges.
    fn needed(&self, index: usize, ino: InodeNo, data_only: bool) -> usize {
        let concerns = |number: &usize| {
            let record = &self.records[*number];
            let data = record.made == Some(ino)
                || record.grown.contains(&ino)
                || record
                    .events
                    .iter()
                    .any(|(of, event)| *of == ino && !matches!(event, Event::Wrote(_)));
            data || !data_only && record.changed.contains(&ino)
        };
        (0..index)
            .rev()
            .find(concerns)
            .map_or(0, |number| number + 1)
    }

    /// The moment that includes every operation that had returned before marker `at`.
    fn returned_by(&self, at: u64) -> usize {
        self.records
            .iter()
            .take_while(|record| record.ended <= at)
            .count()
    }

    /// The moment of this task that is implied by another task's operation that began at marker `began`.
    fn implied_by(&self, began: u64) -> usize {
        (0..self.returned_by(began))
            .rev()
            .find(|index| !self.records[*index].changed.is_empty())
            .map_or(0, |index| index + 1)
    }
}

impl History {
    /// Compares the state found after a crash with the allowed ones; `mark` was the last marker before the crash.
    ///
    /// # Errors
    /// The rule that is violated.
    pub fn check(&self, found: &Observed, mark: u64) -> Result<Explanation, Box<Violation>> {
        self.check_untouched(found)?;
        let mut bounds: Vec<_> = {
            let bounds = |task: &TaskHistory| task.bounds(mark, self.format.recovery);
            self.tasks.iter().map(bounds).collect()
        };
        self.apply_foreign_syncs(&mut bounds, mark);
        let mut candidates = Vec::new();
        let mut all_rolled = Vec::new();
        let mut others = Vec::new();
        for (number, (task, bounds)) in self.tasks.iter().zip(&bounds).enumerate() {
            let part = TaskView::of(task, found, mark < self.observed_from);
            let mut right = Vec::new();
            let mut rolled = Vec::new();
            let mut why = Vec::new();
            for moment in bounds.first..=bounds.last {
                match part.compare(self, task, moment, bounds) {
                    Ok(count) => {
                        right.push(moment);
                        rolled.push(count);
                    }
                    Err(reason) => why.push(reason.at(moment)),
                }
            }
            why.sort_by_key(|(rank, ..)| *rank);
            let why = why.into_iter().map(|(_, moment, text)| (moment, text));
            let why = why.collect();
            if right.is_empty() {
                return Err(Box::new(Violation::NoMoment { task: number, why }));
            }
            others.push(why);
            candidates.push(right);
            all_rolled.push(rolled);
        }
        match self.agree(&candidates) {
            Some(moments) => {
                let rolled = moments.iter().zip(&candidates).zip(&all_rolled);
                let rolled = rolled.map(|((moment, right), rolled)| {
                    let at = right.iter().position(|of| of == moment);
                    at.map_or(0, |at| rolled[at])
                });
                Ok(Explanation {
                    rolled: rolled.sum(),
                    moments,
                })
            }
            None => Err(Box::new(Violation::NoCommonMoment {
                candidates,
                why: others,
            })),
        }
    }

    /// Compares the state of a running file system with the only allowed one.
    ///
    /// # Errors
    /// The difference.
    pub fn check_live(&self, found: &Observed) -> Result<(), Box<Violation>> {
        self.check_untouched(found)?;
        for (number, task) in self.tasks.iter().enumerate() {
            let last = task.records.len();
            let bounds = Bounds {
                first: last,
                last,
                durable: BTreeMap::new(),
                all_durable: last,
                required: BTreeMap::new(),
                rolled: None,
            };
            if let Err(reason) = TaskView::of(task, found, true).compare(self, task, last, &bounds)
            {
                let (_, moment, text) = reason.at(last);
                return Err(Box::new(Violation::NoMoment {
                    task: number,
                    why: vec![(moment, text)],
                }));
            }
        }
        Ok(())
    }

    /// A sync of one task covers every operation of other tasks that had returned when it began.
    fn apply_foreign_syncs(&self, bounds: &mut [Bounds], mark: u64) {
        let acked = |record: &&super::history::OpRecord| {
            record.ended <= mark && matches!(record.ack, Some(Ack::All))
        };
        let syncs = self
            .tasks
            .iter()
            .flat_map(|task| &task.records)
            .filter(acked);
        let Some(last) = syncs.map(|record| record.started).max() else {
            return;
        };
        for (task, bounds) in self.tasks.iter().zip(bounds) {
            let covered = task.returned_by(last);
            bounds.first = bounds.first.max(covered);
            bounds.all_durable = bounds.all_durable.max(covered);
        }
    }

    /// Chooses one candidate per task such that rule 3 holds, the latest possible ones.
    fn agree(&self, candidates: &[Vec<usize>]) -> Option<Vec<usize>> {
        let mut chosen: Vec<_> = candidates.iter().map(|of| of.len() - 1).collect();
        loop {
            let moment = |task: usize| candidates[task][chosen[task]];
            let too_late = (0..chosen.len()).find(|&later| {
                let Some(index) = moment(later).checked_sub(1) else {
                    return false;
                };
                let began = self.tasks[later].records[index].started;
                let others = (0..chosen.len()).filter(|&task| task != later);
                others
                    .into_iter()
                    .any(|task| moment(task) < self.tasks[task].implied_by(began))
            });
            match too_late {
                None => return Some((0..chosen.len()).map(moment).collect()),
                // The others' latest candidates are chosen already: only this one can be lowered.
                Some(task) => chosen[task] = chosen[task].checked_sub(1)?,
            }
        }
    }

    /// Names that no task changed are as at the start.
    fn check_untouched(&self, found: &Observed) -> Result<(), Box<Violation>> {
        let owned = |path: &TreePath| self.tasks.iter().any(|task| task.own.contains(path));
        let wrong = |path: &TreePath, what: String| {
            let path = path.clone();
            Err(Box::new(Violation::Untouched { path, what }))
        };
        for path in found.names.keys() {
            if !self.base_paths.contains_key(path) && !owned(path) {
                return wrong(path, "no task created it".to_owned());
            }
        }
        for (path, ino) in &self.base_paths {
            if owned(path) {
                continue;
            }
            let Some(there) = found.names.get(path) else {
                return wrong(path, "is missing although no task removed it".to_owned());
            };
            let node = self.base.node(*ino).expect("a named inode exists");
            let seen = &found.inodes[there];
            let same = compare_attributes(node, seen)
                .and_then(|()| match node.is_dir() {
                    // Entries of a shared directory change, and its times with them.
                    true => Ok(()),
                    false => compare_mtime(node, seen),
                })
                .and_then(|()| compare_size(node.size, seen))
                .and_then(|()| compare_content(node, seen));
            if let Err(what) = same {
                return wrong(path, what);
            }
        }
        Ok(())
    }
}

/// Why a moment is not the one found; the higher the rank, the better the match.
struct Mismatch {
    rank: u32,
    text: String,
}

impl Mismatch {
    fn at(self, moment: usize) -> (u32, usize, String) {
        (self.rank, moment, self.text)
    }
}

fn reason<T>(rank: u32, text: impl Into<String>) -> Result<T, Mismatch> {
    Err(Mismatch {
        rank,
        text: text.into(),
    })
}

/// The state found of one task's paths.
struct TaskView<'a> {
    found: &'a Observed,
    /// Whether access times are known.
    atimes: bool,
    names: BTreeMap<&'a TreePath, InodeNo>,
}

impl<'a> TaskView<'a> {
    fn of(task: &TaskHistory, found: &'a Observed, atimes: bool) -> Self {
        let names = found
            .names
            .iter()
            .filter(|(path, _)| task.own.contains(*path))
            .map(|(path, ino)| (path, *ino))
            .collect();
        Self {
            found,
            atimes,
            names,
        }
    }

    /// Checks whether this is the task's state at `moment`, with files that were rolled forward beyond it; returns the
    /// number of these files.
    fn compare(
        &self,
        history: &History,
        task: &TaskHistory,
        moment: usize,
        bounds: &Bounds,
    ) -> Result<usize, Mismatch> {
        let Some(mark) = bounds.rolled else {
            return self.compare_view(history, task, moment, bounds, None);
        };
        let required = &bounds.required;
        let views = RollForward { mark, required }.from(task, moment, &self.names);
        let mut nearest = None;
        for view in views.or_else(|text| reason(0, text))? {
            match self.compare_view(history, task, moment, bounds, Some(&view)) {
                Ok(later) => return Ok(later),
                Err(wrong) => nearest = Some(wrong),
            }
        }
        Err(nearest.expect("a tree or an error"))
    }

    /// The same for one combination of files that were rolled forward.
    fn compare_view(
        &self,
        history: &History,
        task: &TaskHistory,
        moment: usize,
        bounds: &Bounds,
        rolled: Option<&RecoveredTree>,
    ) -> Result<usize, Mismatch> {
        let mut later = 0;
        let names = rolled.map_or(&task.paths[moment], |view| &view.names);
        let pairs = self.match_names(names)?;
        let mut done = BTreeSet::new();
        for (path, ino, there) in pairs {
            if !done.insert(ino) {
                continue;
            }
            let seen = &self.found.inodes[&there];
            let compare = |moment: usize, own: bool| {
                let file = File {
                    format: history.format,
                    task,
                    ino,
                    moment,
                    durable: bounds.durable(ino),
                    last: bounds.last,
                    own,
                    failing: history.failing,
                };
                self.compare_inode(&file, path, seen, rolled)
            };
            let moments = rolled.and_then(|view| view.moments.get(&ino));
            let Some(moments) = moments else {
                compare(moment, false)?;
                continue;
            };
            let mut wrong = None;
            let shown = moments
                .iter()
                .find(|shown| match compare(shown.moment, shown.exact) {
                    Ok(()) => true,
                    Err(reason) => {
                        let at = shown.moment;
                        let text = format!("as after {at} operations, {}", reason.text);
                        wrong = Some(Mismatch { text, ..reason });
                        false
                    }
                });
            match (shown, wrong) {
                (None, Some(wrong)) => return Err(wrong),
                (shown, _) => {
                    let is_later = shown.is_none_or(|shown| shown.moment != moment);
                    later += usize::from(is_later);
                }
            }
        }
        Ok(later)
    }

    /// Checks whether an inode is as it may be at one moment.
    fn compare_inode(
        &self,
        file: &File<'_>,
        path: &TreePath,
        seen: &InodeSnapshot,
        rolled: Option<&RecoveredTree>,
    ) -> Result<(), Mismatch> {
        let node = file.node(file.moment).expect("a named inode exists");
        let touched = rolled.is_some_and(|view| view.touched.contains(&file.ino));
        let same = compare_attributes(node, seen)
            .and_then(|()| match touched {
                true => Ok(()),
                false => compare_mtime(node, seen),
            })
            .and_then(|()| match self.atimes {
                true => compare_atime(node, seen),
                false => Ok(()),
            });
        if let Err(text) = same {
            return reason(1, format!("{path}: {text}"));
        }
        if seen.kind != steadfs_vfs::FileKind::Regular {
            return Ok(());
        }
        if let Err(text) = file.check_size(seen.size) {
            return reason(2, format!("{path}: {text}"));
        }
        if let Err(text) = file.check_content(seen) {
            return reason(3, format!("{path}: {text}"));
        }
        Ok(())
    }

    /// Pairs the model's names with those found; refuses other names and other hard links.
    fn match_names(
        &self,
        due: &BTreeMap<TreePath, InodeNo>,
    ) -> Result<Vec<(&'a TreePath, InodeNo, InodeNo)>, Mismatch> {
        if let Some(missing) = due.keys().find(|path| !self.names.contains_key(path)) {
            return reason(0, format!("{missing} is missing"));
        }
        let mut pairs = Vec::new();
        let mut there_of = BTreeMap::new();
        let mut here_of = BTreeMap::new();
        for (path, there) in &self.names {
            let Some(ino) = due.get(path) else {
                return reason(0, format!("{path} is there"));
            };
            let same_there = *there_of.entry(*ino).or_insert(*there) == *there;
            let same_here = *here_of.entry(*there).or_insert(*ino) == *ino;
            if !same_there || !same_here {
                return reason(1, format!("{path} is linked to another inode"));
            }
            pairs.push((*path, *ino, *there));
        }
        Ok(pairs)
    }
}

/// Compares everything but times, size, content, names, and the link count, which was checked against the names.
fn compare_attributes(node: &Node, seen: &InodeSnapshot) -> Result<(), String> {
    if node.kind != seen.kind {
        return Err(format!("is a {:?}, not a {:?}", seen.kind, node.kind));
    }
    if node.perm != seen.perm {
        return Err(format!(
            "has permissions {:o}, not {:o}",
            seen.perm, node.perm
        ));
    }
    if (node.uid, node.gid) != seen.owner {
        let due = (node.uid, node.gid);
        return Err(format!("belongs to {:?}, not to {due:?}", seen.owner));
    }
    if node.rdev != seen.rdev {
        return Err(format!("is device {:#x}, not {:#x}", seen.rdev, node.rdev));
    }
    if node.target != seen.target {
        return Err("points elsewhere".to_owned());
    }
    compare_xattrs(node, seen)
}

fn compare_mtime(node: &Node, seen: &InodeSnapshot) -> Result<(), String> {
    match node.mtime {
        Some(due) if due != seen.mtime => {
            Err(format!("was changed at {:?}, not {due:?}", seen.mtime))
        }
        _ => Ok(()),
    }
}

fn compare_atime(node: &Node, seen: &InodeSnapshot) -> Result<(), String> {
    match node.atime {
        Some(due) if due != seen.atime => Err(format!("was read at {:?}, not {due:?}", seen.atime)),
        _ => Ok(()),
    }
}

fn compare_xattrs(node: &Node, seen: &InodeSnapshot) -> Result<(), String> {
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    for (name, value) in &node.xattrs {
        match seen.xattrs.get(name) {
            None => return Err(format!("lacks attribute {}", text(name))),
            Some(other) if other != value => {
                return Err(format!("has another value of attribute {}", text(name)));
            }
            Some(_) => {}
        }
    }
    match seen
        .xattrs
        .keys()
        .find(|name| !node.xattrs.contains_key(*name))
    {
        Some(name) => Err(format!("has an attribute {}", text(name))),
        None => Ok(()),
    }
}

fn compare_size(due: u64, seen: &InodeSnapshot) -> Result<(), String> {
    let is_file = seen.kind == steadfs_vfs::FileKind::Regular;
    if is_file && seen.size != due {
        return Err(format!("has {} bytes, not {due}", seen.size));
    }
    Ok(())
}
