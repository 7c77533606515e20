//! Requests and their answers.

use super::*;

/// The requests of a server with these flags while `work` runs on its device.
fn requests(flags: u16, work: impl FnOnce(&Queue)) -> Vec<(u16, u16, u64, u32)> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let fake = Fake::start(move |peer| {
        peer.negotiate(flags, false)?;
        let served = peer.rest()?;
        sender.send(served).map_err(std::io::Error::other)
    });
    work(&fake.queue());
    let served = receiver.recv().unwrap().into_iter();
    served.map(|r| (r.kind, r.flags, r.offset, r.len)).collect()
}

#[test]
fn operations_are_requests_of_the_protocol() {
    let all = FLAGS | wire::SEND_TRIM | wire::SEND_WRITE_ZEROES;
    let made = requests(all, |queue| {
        write(queue, Bio::write(512, vec![Buf::zeroed(512); 2])).unwrap();
        write(
            queue,
            Bio::write(0, vec![Buf::zeroed(512)]).preflush_and_fua(),
        )
        .unwrap();
        flush(queue).unwrap();
        write(queue, Bio::discard(4096, 8192)).unwrap();
        write(queue, Bio::write_zeroes(4096, 8192)).unwrap();
        let wrong = write(queue, Bio::write(SIZE, vec![Buf::zeroed(512)]));
        assert!(wrong.unwrap_err().contains("past the end"));
    });
    assert_eq!(
        made,
        [
            (1, 0, 512, 1024),
            (3, 0, 0, 0),
            (1, 1, 0, 512),
            (3, 0, 0, 0),
            (4, 0, 4096, 8192),
            (6, 0, 4096, 8192)
        ]
    );
}

#[test]
fn what_a_server_cannot_do_is_done_in_another_way() {
    let flush_only = wire::HAS_FLAGS | wire::SEND_FLUSH;
    let made = requests(flush_only, |queue| {
        write(
            queue,
            Bio::write(0, vec![Buf::zeroed(512)]).preflush_and_fua(),
        )
        .unwrap();
        write(queue, Bio::discard(0, 512)).unwrap();
        write(queue, Bio::write_zeroes(0, SIZE)).unwrap();
        assert!(!queue.geometry().fua && queue.geometry().discard_granularity.is_none());
    });
    let size = SIZE as u32;
    assert_eq!(
        made,
        [(3, 0, 0, 0), (1, 0, 0, 512), (3, 0, 0, 0), (1, 0, 0, size)]
    );
    let made = requests(wire::HAS_FLAGS, |queue| {
        write(
            queue,
            Bio::write(0, vec![Buf::zeroed(512)]).preflush_and_fua(),
        )
        .unwrap();
        flush(queue).unwrap();
    });
    assert_eq!(made, [(1, 0, 0, 512)]);
}

/// A read of pieces that are answered in any order, with holes.
#[test]
fn replies_come_in_any_order() {
    let fake = Fake::start(|peer| {
        peer.negotiate(FLAGS, true)?;
        let (first, second) = (peer.request()?, peer.request()?);
        for request in [&second, &first] {
            let at = |plus: u64| (request.offset + plus).to_be_bytes();
            let data = [request.offset as u8 + 1; 1024];
            peer.chunk(request.cookie, (0, 1), &[&at(3072), &data])?;
            peer.chunk(
                request.cookie,
                (0, 2),
                &[&at(1024), &2048_u32.to_be_bytes()],
            )?;
        }
        for request in [first, second] {
            let data = [request.offset as u8 + 2; 1024];
            let at = request.offset.to_be_bytes();
            peer.chunk(request.cookie, (1, 1), &[&at, &data])?;
        }
        peer.rest().map(drop)
    });
    let device = fake.open().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    for offset in [0, 4096] {
        let sender = sender.clone();
        let done = move |bio: Bio, result: Result<(), _>| sender.send((bio, result)).unwrap();
        let mut bio = Bio::read(offset, 4096);
        // Pieces of memory that no chunk fits.
        bio.bufs = [512, 1536, 2048].map(Buf::zeroed).to_vec();
        device.start(bio, Box::new(done));
    }
    for _ in 0..2 {
        let (bio, result) = receiver.recv().unwrap();
        result.unwrap();
        let bytes: Vec<u8> = bio.bufs.iter().flat_map(|buf| buf.to_vec()).collect();
        let tag = bio.offset as u8;
        let wanted = [vec![tag + 2; 1024], vec![0; 2048], vec![tag + 1; 1024]];
        assert!(bytes == wanted.concat());
    }
}

#[test]
fn errors_of_the_server_fail_one_request() {
    let fake = Fake::start(|peer| {
        peer.negotiate(FLAGS, true)?;
        let first = peer.request()?;
        let text = [&5_u32.to_be_bytes()[..], &3_u16.to_be_bytes(), b"a\x07b"];
        peer.chunk(first.cookie, (1, (1 << 15) + 1), &text)?;
        let second = peer.request()?;
        peer.simple(second.cookie, 28, &[])?;
        peer.rest().map(drop)
    });
    let queue = fake.queue();
    let error = read(&queue, 0, 4096).expect_err("an error");
    assert!(error.contains("an I/O error (EIO): a?b"), "{error}");
    let error = write(&queue, Bio::write(0, vec![Buf::zeroed(512)])).unwrap_err();
    assert!(error.contains("ENOSPC"), "{error}");
    write(&queue, Bio::write(0, vec![Buf::zeroed(512)])).unwrap();
    flush(&queue).unwrap();
}

