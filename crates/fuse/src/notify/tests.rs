use std::io::{Read, Write};
use std::time::Duration;

use steadfs_rt::sim::{self, Config};

use super::*;

/// Bytes of the messages about a page of `node` that was written directly, after `before`.
fn message_bytes(node: u64, before: impl FnOnce(&Notifier) + Send + 'static) -> usize {
    let (mut reader, writer) = std::io::pipe().expect("the host has pipes");
    let notifier = Arc::new(Notifier::new(Arc::new(writer.into())));
    before(&notifier);
    notifier.pages_changed(node, 0..4096);
    // The sender thread exits, which closes the pipe.
    steadfs_rt::sleep(2 * THREAD_IDLE_MAX);
    drop(notifier);
    let mut message = Vec::new();
    reader.read_to_end(&mut message).expect("a pipe is read");
    message.len()
}

const MESSAGE: usize = size_of::<OutHeader>() + size_of::<InvalInodeOut>();

#[test]
fn pages_are_invalidated_only_where_the_kernel_may_have_some() {
    sim::run(Config::new(1), || {
        let pass = |seconds| steadfs_rt::sleep(Duration::from_secs(seconds));
        assert_eq!(message_bytes(7, |_| {}), 0);
        assert_eq!(message_bytes(7, |n| n.bypasses_cache(7)), 0);
        assert_eq!(message_bytes(7, |n| n.is_cached(8)), 0);
        let read = move |n: &Notifier| {
            n.is_cached(7);
            pass(10_000);
        };
        assert_eq!(message_bytes(7, read), MESSAGE);
        for (seconds, message) in [(0, MESSAGE), (59, MESSAGE), (62, 0)] {
            let written = move |n: &Notifier| {
                n.is_written(7);
                pass(seconds);
                n.bypasses_cache(7);
            };
            assert_eq!(message_bytes(7, written), message, "{seconds}");
        }
        let mixed = move |n: &Notifier| {
            n.bypasses_cache(7);
            n.is_written(7);
            pass(10_000);
        };
        assert_eq!(message_bytes(7, mixed), MESSAGE);
    });
}

/// A pipe without space takes the place of a kernel that waits for a read.
#[test]
fn a_message_that_the_kernel_has_not_taken_is_waited_for() {
    const PIPE_BYTES: usize = 64 << 10;
    let (mut reader, mut writer) = std::io::pipe().expect("the host has pipes");
    writer.write_all(&[0; PIPE_BYTES]).expect("all of a pipe");
    let notifier = Arc::new(Notifier::new(Arc::new(writer.into())));
    assert!(notifier.settle(Duration::ZERO), "there is none");
    notifier.is_cached(7);
    notifier.pages_changed(7, 0..4096);
    assert!(!notifier.settle(Duration::from_millis(30)));
    let mut first = [0; PIPE_BYTES];
    reader.read_exact(&mut first).expect("a pipe is read");
    assert!(notifier.settle(Duration::from_secs(60)));
    let mut message = [0; MESSAGE];
    reader.read_exact(&mut message).expect("a pipe is read");
}
