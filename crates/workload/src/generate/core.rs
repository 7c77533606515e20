//! Every single operation, and all pairs of a core set, each with every way to make it durable.

use steadfs_base::Timestamp;
use steadfs_vfs::{FallocMode, FileKind, SetXattr};

use super::number_fills;
use crate::op::RenameHow;
use crate::{Format, Op, Program, Span, Target, TreePath};

/// Operations that belong together, and the file that a program would fsync after them.
#[derive(Clone)]
struct Scenario {
    ops: Vec<Op>,
    file: TreePath,
}

fn path(text: &str) -> TreePath {
    text.parse().expect("a path in this file is right")
}

fn target(text: &str) -> Target {
    Target::Path(path(text))
}

fn write(file: &str, offset: u64, len: u64) -> Op {
    let (file, span) = (target(file), Span::new(offset, len));
    Op::Write {
        file,
        span,
        fill: 1,
    }
}

/// The tree that the core programs start from: two directories, three files, a link, an empty directory. `/foo` has
/// 10000 bytes, `/A/foo` 6000, `/A/bar` 100.
fn start(format: Format) -> Vec<Op> {
    let mut ops = Vec::new();
    for dir in ["/A", "/B", "/B/empty"] {
        ops.push(Op::Mkdir {
            path: path(dir),
            perm: 0o755,
        });
    }
    for (file, size) in [("/foo", 10_000), ("/A/foo", 6_000), ("/A/bar", 100)] {
        ops.push(Op::Create {
            path: path(file),
            perm: 0o644,
        });
        ops.push(write(file, 0, size));
    }
    ops.push(Op::Link {
        from: target("/A/bar"),
        path: path("/B/bar"),
    });
    let kept = if format.long_values { 2500 } else { 30 };
    ops.push(set_xattr("/A/foo", "user.kept", kept));
    ops
}

fn set_xattr(file: &str, name: &str, len: u64) -> Op {
    Op::SetXattr {
        file: target(file),
        name: name.into(),
        len,
        fill: 1,
        how: SetXattr::Any,
    }
}

fn rename(from: &str, to: &str, how: RenameHow) -> Scenario {
    let op = Op::Rename {
        from: path(from),
        to: path(to),
        how,
    };
    Scenario {
        ops: vec![op],
        file: path(to),
    }
}

fn one(file: &str, op: impl FnOnce(TreePath) -> Op) -> Scenario {
    let path = path(file);
    Scenario {
        ops: vec![op(path.clone())],
        file: path,
    }
}

fn fallocate(file: &str, mode: FallocMode, offset: u64, len: u64) -> Scenario {
    let span = Span::new(offset, len);
    one(file, |path| Op::Fallocate {
        file: path.into(),
        mode,
        span,
    })
}

/// Operations that change names.
fn name_scenarios() -> Vec<Scenario> {
    let long = b"x/".repeat(60);
    vec![
        one("/A/new", |path| Op::Create { path, perm: 0o600 }),
        one("/A/dir", |path| Op::Mkdir { path, perm: 0o2750 }),
        one("/B/fifo", |path| Op::Mknod {
            path,
            kind: FileKind::Fifo,
            perm: 0o644,
            rdev: 0,
        }),
        one("/B/node", |path| Op::Mknod {
            path,
            kind: FileKind::BlockDevice,
            perm: 0o600,
            rdev: 0x0801,
        }),
        one("/A/link", |path| Op::Symlink {
            path,
            target: b"../foo".to_vec(),
        }),
        one("/A/far", |path| Op::Symlink { path, target: long }),
        one("/A/hard", |path| Op::Link {
            from: target("/foo"),
            path,
        }),
        one("/A/foo", |path| Op::Unlink { path }),
        one("/A/bar", |path| Op::Unlink { path }),
        one("/B/empty", |path| Op::Rmdir { path }),
        rename("/A/foo", "/B/moved", RenameHow::Replace),
        rename("/A/foo", "/foo", RenameHow::Replace),
        rename("/foo", "/A/foo", RenameHow::Replace),
        rename("/A/foo", "/A/bar", RenameHow::Exchange),
        rename("/foo", "/B", RenameHow::Exchange),
        rename("/A/foo", "/B/gone", RenameHow::Whiteout),
        rename("/A/foo", "/A/other", RenameHow::NoReplace),
        rename("/A", "/C", RenameHow::Replace),
        rename("/B/empty", "/A/full", RenameHow::Replace),
    ]
}

