//! Tests the oracle with a simulated disk that loses power. The correct one must always pass; each of several flaws
//! must be caught.

use std::collections::{BTreeMap, BTreeSet};

use steadfs_base::InodeNo;
use steadfs_rt::Random;
use steadfs_vfs::FileKind;

use super::history::{Ack, Event, History, TaskHistory};
use crate::generate::{Shape, pairs, random, singles};
use crate::model::{Content, PAGE, State};
use crate::{Format, ModelFs, Op, Program, observe};

const BLOCK: u64 = PAGE as u64;

/// A flaw of the simulated disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// fsync commits metadata but leaves data in memory.
    LosesData,
    /// fsync writes data but commits nothing.
    LosesNames,
    /// A rename is there without operations before it.
    ReordersRenames,
    /// A block of a grown file shows another file's bytes.
    LeaksData,
    /// The bytes that a truncate cut off come back when the file grows again.
    RevivesTail,
    /// Blocks freed by a truncate are used again before it is committed.
    ReusesEarly,
    /// Attributes are newer than names.
    TearsAttributes,
    /// A hard link becomes a copy.
    SplitsLinks,
    /// An empty file appears.
    LeavesEmptyFile,
    /// A file's size covers what is not written yet.
    GrowsEarly,
}

/// One lifetime of a block of a file: mapped from one moment to another.
#[derive(Clone)]
struct BlockLifetime {
    data: Vec<u8>,
    since: usize,
    until: Option<usize>,
}

/// A disk like ext4's with ordered data and delayed allocation, in moments of one task.
struct Disk<'a> {
    task: &'a TaskHistory,
    flaw: Flaw,
    random: Random,
    lives: BTreeMap<(InodeNo, u64), Vec<BlockLifetime>>,
    dirty: BTreeSet<(InodeNo, u64)>,
    sizes: BTreeMap<InodeNo, Vec<(usize, u64)>>,
    /// The last moment each inode's metadata changed.
    changed: BTreeMap<InodeNo, usize>,
    committed: usize,
}

impl<'a> Disk<'a> {
    /// The disk when `mark` was the last marker.
    fn at(task: &'a TaskHistory, base: &State, mark: u64, flaw: Flaw, seed: u64) -> (Self, usize) {
        let mut disk = Self {
            task,
            flaw,
            random: Random::new(seed),
            lives: BTreeMap::new(),
            dirty: BTreeSet::new(),
            sizes: BTreeMap::new(),
            changed: BTreeMap::new(),
            committed: 0,
        };
        for (ino, node) in base.nodes() {
            for (index, page) in node.content.pages() {
                let life = BlockLifetime {
                    data: page.to_vec(),
                    since: 0,
                    until: None,
                };
                disk.lives.insert((ino, index), vec![life]);
            }
            disk.sizes.insert(ino, vec![(0, node.size)]);
        }
        let mut last = 0;
        for (index, record) in task.records.iter().enumerate() {
            if record.started > mark {
                break;
            }
            last = index + 1;
            disk.act(index);
            if record.ended <= mark {
                disk.acknowledge(index);
            }
            if disk.random.chance(200) {
                let all: Vec<_> = disk.dirty.iter().map(|(ino, _)| *ino).collect();
                if !all.is_empty() {
                    let ino = all[disk.random.below(all.len())];
                    disk.write_back(ino, last);
                }
            }
        }
        (disk, last)
    }

    fn content(&self, moment: usize, ino: InodeNo, index: u64) -> Vec<u8> {
        let mut data = vec![0; PAGE];
        if let Ok(node) = self.task.states[moment].node(ino) {
            node.content.read(index * BLOCK, &mut data);
        }
        data
    }

    fn set_size(&mut self, moment: usize, ino: InodeNo) {
        let size = self.task.states[moment]
            .node(ino)
            .map_or(0, |node| node.size);
        self.sizes.entry(ino).or_default().push((moment, size));
        self.changed.insert(ino, moment);
    }

    fn live(&mut self, ino: InodeNo, index: u64) -> Option<&mut BlockLifetime> {
        let life = self.lives.get_mut(&(ino, index))?.last_mut()?;
        life.until.is_none().then_some(life)
    }

