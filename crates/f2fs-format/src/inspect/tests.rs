//! Compared with dump.f2fs.

use std::fs;
use std::sync::Arc;

use steadfs_block::MemDevice;

use super::*;
use crate::test_support::{ALL_FEATURES, Image, Opened};

#[test]
fn inspections() {
    let image = Image::make(&["-l", "inspected", "-i", "-O", ALL_FEATURES], 64);
    let bytes = fs::read(image.path()).unwrap();
    let opened = Opened::of(bytes.clone());
    let device = MemDevice::new(bytes.len() as u64);
    device.write(0, &bytes);
    let queue = steadfs_block::Queue::new(Arc::new(device), Default::default());
    let seen = inspect(&queue).unwrap();
    assert_eq!(seen.label, "inspected");
    let CheckpointState::Valid(numbers) = &seen.checkpoint else {
        panic!("{seen}");
    };
    assert_eq!(numbers.checkpoint_ver, opened.checkpoint.version);
    let text = seen.to_string();
    // Every flag and number that dump.f2fs prints.
    let dump = image.dump(&["-d", "1"]);
    let state = dump
        .lines()
        .find(|l| l.contains("checkpoint state"))
        .unwrap();
    for flag in state.rsplit(" : ").next().unwrap().split_whitespace() {
        assert!(numbers.flags.contains(&flag), "{flag}: {text}");
    }
    let field = |name: &str| {
        let line = dump.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(": ")
            .next()
            .unwrap()
            .trim_end_matches(']')
            .to_owned()
    };
    assert_eq!(
        field("user_block_count"),
        numbers.user_block_count.to_string()
    );
    assert_eq!(
        field("free_segment_count"),
        numbers.free_segment_count.to_string()
    );
    assert_eq!(
        field("cur_data_segno[1]"),
        numbers.cursegs[1].segment.to_string()
    );
    assert!(text.contains("Curseg of warm data:"));
}