/// Operations that change content or size.
fn content_scenarios(format: Format) -> Vec<Scenario> {
    let wrote = |file: &str, offset, len| Scenario {
        ops: vec![write(file, offset, len)],
        file: path(file),
    };
    let cut = |file: &str, size| {
        one(file, |path| Op::Truncate {
            file: path.into(),
            size,
        })
    };
    let mut scenarios = vec![
        wrote("/foo", 0, 4096),
        wrote("/foo", 9_000, 9_000),
        wrote("/foo", 3_000, 100),
        wrote("/A/bar", 100, 50),
        wrote("/A/foo", 40_000, 5_000),
        cut("/foo", 0),
        cut("/foo", 1_500),
        cut("/foo", 30_000),
        fallocate("/foo", FallocMode::PunchHole, 1_000, 7_000),
        one("/A/bar", |path| Op::Copy {
            from: target("/foo"),
            span: Span::new(500, 5_000),
            to: path.into(),
            offset: 60,
        }),
    ];
    scenarios.extend(range_scenarios(format));
    let remade = [
        Op::Truncate {
            file: target("/foo"),
            size: 2_500,
        },
        Op::Truncate {
            file: target("/foo"),
            size: 12_000,
        },
        write("/foo", 6_000, 700),
    ];
    scenarios.push(Scenario {
        ops: remade.into(),
        file: path("/foo"),
    });
    scenarios
}

/// Operations on ranges of a file that not every format has.
fn range_scenarios(format: Format) -> Vec<Scenario> {
    use FallocMode::{Allocate, CollapseRange, InsertRange, ZeroRange};
    let mut scenarios = Vec::new();
    if format.extents {
        for (mode, offset, len) in [
            (Allocate { keep_size: false }, 8_192, 20_000),
            (Allocate { keep_size: true }, 10_000, 30_000),
            (ZeroRange { keep_size: false }, 2_000, 20_000),
            (ZeroRange { keep_size: true }, 0, 9_000),
        ] {
            scenarios.push(fallocate("/foo", mode, offset, len));
        }
    }
    if format.shift_ranges {
        let block = u64::from(format.block_size);
        scenarios.push(fallocate("/foo", CollapseRange, 0, block));
        scenarios.push(fallocate("/foo", InsertRange, block, block));
    }
    scenarios
}

/// Operations that change attributes.
fn attribute_scenarios(format: Format) -> Vec<Scenario> {
    let at = |secs, nanos| Timestamp { secs, nanos };
    let xattr = |file: &str, len| Scenario {
        ops: vec![set_xattr(file, "user.new", len)],
        file: path(file),
    };
    let lengths = match format.long_values {
        // The value that `/A/foo` has, too.
        true => [9000, 2500, 2500],
        false => [20, 600, 40],
    };
    vec![
        xattr("/A/foo", lengths[0]),
        xattr("/foo", lengths[1]),
        xattr("/A", lengths[2]),
        one("/A/foo", |path| Op::RemoveXattr {
            file: path.into(),
            name: b"user.kept".to_vec(),
        }),
        one("/A/foo", |path| Op::Chmod {
            file: path.into(),
            perm: 0o4711,
        }),
        one("/A", |path| Op::Chmod {
            file: path.into(),
            perm: 0o1777,
        }),
        one("/A/foo", |path| Op::Chown {
            file: path.into(),
            uid: 70_000,
            gid: 5,
        }),
        one("/A/foo", |path| Op::Utimens {
            file: path.into(),
            atime: at(1_000_000_000, 5),
            mtime: at(4_000_000_000, 999_999_999),
        }),
    ]
}

