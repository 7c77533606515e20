//! Tests rule 7 with a simulated file system that takes checkpoints and rolls files forward. The correct one must
//! always pass; each of several flaws must be caught.

use std::collections::{BTreeMap, BTreeSet};

use steadfs_base::InodeNo;
use steadfs_rt::Random;
use steadfs_vfs::FileKind;

use crate::generate::{Shape, pairs, random, singles};
use crate::model::State;
use crate::oracle::history::{Ack, History, TaskHistory};
use crate::{Format, ModelFs, Program, Recovery, observe};

const fn format(strict: bool) -> Format {
    Format {
        recovery: Recovery::RollForward { strict },
        ..Format::PLAIN
    }
}

/// A flaw of the simulated file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// fsync of a file does nothing.
    IgnoresFileSync,
    /// fsync of a directory does nothing.
    IgnoresDirectorySync,
    /// fsync of a file with several names does not take a checkpoint.
    IgnoresLinks,
    /// A new file is restored without its name.
    LosesNames,
    /// A renamed file is restored under its new name as well.
    NamesTwice,
    /// Content is restored, attributes are not.
    OldAttributes,
    /// The size is restored rounded up to a block.
    WrongSize,
    /// The content is the checkpoint's.
    OldContent,
    /// A file that was not synced is restored, too.
    RestoresUnsynced,
    /// A file that took another's name is restored, and the other keeps it.
    StealsNames,
    /// A sync takes no checkpoint, but makes every file durable by itself.
    SyncsFiles,
    /// Files are clustered with another's fsync that recovery cannot restore.
    ClustersAll,
}

/// The simulated file system. All content is written in place at once, so that a checkpoint holds a moment's whole
/// state.
struct Toy<'a> {
    task: &'a TaskHistory,
    flaw: Flaw,
    checkpoint: usize,
    /// Files made durable since the checkpoint, with their moments, the oldest first.
    files: Vec<(InodeNo, usize)>,
    /// Whether other files are clustered with an fsync.
    clustered: bool,
}

