//! Replies that the protocol does not allow: the connection ends, every request fails, and nothing is handed on.

use super::*;

/// A read of 4 KiB at 8 KiB is answered by `reply`, after which the connection stays open.
fn read_fails(
    why: &str,
    structured: bool,
    reply: impl FnOnce(&mut Peer, &Request) -> std::io::Result<()> + Send + 'static,
) {
    let fake = Fake::start(move |peer| {
        peer.negotiate(FLAGS, structured)?;
        let request = peer.request()?;
        reply(peer, &request)?;
        peer.0.read_to_end(&mut Vec::new()).map(drop)
    });
    let queue = fake.queue();
    let error = read(&queue, 8192, 4096).expect_err("an error");
    assert!(error.contains(why), "{error}");
    assert!(flush(&queue).is_err());
}

#[test]
fn wrong_headers() {
    read_fails("magic 0x7070707", true, |peer, _| peer.put(&[&[7; 16]]));
    read_fails("no request", true, |peer, request| {
        peer.simple(request.cookie + 1, 5, &[])
    });
    read_fails("no request", true, |peer, request| {
        peer.chunk(request.cookie ^ 1 << 63, (1, 0), &[])
    });
    read_fails("magic 0x668e33ef", false, |peer, request| {
        peer.chunk(request.cookie, (1, 0), &[])
    });
    read_fails("simple reply to a read", true, |peer, request| {
        peer.simple(request.cookie, 0, &[0; 4096])
    });
}

#[test]
fn data_that_was_not_asked_for() {
    let data = |plus: i64, len: usize, flags: u16| {
        move |peer: &mut Peer, request: &Request| {
            let offset = request.offset.wrapping_add_signed(plus).to_be_bytes();
            peer.chunk(request.cookie, (flags, 1), &[&offset, &vec![1; len]])
        }
    };
    read_fails("not asked for", true, data(-1, 4096, 1));
    read_fails("not asked for", true, data(1, 4096, 1));
    read_fails("not asked for", true, data(0, 4097, 1));
    read_fails("not asked for", true, data(i64::MAX, 1, 1));
    read_fails("bytes missing", true, data(0, 4095, 1));
    read_fails("bytes missing", true, |peer, request| {
        peer.chunk(request.cookie, (1, 0), &[])
    });
    read_fails("comes twice", true, |peer, request| {
        let offset = request.offset.to_be_bytes();
        peer.chunk(request.cookie, (0, 1), &[&offset, &[1; 4096]])?;
        peer.chunk(request.cookie, (1, 2), &[&offset, &1_u32.to_be_bytes()])
    });
    read_fails("not asked for", true, |peer, request| {
        let offset = request.offset.to_be_bytes();
        peer.chunk(request.cookie, (1, 2), &[&offset, &u32::MAX.to_be_bytes()])
    });
}

#[test]
fn wrong_lengths() {
    for (kind, len) in [(0, 1), (1, 8), (1, 0), (2, 11), (5, 12), (7, 0)] {
        read_fails("a chunk of type", true, move |peer, request| {
            peer.chunk(request.cookie, (1, kind), &[&vec![0; len]])
        });
    }
    // The length is not believed: nothing is allocated for it.
    read_fails("a chunk of type", true, |peer, request| {
        peer.put(&[
            &wire::STRUCTURED_REPLY_MAGIC.to_be_bytes(),
            &[0, 1, 0x80, 1],
            &request.cookie.to_be_bytes(),
            &u32::MAX.to_be_bytes(),
        ])
    });
    read_fails("longer than its chunk", true, |peer, request| {
        peer.chunk(
            request.cookie,
            (1, (1 << 15) + 1),
            &[&[0, 0, 0, 5, 0, 9], b"short"],
        )
    });
}

#[test]
fn connections_that_end_within_a_reply() {
    for cut in [1, 15, 20, 27, 100] {
        let fake = Fake::start(move |peer| {
            peer.negotiate(FLAGS, true)?;
            let request = peer.request()?;
            let mut bytes = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
            bytes.extend([0, 1, 0, 1]);
            bytes.extend(request.cookie.to_be_bytes());
            bytes.extend(4104_u32.to_be_bytes());
            bytes.extend(request.offset.to_be_bytes());
            bytes.extend([1; 4096]);
            peer.put(&[&bytes[..cut]])
        });
        let queue = fake.queue();
        let error = read(&queue, 0, 4096).expect_err("an error");
        assert!(error.contains("closed the connection"), "{cut}: {error}");
    }
}

#[test]
fn answers_to_requests_that_were_answered() {
    let fake = Fake::start(|peer| {
        peer.negotiate(FLAGS, true)?;
        let request = peer.request()?;
        peer.simple(request.cookie, 0, &[])?;
        peer.simple(request.cookie, 0, &[])?;
        peer.0.read_to_end(&mut Vec::new()).map(drop)
    });
    let queue = fake.queue();
    flush(&queue).unwrap();
    while flush(&queue).is_ok() {}
}
