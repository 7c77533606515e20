use std::io::Read;
use std::time::Duration;

use steadfs_rt::sim::{self, Config};

use super::*;

/// What the kernel is told of a page of `node` that was written around its cache, after `before`.
fn told(node: u64, before: impl FnOnce(&Notifier) + Send + 'static) -> usize {
    let (mut reader, writer) = std::io::pipe().expect("the host has pipes");
    let notifier = Arc::new(Notifier::new(Arc::new(writer.into())));
    before(&notifier);
    notifier.pages_changed(node, 0..4096);
    // Its thread ends, and with it the pipe.
    steadfs_rt::sleep(2 * IDLE);
    drop(notifier);
    let mut message = Vec::new();
    reader.read_to_end(&mut message).expect("a pipe is read");
    message.len()
}

const MESSAGE: usize = size_of::<OutHeader>() + size_of::<InvalInodeOut>();

#[test]
fn the_kernel_is_told_where_it_may_have_pages() {
    sim::run(Config::new(1), || {
        let pass = |seconds| steadfs_rt::sleep(Duration::from_secs(seconds));
        assert_eq!(told(7, |_| {}), 0);
        assert_eq!(told(7, |n| n.goes_around(7)), 0);
        assert_eq!(told(7, |n| n.is_cached(8)), 0);
        let read = move |n: &Notifier| {
            n.is_cached(7);
            pass(10_000);
        };
        assert_eq!(told(7, read), MESSAGE);
        for (seconds, message) in [(0, MESSAGE), (59, MESSAGE), (62, 0)] {
            let written = move |n: &Notifier| {
                n.is_written(7);
                pass(seconds);
                n.goes_around(7);
            };
            assert_eq!(told(7, written), message, "{seconds}");
        }
        let mixed = move |n: &Notifier| {
            n.goes_around(7);
            n.is_written(7);
            pass(10_000);
        };
        assert_eq!(told(7, mixed), MESSAGE);
    });
}
