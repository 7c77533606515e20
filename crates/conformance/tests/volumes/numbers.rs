//! The block count in a file's attributes, and the largest size of a file.

use steadfs_base::InodeNo;
use steadfs_conformance::{Kind, Setup, World};
use steadfs_vfs::{FallocMode, FsError};

on_every!(delayed_blocks_are_counted, no_file_exceeds_the_largest_size,);

struct Case {
    world: World,
    file: InodeNo,
}

impl Case {
    fn new(kind: &'static Kind, mount: &str) -> Self {
        let setup = Setup {
            mount,
            ..Setup::default()
        };
        let world = World::with(kind, &setup);
        let file = world.file(world.root, b"file").unwrap().ino;
        Self { world, file }
    }

    fn write(&self, block: u64, blocks: u64) {
        let size = self.world.kind.block;
        let data = vec![1; (blocks * size) as usize];
        let written = self.world.write(self.file, block * size, &data);
        assert_eq!(written, Ok(data.len()));
    }

    /// `st_blocks`, in blocks of the volume.
    fn blocks(&self) -> u64 {
        self.world.attr(self.file).blocks * 512 / self.world.kind.block
    }

    /// The file has this many blocks, before and after write-back.
    #[track_caller]
    fn counts(&self, blocks: u64) {
        assert_eq!(self.blocks(), blocks, "delayed");
        self.world.fsync(self.file).unwrap();
        assert_eq!(self.blocks(), blocks, "written");
    }
}

fn delayed_blocks_are_counted(kind: &'static Kind) {
    let mounts = match kind.is_ext() {
        true => &[""][..],
        false => &["", "checkpoint=disable"],
    };
    for mount in mounts {
        let case = Case::new(kind, mount);
        case.write(0, 2);
        case.counts(2);
        // Over existing blocks, beyond the end, and after a hole.
        case.write(1, 3);
        case.counts(4);
        case.write(8, 1);
        assert_eq!(case.blocks(), 5);
        case.write(6, 3);
        case.counts(7);
        case.write(0, 9);
        case.counts(9);
        if kind.has_fallocate() {
            // Blocks that are allocated without being written count at once.
            let (mode, block) = (FallocMode::Allocate { keep_size: false }, kind.block);
            let (fs, cx) = (&case.world.fs, &case.world.cx);
            fs.fallocate(cx, case.file, mode, 9 * block, 3 * block)
                .unwrap();
            assert_eq!(case.blocks(), 12);
            case.write(10, 3);
            assert_eq!(case.blocks(), 13);
            case.world.fsync(case.file).unwrap();
            // A fifth extent needs a block for the map.
            let maps = u64::from(kind.is_ext());
            assert!((13..=13 + maps).contains(&case.blocks()));
        }
        case.world.close();
    }
}

/// As in Linux, preallocation ends at the same offset for every file of a volume and every mode.
fn no_file_exceeds_the_largest_size(kind: &'static Kind) {
    let Case { world, file } = Case::new(kind, "");
    let (fs, cx) = (&world.fs, &world.cx);
    let memory = &world.device.faults.memory;
    let (most, end) = (kind.largest_file(memory), kind.fallocate_end(memory));
    assert_eq!(world.write(file, most - 5000, &[7; 10_000]), Ok(5000));
    assert_eq!(world.attr(file).size, most);
    let too_big = Err(FsError::FileTooBig);
    assert_eq!(world.write(file, most, b"x"), too_big);
    assert_eq!(world.write(file, u64::MAX, b"xy"), too_big);
    assert_eq!(world.write(file, most, b""), Ok(0));
    assert_eq!(world.write(file, most - 1, &[7]), Ok(1));
    let beyond = [
        (0, end + 1),
        (end - 4096, 4097),
        (end, 1),
        (end - 1, 2),
        (1, u64::MAX),
        (0, u64::MAX),
        (u64::MAX, u64::MAX),
    ];
    for keep_size in [false, true] {
        for mode in [
            FallocMode::Allocate { keep_size },
            FallocMode::ZeroRange { keep_size },
            FallocMode::PunchHole,
        ] {
            for (offset, len) in beyond {
                let refused = fs.fallocate(cx, file, mode, offset, len);
                let range = format!("{mode:?} {offset} {len}");
                assert_eq!(refused, Err(FsError::FileTooBig), "{range}");
            }
        }
    }
    let hole = fs.fallocate(cx, file, FallocMode::PunchHole, end - 1, 1);
    assert_eq!(hole, Ok(()));
    assert_eq!(world.write(file, most - 1, &[7]), Ok(1));
    for (from, to, len) in [
        (0, most, 5000),
        (0, u64::MAX, 9),
        (most, most, 1),
        (most, u64::MAX, 9),
    ] {
        let copied = fs.copy_range(cx, (file, from), (file, to), len);
        assert_eq!(copied, Err(FsError::FileTooBig), "{from} {to}");
    }
    let grown = world.resize(file, most + 1);
    assert_eq!(grown.err(), Some(FsError::FileTooBig));
    let world = world.reopen();
    let last = world.read(file, most - 6000, 10_000);
    assert_eq!(last.len(), 6000);
    assert!(last[..1000].iter().all(|byte| *byte == 0));
    assert!(last[1000..].iter().all(|byte| *byte == 7));
    assert_eq!(world.resize(file, most).unwrap().size, most);
    world.close();
}