    fn act(&mut self, index: usize) {
        let moment = index + 1;
        let record = &self.task.records[index];
        for ino in &record.changed {
            self.changed.insert(*ino, moment);
        }
        for (ino, event) in &record.events {
            let ino = *ino;
            match *event {
                Event::Wrote(span) => {
                    let blocks = span.offset / BLOCK..span.end().div_ceil(BLOCK);
                    self.dirty.extend(blocks.map(|index| (ino, index)));
                    if self.flaw == Flaw::GrowsEarly {
                        self.set_size(moment, ino);
                    }
                }
                Event::Cut(from) => {
                    self.free(ino, moment, from.div_ceil(BLOCK)..u64::MAX);
                    let index = from / BLOCK;
                    if from % BLOCK != 0 && self.flaw != Flaw::RevivesTail {
                        // Ordered: written before the commit.
                        let data = self.content(moment, ino, index);
                        if let Some(life) = self.live(ino, index) {
                            life.data = data;
                        }
                    }
                }
                Event::Punched(span) | Event::Zeroed(span) => {
                    self.free(ino, moment, span.offset.div_ceil(BLOCK)..span.end() / BLOCK);
                    let ends = [span.offset / BLOCK, span.end() / BLOCK];
                    for index in ends {
                        // A hole stays one.
                        if self.live(ino, index).is_some() {
                            self.dirty.insert((ino, index));
                        }
                    }
                }
                Event::Shifted(from) => {
                    self.write_back(ino, index);
                    self.free(ino, moment, from / BLOCK..u64::MAX);
                    let pages = self.task.states[moment].node(ino).expect("was shifted");
                    let moved = pages
                        .content
                        .pages()
                        .filter(|(index, _)| *index >= from / BLOCK);
                    for (index, page) in moved {
                        let life = BlockLifetime {
                            data: page.to_vec(),
                            since: moment,
                            until: None,
                        };
                        self.lives.entry((ino, index)).or_default().push(life);
                    }
                }
                Event::Sized => self.set_size(moment, ino),
            }
        }
    }

    fn free(&mut self, ino: InodeNo, moment: usize, blocks: std::ops::Range<u64>) {
        for ((of, index), lives) in &mut self.lives {
            if let Some(life) = lives.last_mut()
                && *of == ino
                && blocks.contains(index)
                && life.until.is_none()
            {
                life.until = Some(moment);
                if self.flaw == Flaw::ReusesEarly {
                    life.data = crate::pattern::bytes(9999, 0, PAGE);
                }
            }
        }
        self.dirty
            .retain(|(of, index)| *of != ino || !blocks.contains(index));
    }

    fn write_back(&mut self, ino: InodeNo, moment: usize) {
        let blocks: Vec<_> = self
            .dirty
            .iter()
            .filter(|(of, _)| *of == ino)
            .copied()
            .collect();
        for (_, index) in blocks {
            self.dirty.remove(&(ino, index));
            let data = self.content(moment, ino, index);
            if let Some(life) = self.live(ino, index) {
                life.data = data;
            } else {
                let life = BlockLifetime {
                    data,
                    since: moment,
                    until: None,
                };
                self.lives.entry((ino, index)).or_default().push(life);
                self.changed.insert(ino, moment);
            }
        }
        let size = self.task.states[moment]
            .node(ino)
            .map(|node| node.size)
            .ok();
        let on_disk = self
            .sizes
            .get(&ino)
            .and_then(|sizes| sizes.last())
            .map(|(_, size)| *size);
        if size != on_disk {
            self.set_size(moment, ino);
        }
    }

    fn acknowledge(&mut self, index: usize) {
        let moment = index + 1;
        match self.task.records[index].ack {
            None => {}
            Some(Ack::Inode(ino) | Ack::Data(ino)) => {
                if self.flaw != Flaw::LosesData {
                    self.write_back(ino, moment);
                }
                let needed = self.changed.get(&ino).copied().unwrap_or(0);
                if self.flaw != Flaw::LosesNames {
                    self.committed = self.committed.max(needed);
                }
            }
            Some(Ack::All) => {
                let files = self.task.states[moment].nodes();
                let files = files.filter(|(_, node)| node.kind == FileKind::Regular);
                let all: Vec<_> = files.map(|(ino, _)| ino).collect();
                all.into_iter().for_each(|ino| self.write_back(ino, moment));
                self.committed = moment;
            }
        }
    }