impl Toy<'_> {
    fn take_checkpoint(&mut self, moment: usize) {
        self.checkpoint = moment;
        self.files.clear();
    }

    /// The only name of a file at a moment.
    fn name(&self, ino: InodeNo, moment: usize) -> Option<(InodeNo, Vec<u8>)> {
        let paths = self.task.states[moment].flatten();
        let mut names = paths.iter().filter(|(_, of)| **of == ino);
        let (path, _) = names.next()?;
        let dir = paths[&path.parent()?];
        names
            .next()
            .is_none()
            .then(|| (dir, path.name().map(<[u8]>::to_vec)))
            .and_then(|(dir, name)| Some((dir, name?)))
    }

    /// Whether recovery can restore the file without a checkpoint; decided from all states, unlike in the oracle.
    fn can_roll_forward(&self, ino: InodeNo, moment: usize) -> bool {
        let states = &self.task.states[self.checkpoint..=moment];
        let (then, now) = (&states[0], &states[states.len() - 1]);
        let Some((dir, name)) = self.name(ino, moment) else {
            return false;
        };
        let Ok(parent) = then.node(dir) else {
            return false;
        };
        let same_xattrs = now.node(dir).is_ok_and(|dir| dir.xattrs == parent.xattrs);
        let is_reachable = then.flatten().values().any(|ino| *ino == dir);
        // The name is the same since the file exists, and was no other file's before.
        let mut seen = false;
        let steady = states.iter().all(|state| {
            let there = state.lookup(dir, &name).ok();
            seen |= there == Some(ino);
            let named = state.flatten().values().filter(|of| **of == ino).count();
            named == usize::from(there == Some(ino))
                && (there == Some(ino)) == seen
                && (seen || there.is_none() && state.node(ino).is_err())
        });
        same_xattrs && is_reachable && steady
    }

    fn sync(&mut self, ino: InodeNo, moment: usize) {
        let Ok(node) = self.task.states[moment].node(ino) else {
            return;
        };
        let is_file = node.kind == FileKind::Regular;
        match self.flaw {
            Flaw::IgnoresFileSync if is_file => return,
            Flaw::IgnoresDirectorySync if node.is_dir() => return,
            Flaw::IgnoresLinks if node.nlink > 1 => return,
            Flaw::NamesTwice | Flaw::StealsNames if is_file && node.nlink == 1 => {
                self.files.push((ino, moment));
                return;
            }
            _ => {}
        }
        if is_file && self.can_roll_forward(ino, moment) {
            self.files.push((ino, moment));
            if self.clustered {
                self.cluster_others(ino, moment);
            }
        } else {
            self.take_checkpoint(moment);
        }
    }

    /// Makes other files that were written since the checkpoint durable, too.
    fn cluster_others(&mut self, ino: InodeNo, moment: usize) {
        let records = &self.task.records[self.checkpoint..moment];
        let written: BTreeSet<_> = records
            .iter()
            .flat_map(|record| record.reshapes())
            .collect();
        for other in written.into_iter().filter(|other| *other != ino) {
            let is_named = self.name(other, moment).is_some();
            let any = self.flaw == Flaw::ClustersAll && is_named;
            if any || self.can_roll_forward(other, moment) {
                self.files.push((other, moment));
            }
        }
    }

    fn acknowledge(&mut self, index: usize) {
        let moment = index + 1;
        match self.task.records[index].ack {
            None => {}
            Some(Ack::Inode(ino) | Ack::Data(ino)) => self.sync(ino, moment),
            Some(Ack::All) if self.flaw == Flaw::SyncsFiles => {
                let all: Vec<_> = self.task.states[moment]
                    .nodes()
                    .map(|(ino, _)| ino)
                    .collect();
                for ino in all {
                    let node = self.task.states[moment].node(ino);
                    let is_file = node.is_ok_and(|node| node.kind == FileKind::Regular);
                    if is_file && self.can_roll_forward(ino, moment) {
                        self.files.push((ino, moment));
                    }
                }
            }
            Some(Ack::All) => self.take_checkpoint(moment),
        }
    }

    /// The state after the crash.
    fn crash(&self, last: usize) -> State {
        let mut state = self.task.states[self.checkpoint].clone();
        let mut files = self.files.clone();
        if self.flaw == Flaw::RestoresUnsynced {
            let made = self.task.records[..last]
                .iter()
                .filter_map(|record| record.made);
            let is_file = |ino: &InodeNo| {
                let node = self.task.states[last].node(*ino);
                node.is_ok_and(|node| node.kind == FileKind::Regular)
            };
            let made = made.filter(is_file).map(|ino| (ino, last));
            files.extend(made.filter(|(ino, at)| self.can_roll_forward(*ino, *at)));
        }
        for (ino, moment) in files {
            self.roll_forward(&mut state, ino, moment);
        }
        state
    }

    fn roll_forward(&self, state: &mut State, ino: InodeNo, moment: usize) {
        let now = self.task.states[moment].node(ino).expect("it was synced");
        let old = state.node(ino).ok().cloned();
        let mut node = now.as_ref().clone();
        match (self.flaw, &old) {
            (Flaw::OldAttributes, Some(old)) => {
                node.perm = old.perm;
                node.xattrs = old.xattrs.clone();
            }
            (Flaw::OldContent, Some(old)) => node.content = old.content.clone(),
            (Flaw::WrongSize, _) => node.size = node.size.next_multiple_of(4096),
            _ => {}
        }
        let is_new = old.is_none();
        state.put(ino, node);
        if is_new && self.flaw != Flaw::LosesNames || self.flaw == Flaw::NamesTwice {
            let (dir, name) = self.name(ino, moment).expect("it had one name");
            if let Ok(dir) = state.touch(dir) {
                dir.entries.insert(name, ino);
            }
        }
        let mut names: BTreeMap<InodeNo, u32> = BTreeMap::new();
        for ino in state.flatten().into_values() {
            *names.entry(ino).or_default() += 1;
        }
        for (ino, count) in names {
            let node = state.touch(ino).expect("it has a name");
            if !node.is_dir() {
                node.nlink = count;
            }
        }
    }
}

