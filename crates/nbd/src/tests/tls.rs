//! Servers that do not encrypt as they should.

use super::*;

/// The certificate of an authority that has signed nothing.
const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBZTCCAQqgAwIBAgIURWGQ4cAInMGjVYwCYvpN4vTNolowCgYIKoZIzj0EAwIw\n\
FzEVMBMGA1UEAwwMc3RlYWRmcy10ZXN0MCAXDTI2MTEyNzIyMzc0MVoYDzIxMjYx\n\
MTAzMjIzNzQxWjAXMRUwEwYDVQQDDAxzdGVhZGZzLXRlc3QwWTATBgcqhkjOPQIB\n\
BggqhkjOPQMBBwNCAAR8cI7PuYDxKSZlig/6Ur1EK2GyjJEUxZ0kE8yMmQ3W1b0N\n\
DxVLvBzn20Fzny/0hKjnDci4THW1mtTI0u3yLPH1ozIwMDAPBgNVHRMBAf8EBTAD\n\
AQH/MB0GA1UdDgQWBBTFAk2XRWdX23msDkJXERKbdPaMBTAKBggqhkjOPQQDAgNJ\n\
ADBGAiEAjjDJV0fgYHFkQIuQh9r2K/1PJ7GKwNomk7ylCflGozQCIQDN+ZqEmo2g\n\
PIQIpdzYtmzQVkkQCNkFsHbEAjCFCF1ZtA==\n\
-----END CERTIFICATE-----\n";

/// What an encrypted connection to a server with this behaviour fails by, within a time.
fn failure(
    limit: Duration,
    serve: impl FnOnce(&mut Peer) -> std::io::Result<()> + Send + 'static,
) -> NbdError {
    let fake = Fake::start(serve);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ca-cert.pem"), AUTHORITY).unwrap();
    let uri = fake.uri.to_str().unwrap();
    let uri = uri.replace("nbd+unix", "nbds+unix");
    let uri = format!("{uri}&tls-certificates={}", dir.path().display());
    let opened = NbdDevice::open_within(uri.as_ref(), &NbdOptions::default(), limit);
    opened.expect_err("an error")
}

fn fails_with(why: &str, serve: impl FnOnce(&mut Peer) -> std::io::Result<()> + Send + 'static) {
    let error = failure(Duration::from_secs(2), serve).to_string();
    assert!(error.contains(why), "{error}");
}

/// Answers the request for TLS.
fn answered(peer: &mut Peer, kind: u32) -> std::io::Result<()> {
    peer.greet()?;
    assert_eq!(peer.option()?.0, wire::OPT_STARTTLS);
    peer.answer(wire::OPT_STARTTLS, kind, &[])
}

#[test]
fn nothing_is_negotiated_without_tls() {
    for kind in [wire::REP_ERR_UNSUP, wire::REP_ERR_POLICY] {
        fails_with("has no TLS", move |peer| {
            answered(peer, kind)?;
            // The client asks for nothing else.
            let mut rest = Vec::new();
            peer.0.read_to_end(&mut rest)?;
            assert_eq!(rest, b"");
            Ok(())
        });
    }
    fails_with("reply 0x2", |peer| answered(peer, wire::REP_SERVER));
}

#[test]
fn bytes_before_the_handshake_are_not_taken_for_it() {
    fails_with("TLS with the NBD server failed", |peer| {
        answered(peer, wire::REP_ACK)?;
        // As if encryption had begun.
        peer.answer(wire::OPT_STRUCTURED_REPLY, wire::REP_ACK, &[])?;
        peer.0.read_to_end(&mut Vec::new()).map(drop)
    });
    fails_with("connection", |peer| answered(peer, wire::REP_ACK));
    let error = failure(Duration::from_millis(100), |peer| {
        answered(peer, wire::REP_ACK)?;
        peer.0.read_to_end(&mut Vec::new()).map(drop)
    });
    assert!(matches!(error, NbdError::Late(_)), "{error}");
}