#[test]
fn a_failed_flush_fails_all_later_ones() {
    let fake = Fake::start(|peer| {
        peer.negotiate(FLAGS, true)?;
        let first = peer.request()?;
        peer.simple(first.cookie, 5, &[])?;
        let written = peer.rest()?;
        assert_eq!(written.len(), 1, "{written:?}");
        Ok(())
    });
    let queue = fake.queue();
    assert!(flush(&queue).is_err());
    let error = flush(&queue).unwrap_err();
    assert!(error.contains("an earlier FLUSH failed"), "{error}");
    let durable = Bio::write(0, vec![Buf::zeroed(512)]).preflush_and_fua();
    assert!(write(&queue, durable).is_err());
    write(&queue, Bio::write(0, vec![Buf::zeroed(512)])).unwrap();
}

#[test]
fn a_failed_write_with_fua_fails_all_later_flushes() {
    let fake = Fake::start(|peer| {
        peer.negotiate(FLAGS, true)?;
        let first = peer.request()?;
        peer.simple(first.cookie, 5, &[])?;
        assert!(peer.rest()?.is_empty());
        Ok(())
    });
    let queue = fake.queue();
    let durable = Bio::write(0, vec![Buf::zeroed(512)]).with_fua();
    assert!(write(&queue, durable).is_err());
    let error = flush(&queue).unwrap_err();
    assert!(error.contains("an earlier FLUSH failed"), "{error}");
}

#[test]
fn a_lost_connection_fails_what_is_in_flight_and_all_that_follows() {
    let fake = Fake::start(|peer| {
        peer.negotiate(FLAGS, true)?;
        let first = peer.request()?;
        peer.simple(first.cookie, 0, &[])?;
        peer.request()?;
        peer.request().map(drop)
    });
    let queue = fake.queue();
    write(&queue, Bio::write(0, vec![Buf::zeroed(512)])).unwrap();
    let read_ahead = queue.submit(Bio::read(0, 4096), IoTag::default());
    let error = write(&queue, Bio::write(0, vec![Buf::zeroed(512)])).unwrap_err();
    assert!(error.contains("connection is lost"), "{error}");
    assert!(read_ahead.wait().is_err());
    for _ in 0..2 {
        let error = flush(&queue).unwrap_err();
        assert!(error.contains("closed the connection"), "{error}");
    }
    assert!(read(&queue, 0, 512).is_err());
}

/// Requests larger than the server takes are cut, and a server that reads slowly does not block the task that starts them.
#[test]
fn large_requests_are_cut_and_queued() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let fake = Fake::start(move |peer| {
        peer.greet()?;
        peer.option()?;
        peer.answer(wire::OPT_STRUCTURED_REPLY, wire::REP_ERR_UNSUP, &[])?;
        peer.option()?;
        peer.export_info(SIZE, FLAGS)?;
        let sizes = [512_u32, 4096, 65536].map(u32::to_be_bytes).concat();
        let info = [&wire::INFO_BLOCK_SIZE.to_be_bytes()[..], &sizes];
        peer.answer(wire::OPT_GO, wire::REP_INFO, &info.concat())?;
        peer.answer(wire::OPT_GO, wire::REP_ACK, &[])?;
        // All is started before the first byte is read.
        receiver.recv().map_err(std::io::Error::other)?;
        let mut disk = vec![0; SIZE as usize];
        for _ in 0..2 * SIZE / 65536 {
            let request = peer.request()?;
            assert_eq!(request.len, 65536);
            let range = request.offset as usize..request.offset as usize + 65536;
            match request.kind {
                0 => peer.simple(request.cookie, 0, &disk[range])?,
                _ => {
                    disk[range].copy_from_slice(&request.data);
                    peer.simple(request.cookie, 0, &[])?;
                }
            }
        }
        peer.rest().map(drop)
    });
    let device = fake.open().unwrap();
    let bytes: Vec<u8> = (0..SIZE).map(|n| (n / 512) as u8).collect();
    let bufs = bytes.chunks(SIZE as usize / 8).map(Buf::copy_of).collect();
    let (done, ended) = std::sync::mpsc::channel();
    let again = done.clone();
    device.start(
        Bio::write(0, bufs),
        Box::new(move |_, result| done.send((None, result)).unwrap()),
    );
    sender.send(()).unwrap();
    ended.recv().unwrap().1.unwrap();
    device.start(
        Bio::read(0, SIZE as usize),
        Box::new(move |bio, result| again.send((Some(bio), result)).unwrap()),
    );
    let (bio, result) = ended.recv().unwrap();
    result.unwrap();
    assert!(bio.unwrap().bufs[0][..] == bytes[..]);
}

#[test]
fn connections_are_several_only_where_the_server_allows_it() {
    let serve = || -> Serve {
        Box::new(|peer| {
            peer.negotiate(FLAGS | wire::CAN_MULTI_CONN, true)?;
            Ok(())
        })
    };
    let fake = Fake::start_many((0..4).map(|_| serve()).collect());
    let device = fake.open().unwrap();
    assert!(
        device.describe().contains("4 connections"),
        "{}",
        device.describe()
    );
    let reading = NbdOptions {
        read_only: true,
        ..NbdOptions::default()
    };
    let fake = Fake::start_many(vec![serve()]);
    let device = NbdDevice::open_idle(&fake.uri, &reading).unwrap();
    assert!(device.describe().contains("one connection"));
}