/// Crashes `program` at every marker, several times each; returns the number of violations and the first one.
fn violations(program: &Program, flaw: Flaw, seed: u64) -> (usize, Option<String>) {
    let history = History::from_model(program, format(false));
    let task = &history.tasks[0];
    let mut count = 0;
    let mut first = None;
    let end = task.records.last().map_or(0, |record| record.ended);
    let start = task.records.first().map_or(0, |record| record.started);
    for mark in start.saturating_sub(1)..=end {
        for round in 0..2 {
            let mut random = Random::new(seed ^ mark << 8 ^ round);
            let mut toy = Toy {
                task,
                flaw,
                checkpoint: 0,
                files: Vec::new(),
                clustered: flaw == Flaw::ClustersAll || random.chance(512),
            };
            let mut last = 0;
            for (index, record) in task.records.iter().enumerate() {
                if record.started > mark {
                    break;
                }
                last = index + 1;
                // An operation that has not returned may be done.
                if record.ended <= mark || random.chance(512) {
                    toy.acknowledge(index);
                }
                if round == 1 && random.chance(100) {
                    toy.take_checkpoint(last);
                }
            }
            let fs = ModelFs::new(toy.crash(last), format(false));
            let seen = observe(&fs);
            let verdict = match seen {
                Ok(seen) => history
                    .check(&seen, mark)
                    .map(drop)
                    .map_err(|v| v.to_string()),
                Err(unreadable) => Err(unreadable.to_string()),
            };
            if let Err(violation) = verdict {
                count += 1;
                first.get_or_insert_with(|| {
                    format!(
                        "mark {mark}, checkpoint {}, files {:?}, last {last}\n{violation}\n{program}",
                        toy.checkpoint, toy.files
                    )
                });
            }
        }
    }
    (count, first)
}

fn programs() -> Vec<Program> {
    let mut all = singles(format(false));
    all.extend(pairs(format(false)).into_iter().step_by(19));
    let shape = Shape {
        ops: 40,
        sync_percent: 30,
        ..Shape::default()
    };
    all.extend((0..60).map(|seed| random(seed, shape, format(false))));
    all
}

#[test]
fn a_correct_file_system_always_passes() {
    for (seed, program) in (0..).zip(programs()) {
        let (count, first) = violations(&program, Flaw::None, seed);
        assert_eq!(count, 0, "{}", first.unwrap_or_default());
    }
}

#[test]
fn every_flaw_is_caught() {
    let flaws = [
        Flaw::IgnoresFileSync,
        Flaw::IgnoresDirectorySync,
        Flaw::IgnoresLinks,
        Flaw::LosesNames,
        Flaw::NamesTwice,
        Flaw::OldAttributes,
        Flaw::WrongSize,
        Flaw::OldContent,
        Flaw::RestoresUnsynced,
        Flaw::StealsNames,
        Flaw::SyncsFiles,
        Flaw::ClustersAll,
    ];
    let programs = programs();
    for flaw in flaws {
        let caught = (0..)
            .zip(&programs)
            .any(|(seed, program)| violations(program, flaw, seed).0 > 0);
        assert!(caught, "{flaw:?} is never noticed");
    }
}

/// Judges the trees that the program `made` produces, as states after a crash at the end of `program`.
fn judge(program: &str, strict: bool) -> impl Fn(&str) -> Result<(), String> + use<> {
    let program: Program = program.parse().unwrap();
    let history = History::from_model(&program, format(strict));
    let end = history.tasks[0].records.last().unwrap().ended;
    move |text| {
        let made: Program = text.parse().unwrap();
        let made = History::from_model(&made, format(strict)).last().clone();
        let seen = observe(&ModelFs::new(made, format(strict))).unwrap();
        history
            .check(&seen, end)
            .map(drop)
            .map_err(|v| v.to_string())
    }
}

