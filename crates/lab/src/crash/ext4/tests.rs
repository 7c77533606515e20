use steadfs_rt::sim;
use steadfs_vfs::Cx;

use super::*;
use crate::device::{Fault, Model, RequestFilter, Survivors};

/// A power cut while a file without a name is open: its inode is in the list of orphans.
fn with_an_orphan(subject: &Subject) -> Image {
    let subject = subject.clone();
    let run = move || {
        let (device, fs) = subject.open_on(&subject.image, Model::default(), None);
        let (fs, cx) = (fs.unwrap(), Cx::default());
        let file = fs.mknod(&cx, fs.root(), b"file", 0o100_644, 0);
        fs.write(&cx, file.unwrap().ino, 0, &[7; 5000], false)
            .unwrap();
        fs.sync_all(&cx).unwrap();
        fs.unlink(&cx, fs.root(), b"file").unwrap();
        fs.sync_all(&cx).unwrap();
        let log = device.log();
        let crashed = log.image(log.len(), &Survivors::None);
        fs.unmount().unwrap();
        crashed
    };
    sim::run(sim::Config::new(1), run).value
}

/// What a mount and an unmount leave; the device fails one request, perhaps.
fn recovered(subject: &Subject, image: &Image, failing: Option<u64>) -> Image {
    let (subject, image) = (subject.clone(), image.clone());
    let run = move || {
        let fault = failing.map(|nth| (RequestFilter::Nth(nth), Fault::Fail));
        let (device, opened) = subject.open_on(&image, Model::default(), fault);
        if let Ok(fs) = opened {
            let unmounted = fs.unmount();
            assert!(failing.is_some() || unmounted.is_ok());
        }
        device.content()
    };
    sim::run(sim::Config::new(1), run).value
}

/// After a recovery that stopped the volume the next one leaves the orphans as they are, as Linux does.
#[test]
fn e2fsck_does_not_judge_a_volume_that_is_marked_as_having_errors() {
    let dir = tempfile::tempdir().unwrap();
    let all = subjects(dir.path()).unwrap();
    let subject = all.iter().find(|subject| subject.name == "ext4-64k");
    let subject = subject.unwrap();
    let crashed = with_an_orphan(subject);
    let check = subject.check.as_ref().unwrap();
    let mut marked = 0;
    for failing in 0..60 {
        let left = recovered(subject, &crashed, Some(failing));
        let after = recovered(subject, &left, None);
        assert_eq!(check(&after), "", "{failing}");
        let said = Tool::E2fsck.check(&after, dir.path()).unwrap();
        if Tool::E2fsck.judges(&after) {
            assert_eq!(said, "", "{failing}");
        } else if !said.is_empty() {
            assert!(said.contains("has zero dtime"), "{failing}: {said}");
            marked += 1;
        }
    }
    assert!(marked > 0);
}