    /// What is there after the crash.
    fn crash(mut self, last: usize) -> State {
        let moment = self.committed + self.random.below(last - self.committed + 1);
        let mut state = self.task.states[moment].clone();
        let inodes: Vec<_> = state.nodes().map(|(ino, _)| ino).collect();
        for ino in &inodes {
            let node = state.node(*ino).expect("just listed");
            if node.kind == FileKind::Regular {
                let (content, size) = self.file(*ino, moment, last);
                let node = state.touch(*ino).expect("just listed");
                node.content = content;
                node.size = size;
            }
        }
        self.spoil(&mut state, &inodes, moment, last);
        state
    }

    fn file(&mut self, ino: InodeNo, moment: usize, last: usize) -> (Content, u64) {
        let mut content = Content::default();
        let all: Vec<_> = self
            .lives
            .range((ino, 0)..=(ino, u64::MAX))
            .map(|(k, v)| (*k, v.clone()))
            .collect();
        for ((_, index), lives) in all {
            let there = |life: &&BlockLifetime| {
                life.since <= moment && life.until.is_none_or(|until| until > moment)
            };
            let Some(life) = lives.iter().find(there) else {
                continue;
            };
            let mut data = life.data.clone();
            // A block that is being written back may be torn.
            if life.until.is_none() && self.dirty.contains(&(ino, index)) {
                let newer = self.content(last, ino, index);
                for (old, new) in data.chunks_mut(512).zip(newer.chunks(512)) {
                    if self.random.chance(300) {
                        old.copy_from_slice(new);
                    }
                }
            }
            content.write(index * BLOCK, &data);
        }
        let sizes = self.sizes.get(&ino).into_iter().flatten();
        let size = sizes
            .filter(|(at, _)| *at <= moment)
            .map(|(_, size)| *size)
            .next_back();
        (content, size.unwrap_or(0))
    }

    /// Flaws that are applied to the final state.
    fn spoil(&mut self, state: &mut State, inodes: &[InodeNo], moment: usize, last: usize) {
        match self.flaw {
            Flaw::ReordersRenames => {
                let fs = ModelFs::new(self.task.states[self.committed].clone(), Format::PLAIN);
                for record in &self.task.records[self.committed..last] {
                    if matches!(record.op, Op::Rename { .. }) {
                        let _ = crate::Runner::new(&fs).step(&record.op);
                    }
                }
                *state = fs.state();
            }
            Flaw::LeaksData => {
                for ino in inodes {
                    let grown = self.sizes.get(ino).is_some_and(|sizes| sizes.len() > 1);
                    let node = state.touch(*ino).expect("just listed");
                    if grown && node.size > 0 {
                        node.content.write(0, &crate::pattern::bytes(9999, 0, 512));
                    }
                }
            }
            Flaw::TearsAttributes => {
                for ino in inodes {
                    if let Ok(newer) = self.task.states[last].node(*ino) {
                        let xattrs = newer.xattrs.clone();
                        state.touch(*ino).expect("just listed").xattrs = xattrs;
                    }
                }
            }
            Flaw::SplitsLinks => {
                for (path, ino) in state.flatten() {
                    let node = state.node(ino).expect("a named inode exists").clone();
                    if node.kind == FileKind::Regular && node.nlink > 1 {
                        let name = path.name().expect("a file has a name").to_vec();
                        let dir = state.flatten()[&path.parent().expect("a file is somewhere")];
                        state.unlink(dir, &name).expect("it is there");
                        let kind = (node.kind, node.perm);
                        let copy = state.make(dir, &name, kind, (node.uid, node.gid), |copy| {
                            copy.content = node.content.clone();
                            copy.size = node.size;
                            copy.xattrs = node.xattrs.clone();
                            Ok(())
                        });
                        copy.expect("the name is free");
                        break;
                    }
                }
            }
            Flaw::LeavesEmptyFile if moment == last => {
                let kind = (FileKind::Regular, 0);
                state
                    .make(crate::model::ROOT, b"litter", kind, (0, 0), |_| Ok(()))
                    .expect("the name is free");
            }
            _ => {}
        }
    }
}

