use super::*;

fn traced(kind: Kind, what: FsyncTarget) -> String {
    let device = Parameters::built_in("ufs-2021").unwrap();
    let first = fsync(kind, what, &device, 1).unwrap();
    assert_eq!(
        first,
        fsync(kind, what, &device, 1).unwrap(),
        "the same twice"
    );
    first
}

/// The lines that contain these words, in this order.
fn in_order(text: &str, steps: &[&str]) {
    let mut rest = text;
    for step in steps {
        let at = rest.find(step);
        let at = at.unwrap_or_else(|| panic!("no '{step}' (in this order) in\n{text}"));
        rest = &rest[at + step.len()..];
    }
}

/// Data first, then the log, then the commit record, which flushes everything before it.
#[test]
fn ext4_writes_data_then_the_log_then_its_record() {
    let text = traced(Kind::Ext4, FsyncTarget::Append);
    in_order(
        &text,
        &[
            "fsync(inode",
            "ext4    locks",
            "the file's data",
            "log: descriptor",
            "log: COMMIT RECORD, preflush, FUA",
            "returns",
        ],
    );
    let columns: Vec<usize> = text
        .lines()
        .filter(|line| line.contains(" caller  "))
        .filter_map(|line| line.find("caller"))
        .collect();
    assert!(columns.len() > 10 && columns.windows(2).all(|pair| pair[0] == pair[1]));
}

/// Only the file's times change, but they go through the log as well.
#[test]
fn an_overwrite_of_ext4_logs_one_block() {
    let text = traced(Kind::Ext4, FsyncTarget::Overwrite);
    in_order(
        &text,
        &[
            "the file's data",
            "log: descriptor, log: a metadata block\n",
            "log: COMMIT RECORD",
            "returns",
        ],
    );
}

#[test]
fn f2fs_marks_a_node() {
    let text = traced(Kind::F2fs, FsyncTarget::Append);
    in_order(
        &text,
        &[
            "fsync(inode",
            "the file's data",
            "with an fsync mark",
            "returns",
        ],
    );
    assert!(
        text.contains("FLUSH") || text.contains("preflush"),
        "{text}"
    );
    assert!(!text.contains("checkpoint pack"), "{text}");
}

#[test]
fn a_directory_of_f2fs_takes_a_checkpoint() {
    let text = traced(Kind::F2fs, FsyncTarget::Directory);
    in_order(
        &text,
        &[
            "fsync(inode",
            ": node",
            "checkpoint pack, preflush, FUA",
            "returns",
        ],
    );
    // The caller takes the checkpoint itself: no other task waits for it.
    assert!(!text.contains("f2fs_ckpt"), "{text}");
}