/// Operations on unnamed files.
fn nameless_scenarios() -> Vec<Scenario> {
    let handle = Target::Handle(1);
    let fill = |handle: &Target| Op::Write {
        file: handle.clone(),
        span: Span::new(100, 5_000),
        fill: 1,
    };
    let made = Op::Tmpfile {
        handle: 1,
        dir: path("/A"),
        perm: 0o600,
    };
    let named = Op::Link {
        from: handle.clone(),
        path: path("/A/tmp"),
    };
    let orphan = [
        Op::Open {
            handle: 1,
            path: path("/A/foo"),
        },
        Op::Unlink {
            path: path("/A/foo"),
        },
        fill(&handle),
    ];
    vec![
        Scenario {
            ops: vec![made, fill(&handle), named],
            file: path("/A/tmp"),
        },
        Scenario {
            ops: orphan.into(),
            file: path("/A/foo"),
        },
    ]
}

fn scenarios(format: Format) -> Vec<Scenario> {
    let mut scenarios = name_scenarios();
    scenarios.extend(content_scenarios(format));
    scenarios.extend(attribute_scenarios(format));
    scenarios.extend(nameless_scenarios());
    scenarios
}

/// The ways to make a scenario durable.
fn syncs(scenario: &Scenario) -> [Op; 5] {
    let file = || Target::Path(scenario.file.clone());
    let dir = scenario.file.parent().unwrap_or_default();
    [
        Op::Fsync { file: file() },
        Op::Fsync {
            file: dir.clone().into(),
        },
        Op::Fdatasync { file: file() },
        Op::Fdatasync { file: dir.into() },
        Op::Sync,
    ]
}

fn program(format: Format, ops: Vec<Op>) -> Program {
    let mut program = Program {
        setup: start(format),
        tasks: vec![ops],
    };
    number_fills(&mut program);
    program
}

/// Every operation once, followed by each way of making it durable, then by an operation that no sync covers.
pub fn singles(format: Format) -> Vec<Program> {
    let mut all = Vec::new();
    for scenario in scenarios(format) {
        for sync in syncs(&scenario) {
            let after = [
                Op::Create {
                    path: path("/B/after"),
                    perm: 0o644,
                },
                write("/A/bar", 0, 3_000),
            ];
            let ops = scenario.ops.iter().cloned().chain([sync]).chain(after);
            all.push(program(format, ops.collect()));
        }
    }
    all.extend(convoys(format));
    all
}

/// Files that are written first and fsynced one by one later: new files, growing files, an overwritten file; in the
/// order of the writes and in reverse order.
fn convoys(format: Format) -> [Program; 2] {
    let new = ["/A/new1", "/A/new2", "/B/new3", "/A/new4"];
    let mut ops = Vec::new();
    for file in new {
        ops.push(Op::Create {
            path: path(file),
            perm: 0o644,
        });
        ops.push(write(file, 0, 5_000));
    }
    ops.push(write("/A/foo", 6_000, 3_000));
    ops.push(write("/foo", 4_096, 4_096));
    ops.push(Op::Sleep { millis: 20 });
    let order: Vec<_> = new.into_iter().chain(["/A/foo", "/foo"]).collect();
    let sync = |file: &&str| Op::Fsync { file: target(file) };
    let forwards = ops.iter().cloned().chain(order.iter().map(sync));
    let backwards = ops.iter().cloned().chain(order.iter().rev().map(sync));
    [
        program(format, forwards.collect()),
        program(format, backwards.collect()),
    ]
}

/// All ordered pairs of the core operations: both made durable by one fsync, each by its own, and both by one sync.
pub fn pairs(format: Format) -> Vec<Program> {
    let scenarios = scenarios(format);
    let mut all = Vec::new();
    for first in &scenarios {
        for second in &scenarios {
            let [_, dir_first, ..] = syncs(first);
            let [file, dir, data, _, whole] = syncs(second);
            let both = || first.ops.iter().chain(&second.ops).cloned();
            let apart = first
                .ops
                .iter()
                .cloned()
                .chain([dir_first])
                .chain(second.ops.clone());
            all.push(program(format, both().chain([file]).collect()));
            all.push(program(format, apart.chain([dir, data]).collect()));
            all.push(program(format, both().chain([whole]).collect()));
        }
    }
    all
}