/// Crashes `program` at every marker, several times each; returns the number of violations and the first one.
fn violations(program: &Program, flaw: Flaw, seed: u64) -> (usize, Option<String>) {
    let history = History::from_model(program, Format::PLAIN);
    let task = &history.tasks[0];
    let mut count = 0;
    let mut first = None;
    let end = task.records.last().map_or(0, |record| record.ended);
    let start = task.records.first().map_or(0, |record| record.started);
    for mark in start.saturating_sub(1)..=end {
        for round in 0..3 {
            let (disk, last) = Disk::at(task, &history.base, mark, flaw, seed ^ mark << 8 ^ round);
            let committed = disk.committed;
            let fs = ModelFs::new(disk.crash(last), Format::PLAIN);
            let seen = observe(&fs).expect("the model agrees with itself");
            if let Err(violation) = history.check(&seen, mark) {
                count += 1;
                first.get_or_insert_with(|| {
                    format!(
                        "mark {mark}, committed {committed}, last {last}\n{violation}\n{program}"
                    )
                });
            }
        }
    }
    (count, first)
}

fn programs() -> Vec<Program> {
    let mut all = singles(Format::PLAIN);
    all.extend(pairs(Format::PLAIN).into_iter().step_by(23));
    let shape = Shape {
        ops: 40,
        ..Shape::default()
    };
    all.extend((0..60).map(|seed| random(seed, shape, Format::PLAIN)));
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
        Flaw::LosesData,
        Flaw::LosesNames,
        Flaw::ReordersRenames,
        Flaw::LeaksData,
        Flaw::RevivesTail,
        Flaw::ReusesEarly,
        Flaw::TearsAttributes,
        Flaw::SplitsLinks,
        Flaw::LeavesEmptyFile,
        Flaw::GrowsEarly,
    ];
    let programs = programs();
    for flaw in flaws {
        let caught = (0..)
            .zip(&programs)
            .filter(|(seed, program)| violations(program, flaw, *seed).0 > 0)
            .count();
        assert!(caught > 0, "{flaw:?} is never noticed");
    }
}

/// The example in the module's documentation.
#[test]
fn the_example_is_judged_as_documented() {
    let program: Program =
        "create /a 644\nwrite /a 0+4096 1\ncreate /b 644\nfsync /a\nrename /a /c replace\n"
            .parse()
            .unwrap();
    let history = History::from_model(&program, Format::PLAIN);
    let records = &history.tasks[0].records;
    let during = records[4].started;
    let judge = |text: &str| {
        let made: Program = text.parse().unwrap();
        let seen = observe(&ModelFs::new(
            History::from_model(&made, Format::PLAIN).last().clone(),
            Format::PLAIN,
        ));
        history.check(&seen.unwrap(), during)
    };
    let a = "create /a 644\nwrite /a 0+4096 1\n";
    let c = "create /c 644\nwrite /c 0+4096 1\n";
    let b = "create /b 644\n";
    assert_eq!(judge(a).unwrap().moments, [2]);
    assert!(judge(&format!("{a}{b}")).is_ok());
    assert!(judge(&format!("{c}{b}")).is_ok());
    assert!(judge(c).is_err());
    assert!(judge(b).is_err());
    assert!(judge("").is_err());
    assert!(judge("create /a 644\n").is_err());
    assert!(judge("create /a 644\nwrite /a 0+4096 2\n").is_err());
    assert!(judge("create /a 600\nwrite /a 0+4096 1\n").is_err());
}

