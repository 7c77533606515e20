//! Half-done changes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use steadfs_vfs::FileSystem;

use super::*;
use crate::disk::superblock::{STATE_ERROR, SUPERBLOCK_OFFSET, Superblock};
use crate::test_world::{ROOT, World};

const KINDS: [&str; 2] = ["ext4", "ext2"];

fn eio() -> FsError {
    FsError::Io("a read".to_owned())
}

/// Changes a block.
fn change(world: &World, handle: &mut Handle<'_>) -> Result<()> {
    let (block, _) = world.fs.geo().superblock_place();
    let buf = world.fs.block(block, IoTag::default())?;
    drop(handle.write(&buf)?);
    Ok(())
}

fn errors(world: &World) -> String {
    let errors = world.fs.control().unwrap().read("errors").unwrap();
    String::from_utf8(errors).unwrap()
}

/// The volume stopped with this cause, and the next mount finds the error flag.
fn assert_stopped(world: World, cause: &str) {
    assert!(errors(&world).contains(cause), "{}", errors(&world));
    assert_eq!(world.file(ROOT, b"more").unwrap_err().errno(), 30);
    assert!(world.fs.close().is_err());
    let device = world.cut_power_now();
    let world = world.recover(device);
    assert_ne!(world.fs.sb.lock().state() & STATE_ERROR, 0);
    world.fs.close().unwrap();
    let mut raw = vec![0; 1024];
    world.device().read(SUPERBLOCK_OFFSET, &mut raw);
    let sb = Superblock::parse(&raw).unwrap();
    assert_ne!(sb.state() & STATE_ERROR, 0, "e2fsck must check it");
}

#[test]
fn an_operation_that_fails_after_a_change_stops_the_volume() {
    for kind in KINDS {
        let world = World::make(&["-t", kind], "16M");
        let done = world.fs.txns().run(4, IoTag::default(), |handle| {
            change(&world, handle)?;
            Err::<(), _>(eio())
        });
        assert_eq!(done, Err(eio()));
        assert_stopped(world, "a change is half done: I/O error: a read");
    }
}

#[test]
fn a_panic_after_a_change_stops_the_volume() {
    for kind in KINDS {
        let world = World::make(&["-t", kind], "16M");
        let ended = catch_unwind(AssertUnwindSafe(|| {
            world.fs.txns().run(4, IoTag::default(), |handle| {
                change(&world, handle)?;
                panic!("a test's");
                #[expect(unreachable_code, reason = "it names the type")]
                Ok::<(), FsError>(())
            })
        }));
        assert!(ended.is_err());
        assert_stopped(world, UNFINISHED);
    }
}

#[test]
fn a_half_done_step_stops_the_volume_even_if_the_caller_handles_the_error() {
    for kind in KINDS {
        let world = World::make(&["-t", kind], "16M");
        let done = world.fs.txns().run(4, IoTag::default(), |handle| {
            let step = handle.step(|handle| {
                change(&world, handle)?;
                Err::<(), _>(eio())
            });
            assert_eq!(step, Err(eio()));
            handle.consistent();
            assert!(handle.restart(4).unwrap_err().is_stop());
            Ok::<_, FsError>(())
        });
        done.unwrap();
        assert_stopped(world, "a change is half done: I/O error: a read");
    }
}

#[test]
fn errors_without_a_change_and_changes_that_were_undone_stop_nothing() {
    for kind in KINDS {
        let world = World::make(&["-t", kind], "16M");
        let run = |what: &dyn Fn(&mut Handle<'_>) -> Result<()>| {
            let done = world.fs.txns().run(4, IoTag::default(), what);
            assert_eq!(done, Err(eio()));
        };
        run(&|_| Err(eio()));
        run(&|handle| handle.step(|_| Err(eio())));
        run(&|handle| {
            let before = handle.savepoint();
            change(&world, handle)?;
            handle.consistent_since(before);
            Err(eio())
        });
        run(&|handle| {
            handle.step(|handle| change(&world, handle))?;
            handle.consistent();
            handle.step(|_| Err(eio()))
        });
        assert_eq!(errors(&world), "none\n");
        world.file(ROOT, b"more").unwrap();
        world.close();
    }
}