#[test]
fn a_file_is_rolled_forward_without_the_others() {
    let start = "create /a 644\nwrite /a 0+4096 1\ncreate /b 644\n";
    let judge = judge(
        &format!("setup\n{start}task\nchmod /b 600\nwrite /a 4096+100 2\nfsync /a\n"),
        false,
    );
    let alone = format!("{start}write /a 4096+100 2\n");
    assert_eq!(judge(&alone), Ok(()));
    assert_eq!(
        judge(&format!("{alone}chmod /b 600\n")),
        Ok(()),
        "a checkpoint"
    );
    assert!(judge(start).is_err(), "it was acknowledged");
    assert!(judge(&format!("{start}chmod /b 600\n")).is_err());
    assert!(judge(&format!("{start}write /a 4096+200 2\n")).is_err());
    assert!(judge(&format!("{alone}chmod /b 640\n")).is_err());
}

#[test]
fn a_new_file_comes_with_its_name_only() {
    let judge = judge(
        "setup\nmkdir /d 755\ntask\ncreate /d/a 644\ncreate /d/b 644\nfsync /d/b\nrename /d /e replace\n",
        false,
    );
    assert_eq!(judge("mkdir /d 755\ncreate /d/b 644\n"), Ok(()));
    assert_eq!(
        judge("mkdir /d 755\ncreate /d/b 644\ncreate /d/a 644\n"),
        Ok(())
    );
    assert_eq!(
        judge("mkdir /e 755\ncreate /e/b 644\ncreate /e/a 644\n"),
        Ok(())
    );
    assert!(judge("mkdir /d 755\ncreate /d/a 644\n").is_err());
    assert!(
        judge("mkdir /e 755\ncreate /e/b 644\n").is_err(),
        "the directory had both then"
    );
}

/// A file that was written before may be clustered with an fsync, but not alone, and only in a state that it had.
#[test]
fn a_clustered_file_may_be_rolled_forward() {
    let judge = judge(
        "setup\ncreate /a 644\ntask\nmkdir /d 755\ncreate /b 644\ncreate /c 644\nwrite /c 0+300 2\n\
         write /a 0+5000 1\nfsync /a\nwrite /a 0+5000 3\nchmod /c 600\n",
        false,
    );
    let asked = "create /a 644\nwrite /a 0+5000 1\n";
    assert_eq!(judge(asked), Ok(()));
    let clustered = "create /c 644\nwrite /c 0+300 2\n";
    assert_eq!(judge(&format!("{asked}{clustered}")), Ok(()));
    assert!(judge(clustered).is_err(), "fsync was called for another");
    assert!(
        judge(&format!("{asked}create /b 644\n")).is_err(),
        "nobody wrote to it"
    );
    assert!(
        judge(&format!("{asked}{clustered}chmod /c 600\n")).is_err(),
        "that was later"
    );
    assert!(judge(&format!("{asked}create /c 644\nwrite /c 0+300 4\n")).is_err());
}

/// The directory was renamed before: the file is restored under a path that it never had.
#[test]
fn a_directory_is_where_the_checkpoint_has_it() {
    let judge = judge(
        "setup\nmkdir /d 755\ntask\nrename /d /e replace\ncreate /e/a 644\nfsync /e/a\n",
        false,
    );
    assert_eq!(judge("mkdir /d 755\ncreate /d/a 644\n"), Ok(()));
    assert_eq!(judge("mkdir /e 755\ncreate /e/a 644\n"), Ok(()));
    assert!(judge("mkdir /d 755\n").is_err());
    assert!(judge("mkdir /e 755\n").is_err());
}