/// A file that was not synced grew: which zeros may be found in it.
#[test]
fn an_append_contains_no_zeros() {
    let judge = |ran: &str, found: &str| {
        let ran: Program = format!("create /a 644\nsync\n{ran}").parse().unwrap();
        let history = History::from_model(&ran, Format::PLAIN);
        let end = history.tasks[0].records.last().unwrap().ended;
        let found: Program = format!("create /a 644\n{found}").parse().unwrap();
        let found = History::from_model(&found, Format::PLAIN);
        history.check(
            &observe(&ModelFs::new(found.last().clone(), Format::PLAIN)).unwrap(),
            end,
        )
    };
    let zeros = "truncate /a 8192\n";
    let half = "write /a 0+4096 1\ntruncate /a 8192\n";
    assert!(judge("write /a 0+8192 1\n", "write /a 0+8192 1\n").is_ok());
    assert!(judge("write /a 0+8192 1\n", "write /a 0+4096 1\n").is_ok());
    assert!(judge("write /a 0+8192 1\n", zeros).is_err());
    assert!(judge("write /a 0+8192 1\n", half).is_err());
    // A hole, and a size that was set, with data that is written later.
    assert!(judge("write /a 4096+4096 1\n", zeros).is_err());
    let tail = "write /a 4096+4096 1\n";
    assert!(judge(&format!("{tail}write /a 0+4096 2\n"), tail).is_ok());
    assert!(judge("truncate /a 8192\nwrite /a 0+8192 1\n", zeros).is_ok());
    // Within a sector: bytes adjacent to the old end, and others.
    let old = "write /a 0+100 1\n";
    let both = format!("{old}write /a 100+100 2\n");
    let synced = |then: &str| format!("{old}fsync /a\n{then}");
    assert!(judge(&synced("write /a 100+100 2\n"), &both).is_ok());
    let behind = format!("{old}truncate /a 200\n");
    assert!(judge(&synced("write /a 100+100 2\n"), &behind).is_err());
    let apart = "write /a 0+50 3\nwrite /a 4096+100 4\n";
    let newer = format!("{old}write /a 4096+100 4\n");
    assert!(judge(&synced(apart), &newer).is_ok());
}

/// A copy goes in pieces, which end where a page of its source ends, here within a sector of its target.
#[test]
fn a_copy_may_be_done_in_part() {
    let files = "create /h 644\nwrite /h 0+5808 5\ncreate /a 644\nwrite /a 60530+8192 9\n";
    let ran: Program = format!("{files}copy /h 1834+7367 /a 18575\n")
        .parse()
        .unwrap();
    let history = History::from_model(&ran, Format::PLAIN);
    let end = history.tasks[0].records.last().unwrap().ended;
    let judge = |copied: &str| {
        let found: Program = format!("{files}{copied}").parse().unwrap();
        let found = History::from_model(&found, Format::PLAIN);
        let found = ModelFs::new(found.last().clone(), Format::PLAIN);
        history.check(&observe(&found).unwrap(), end)
    };
    assert!(judge("").is_ok());
    assert!(judge("copy /h 1834+7367 /a 18575\n").is_ok());
    assert!(judge("copy /h 1834+2262 /a 18575\n").is_ok());
    assert!(judge("copy /h 4096+1712 /a 20837\n").is_err());
}

/// Two tasks: one syncs, and the other begins an operation later.
#[test]
fn tasks_agree_with_each_other() {
    let program: Program =
        "setup\nmkdir /0 755\nmkdir /1 755\ntask\ncreate /0/a 644\ntask\ncreate /1/b 644\n"
            .parse()
            .unwrap();
    // In the model tasks run one after the other: /0/a was there before /1/b was begun.
    let history = History::from_model(&program, Format::PLAIN);
    let end = history.tasks[1].records[0].started;
    let judge = |text: &str| {
        let made: Program = format!("mkdir /0 755\nmkdir /1 755\n{text}")
            .parse()
            .unwrap();
        let seen = observe(&ModelFs::new(
            History::from_model(&made, Format::PLAIN).last().clone(),
            Format::PLAIN,
        ));
        history.check(&seen.unwrap(), end)
    };
    assert!(judge("").is_ok());
    assert!(judge("create /0/a 644\n").is_ok());
    assert!(judge("create /0/a 644\ncreate /1/b 644\n").is_ok());
    let wrong = judge("create /1/b 644\n").unwrap_err();
    assert!(
        wrong.to_string().contains("never existed together"),
        "{wrong}"
    );
}
