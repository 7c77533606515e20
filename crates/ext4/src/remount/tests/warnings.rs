//! The warning about a threshold at which operations wait for log space anyway.

use std::cell::RefCell;
use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Level, Metadata, Subscriber};

use steadfs_rt::sim;

use super::*;

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps warnings.
struct WarningCollector;

#[derive(Default)]
struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl Subscriber for WarningCollector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        WARNINGS.with_borrow_mut(|heard| heard.push(words.0));
    }
}

/// The warnings since the last call.
fn heard() -> Vec<String> {
    WARNINGS.take()
}

fn warning(percent: u8, forced: u8) -> Vec<String> {
    vec![format!(
        "async_checkpoint={percent} does little here: operations wait for log space from {forced}% free on"
    )]
}

#[test]
fn a_threshold_that_is_too_low_is_warned_of_at_mount_and_remount() {
    let image = Image::make(EXT4, "64M");
    sim::run(sim::Config::new(1), move || {
        with_default(WarningCollector, || mounted_and_remounted(&image))
    });
}

fn mounted_and_remounted(image: &Image) {
    let bytes = image.bytes();
    let volume = || Arc::new(MemDevice::from_bytes(&bytes)) as Arc<dyn Device>;
    let fs = open(volume(), "");
    let forced = fs.txns().journal().unwrap().forced_reclaim_percent();
    assert!((2..98).contains(&forced), "{forced}");
    assert_eq!(heard(), [""; 0], "the default helps");
    let none = Vec::new();
    let rows = [
        (1, warning(1, forced)),
        (forced - 1, warning(forced - 1, forced)),
        (forced, warning(forced, forced)),
        (forced + 1, none.clone()),
        (99, none),
    ];
    for (percent, due) in rows {
        let option = format!("async_checkpoint={percent}");
        fs.remount(&cx(), &option).unwrap();
        assert_eq!(heard(), due, "by remount");
        let other = open(volume(), &option);
        assert_eq!(heard(), due, "at mount");
        other.close().unwrap();
        // A read-only volume reclaims nothing: the warning comes when the volume becomes writable.
        let reader = open(volume(), &format!("ro,{option}"));
        assert_eq!(heard(), [""; 0], "{option}");
        reader.remount(&cx(), "rw").unwrap();
        assert_eq!(heard(), due, "with the journal");
        reader.close().unwrap();
    }
    fs.remount(&cx(), "async_checkpoint=1,noasync_checkpoint")
        .unwrap();
    assert_eq!(heard(), [""; 0]);
    fs.close().unwrap();
    assert_eq!(heard(), [""; 0]);
}
