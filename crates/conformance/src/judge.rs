//! The judges of a volume: our checkers, e2fsck and fsck.f2fs.

use steadfs_block::MemDevice;
use steadfs_ext4_format::disk::test_images::judge as tool;

use crate::Kind;

/// Asserts that neither our checker nor the one of the format's own tools finds anything on an unmounted volume.
pub fn judge(kind: &Kind, device: &MemDevice) {
    let file = tempfile::NamedTempFile::new().unwrap();
    device.save(file.path()).unwrap();
    let (program, flags): (_, &[&str]) = if kind.is_ext() {
        let options = steadfs_ext4_format::check::Options::default();
        let report = steadfs_ext4_format::check::check(device, &options);
        assert!(report.is_clean(), "{kind}: {:?}", report.issues);
        ("e2fsck", &["-fn"])
    } else {
        let options = steadfs_f2fs_format::check::Options::default();
        let report = steadfs_f2fs_format::check::check(device, &options);
        assert!(report.is_clean(), "{kind}: {:?}", report.issues);
        ("fsck.f2fs", &["-f", "--dry-run"])
    };
    let out = tool(program).args(flags).arg(file.path()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let marks = ["[FAIL]", "ASSERT", "[FIX]"];
    let found = !kind.is_ext() && marks.iter().any(|mark| text.contains(mark));
    assert!(out.status.success() && !found, "{kind}: {program}: {text}");
}
