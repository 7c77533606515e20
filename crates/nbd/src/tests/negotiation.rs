//! Servers that cannot or will not negotiate.

use super::*;

fn fails_with(why: &str, serve: impl FnOnce(&mut Peer) -> std::io::Result<()> + Send + 'static) {
    let fake = Fake::start(serve);
    let error = fake.open().expect_err("an error").to_string();
    assert!(error.contains(why), "{error}");
}

#[test]
fn what_is_no_server_is_refused() {
    fails_with("no NBD server", |peer| {
        peer.put(&[b"HTTP/1.1 400 Bad Request\r\n"])
    });
    fails_with("no NBD server", |peer| {
        peer.put(&[&wire::MAGIC.to_be_bytes(), &[7; 8]])
    });
    fails_with("oldstyle", |peer| {
        peer.put(&[
            &wire::MAGIC.to_be_bytes(),
            &wire::OLDSTYLE_MAGIC.to_be_bytes(),
        ])
    });
    fails_with("fixed newstyle", |peer| {
        let greeting = [wire::MAGIC, wire::OPTION_MAGIC].map(u64::to_be_bytes);
        peer.put(&[&greeting.concat(), &[0, 0]])
    });
    let dir = tempfile::tempdir().unwrap();
    let none = format!("nbd+unix:///?socket={}/none", dir.path().display());
    let error = NbdDevice::open_idle(none.as_ref(), &NbdOptions::default());
    let error = error.expect_err("an error").to_string();
    assert!(
        error.contains("cannot connect") && error.contains("none"),
        "{error}"
    );
}

#[test]
fn a_server_that_ends_or_says_nothing_does_not_hang_the_client() {
    fails_with("connection", |peer| peer.put(&[b"NBDMAG"]));
    fails_with("connection", Peer::greet);
    fails_with("connection", |peer| {
        peer.greet()?;
        peer.option()?;
        peer.put(&[&wire::OPTION_REPLY_MAGIC.to_be_bytes(), &[0; 3]])
    });
    // It holds the connection open, and sends nothing.
    let fake = Fake::start(|peer| {
        peer.greet()?;
        peer.0.read_to_end(&mut Vec::new()).map(drop)
    });
    let limit = Duration::from_millis(100);
    let opened = NbdDevice::open_within(&fake.uri, &NbdOptions::default(), limit);
    assert!(matches!(opened.err(), Some(NbdError::Late(_))));
}

#[test]
fn replies_to_options_are_bounded() {
    fails_with("reply of 16385 bytes", |peer| {
        peer.greet()?;
        peer.option()?;
        peer.answer(wire::OPT_STRUCTURED_REPLY, wire::REP_ACK, &[0; 16385])
    });
    fails_with("more than 10000 replies", |peer| {
        peer.greet()?;
        peer.option()?;
        peer.answer(wire::OPT_STRUCTURED_REPLY, wire::REP_ACK, &[])?;
        peer.option()?;
        (0..10_000).try_for_each(|_| peer.answer(wire::OPT_GO, wire::REP_INFO, &[0, 9]))
    });
    fails_with("reply to no option", |peer| {
        peer.greet()?;
        peer.option()?;
        peer.answer(wire::OPT_GO, wire::REP_ACK, &[])
    });
    fails_with("no size", |peer| {
        peer.greet()?;
        peer.option()?;
        peer.answer(wire::OPT_STRUCTURED_REPLY, wire::REP_ACK, &[])?;
        peer.option()?;
        peer.answer(wire::OPT_GO, wire::REP_ACK, &[])
    });
    fails_with("wrong length", |peer| {
        peer.greet()?;
        peer.option()?;
        peer.answer(wire::OPT_STRUCTURED_REPLY, wire::REP_ACK, &[])?;
        peer.option()?;
        peer.answer(wire::OPT_GO, wire::REP_INFO, &[0, 0, 1])
    });
}