#[test]
fn fsync_takes_a_checkpoint_where_roll_forward_is_impossible() {
    // A second name besides the checkpoint's.
    let renamed = judge(
        "setup\ncreate /a 644\ntask\nrename /a /b replace\nfsync /b\n",
        false,
    );
    assert_eq!(renamed("create /b 644\n"), Ok(()));
    assert!(renamed("create /a 644\n").is_err());
    let linked = judge("setup\ncreate /a 644\ntask\nlink /a /b\nfsync /b\n", false);
    assert_eq!(linked("create /a 644\nlink /a /b\n"), Ok(()));
    assert!(linked("create /a 644\n").is_err());
    let new_dir = judge(
        "setup\ntask\nmkdir /d 755\ncreate /d/a 644\nfsync /d/a\n",
        false,
    );
    assert!(new_dir("").is_err());
    assert!(new_dir("mkdir /d 755\n").is_err());
    // The old file would lose its name.
    let again = "setup\ncreate /a 600\ntask\nrename /a /b replace\ncreate /a 644\nfsync /a\n";
    let again = judge(again, false);
    assert!(again("create /a 644\n").is_err());
    assert_eq!(again("create /a 644\ncreate /b 600\n"), Ok(()));
}

/// The checkpoint may have such a file as it was synced.
#[test]
fn a_file_of_the_checkpoint_may_be_as_it_was_synced() {
    let empty = "create /a 644\nlink /a /b\n";
    let run = format!(
        "setup\n{empty}task\nwrite /a 0+100 1\ntruncate /a 0\nmkdir /d 755\nfdatasync /a\n"
    );
    let judge_it = judge(&run, false);
    assert_eq!(judge_it(empty), Ok(()));
    assert_eq!(judge_it(&format!("{empty}mkdir /d 755\n")), Ok(()));
    assert!(judge_it(&format!("{empty}write /a 0+100 1\n")).is_err());
    let longer = run.replace("truncate /a 0", "truncate /a 50");
    assert!(judge(&longer, false)(empty).is_err());
    let changed = run
        .replace("truncate /a 0", "chmod /a 600")
        .replace("fdatasync", "fsync");
    assert!(judge(&changed, false)(empty).is_err());
}

/// A name of removed files: the last one that was synced has it.
#[test]
fn a_name_can_be_used_again() {
    let judge = judge(
        "setup\ncreate /a 600\nlink /a /x\ntask\nunlink /x\nunlink /a\ncreate /a 640\nfsync /a\n\
         unlink /a\ncreate /a 644\nfsync /a\n",
        false,
    );
    assert_eq!(judge("create /a 644\n"), Ok(()));
    assert_eq!(judge("create /x 600\ncreate /a 644\n"), Ok(()));
    assert!(
        judge("create /a 640\n").is_err(),
        "the second one was synced"
    );
    assert!(judge("create /a 600\n").is_err());
    assert!(judge("create /x 600\n").is_err());
}

#[test]
fn strict_covers_what_was_renamed_into_the_directory() {
    let program = "setup\nmkdir /d 755\ncreate /a 600\ntask\nrename /a /d/a replace\ncreate /d/b 644\nfsync /d/b\n";
    let alone = "mkdir /d 755\ncreate /a 600\ncreate /d/b 644\n";
    assert_eq!(judge(program, false)(alone), Ok(()));
    assert!(judge(program, true)(alone).is_err());
    assert_eq!(
        judge(program, true)("mkdir /d 755\ncreate /d/a 600\ncreate /d/b 644\n"),
        Ok(())
    );
}

#[test]
fn a_removed_file_may_return_only_if_it_was_synced() {
    let judge = judge(
        "setup\ntask\ncreate /a 644\nfsync /a\nunlink /a\ncreate /b 644\nunlink /b\n",
        false,
    );
    assert_eq!(judge("create /a 644\n"), Ok(()));
    assert_eq!(judge(""), Ok(()));
    assert_eq!(judge("create /b 644\n"), Ok(()));
    assert!(judge("create /a 644\ncreate /b 644\n").is_err());
}