#[test]
fn a_missing_export_is_reported_with_those_that_exist() {
    let fake = Fake::start(|peer| {
        peer.greet()?;
        peer.option()?;
        peer.answer(wire::OPT_STRUCTURED_REPLY, wire::REP_ACK, &[])?;
        peer.option()?;
        peer.answer(wire::OPT_GO, wire::REP_ERR_UNKNOWN, b"not\x1b[2J here")?;
        assert_eq!(peer.option()?.0, wire::OPT_LIST);
        for name in [&b"root"[..], b"a\nb"] {
            let len = (name.len() as u32).to_be_bytes();
            peer.answer(wire::OPT_LIST, wire::REP_SERVER, &[&len, name].concat())?;
        }
        peer.answer(wire::OPT_LIST, wire::REP_ACK, &[])?;
        assert_eq!(peer.option()?.0, wire::OPT_ABORT);
        Ok(())
    });
    let error = fake.open().expect_err("an error").to_string();
    let wanted = r#"the NBD server has no export "disk": not?[2J here; it has "root", "a?b""#;
    assert_eq!(error, wanted);
    fails_with("requires TLS", |peer| {
        peer.greet()?;
        peer.option()?;
        peer.answer(wire::OPT_STRUCTURED_REPLY, wire::REP_ERR_TLS_REQD, &[])
    });
}

#[test]
fn the_old_choice_of_an_export_is_the_way_out() {
    let fake = Fake::start(|peer| {
        peer.greet()?;
        peer.option()?;
        peer.answer(wire::OPT_STRUCTURED_REPLY, wire::REP_ERR_UNSUP, &[])?;
        assert_eq!(peer.option()?.0, wire::OPT_GO);
        peer.answer(wire::OPT_GO, wire::REP_ERR_UNSUP, &[])?;
        assert_eq!(peer.option()?, (wire::OPT_EXPORT_NAME, b"disk".to_vec()));
        peer.put(&[&SIZE.to_be_bytes(), &FLAGS.to_be_bytes()])?;
        peer.rest().map(drop)
    });
    let device = fake.open().unwrap();
    assert_eq!(device.geometry().size, SIZE);
    assert!(device.describe().contains("simple replies"));
    drop(device);
    fails_with("no export", |peer| {
        peer.greet()?;
        peer.option()?;
        peer.answer(wire::OPT_STRUCTURED_REPLY, wire::REP_ERR_UNSUP, &[])?;
        peer.option()?;
        peer.answer(wire::OPT_GO, wire::REP_ERR_UNSUP, &[])?;
        peer.option().map(drop)
    });
}

#[test]
fn a_window_and_read_only_exports_are_as_wanted() {
    let server = |flags: u16| {
        Fake::start(move |peer| {
            peer.negotiate(flags, true)?;
            peer.rest().map(drop)
        })
    };
    let options = NbdOptions {
        offset: 4096,
        sizelimit: Some(10_000),
        ..NbdOptions::default()
    };
    let fake = server(FLAGS);
    let device = NbdDevice::open_idle(&fake.uri, &options).unwrap();
    assert_eq!(device.geometry().size, 9728);
    assert!(device.geometry().fua && !device.geometry().read_only);
    drop(device);
    let fake = server(FLAGS);
    let behind = NbdOptions {
        offset: SIZE,
        ..NbdOptions::default()
    };
    let error = NbdDevice::open_idle(&fake.uri, &behind).expect_err("an error");
    assert!(error.to_string().contains("none after offset"), "{error}");
    let fake = server(FLAGS | wire::READ_ONLY);
    assert!(matches!(fake.open().err(), Some(NbdError::ReadOnly)));
    let fake = server(FLAGS | wire::READ_ONLY);
    let reading = NbdOptions {
        read_only: true,
        ..NbdOptions::default()
    };
    let device = NbdDevice::open_idle(&fake.uri, &reading).unwrap();
    assert!(device.geometry().read_only && device.make_writable().is_err());
}
