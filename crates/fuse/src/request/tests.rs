use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;

fn message(opcode: u32, extlen: u16, body: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: u32::try_from(size_of::<InHeader>() + body.len()).unwrap(),
        opcode,
        unique: 2,
        nodeid: 1,
        total_extlen: extlen,
        ..InHeader::default()
    };
    [header.as_bytes(), body].concat()
}

fn decode(bytes: &[u8]) -> Result<Request<'_>, DecodeError> {
    Request::decode(RawRequest::from_message(bytes)?)
}

/// Reads everything in a decoded request.
fn walk(request: &Request<'_>) -> usize {
    let mut seen = request.groups.iter().count();
    match request.op {
        Op::BatchForget(list) => seen += list.iter().count(),
        Op::Write { data, .. } | Op::Ioctl { data, .. } => seen += data.len(),
        Op::Rename { from, to, .. } => seen += from.len() + to.len(),
        Op::Setxattr { name, value, .. } => seen += name.len() + value.len(),
        _ => {}
    }
    seen
}

#[test]
fn names_are_split_at_their_zero_bytes() {
    let mut body = 7_u64.to_ne_bytes().to_vec();
    body.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    body.extend_from_slice(b"old\0new\0");
    let bytes = message(op::RENAME2, 0, &body);
    let request = decode(&bytes).unwrap();
    let Op::Rename {
        newdir,
        flags,
        from,
        to,
    } = request.op
    else {
        panic!("not a rename: {:?}", request.op);
    };
    assert_eq!((newdir, flags, from, to), (7, 1, &b"old"[..], &b"new"[..]));
    assert_eq!(
        decode(&message(op::LOOKUP, 0, b"no end")).unwrap_err(),
        DecodeError::Name
    );
}

#[test]
fn groups_are_found_behind_other_extensions() {
    let mut body = wire::MkdirIn {
        mode: 0o755,
        umask: 0o22,
    }
    .as_bytes()
    .to_vec();
    body.extend_from_slice(b"dir\0");
    let before = body.len();
    // A security context of 12 bytes (padded to 16), then two groups (16 + 4 bytes, padded to 24).
    body.extend_from_slice(&[12, 0, 0, 0, 1, 0, 0, 0, 9, 9, 9, 9, 0, 0, 0, 0]);
    for word in [20_u32, wire::EXT_GROUPS, 2, 100, 200, 0] {
        body.extend_from_slice(&word.to_ne_bytes());
    }
    let extlen = u16::try_from((body.len() - before) / 8).unwrap();
    let bytes = message(op::MKDIR, extlen, &body);
    let request = decode(&bytes).unwrap();
    assert_eq!(request.groups.iter().collect::<Vec<_>>(), [100, 200]);
    let Op::Mkdir { name, arg } = request.op else {
        panic!("not a mkdir");
    };
    assert_eq!((name, arg.umask), (&b"dir"[..], 0o22));
}

#[test]
fn wrong_lengths_are_refused() {
    let write = wire::WriteIn {
        size: 5,
        ..Default::default()
    };
    let body = [write.as_bytes(), b"four"].concat();
    assert_eq!(
        decode(&message(op::WRITE, 0, &body)).unwrap_err(),
        DecodeError::Short
    );
    let mut bytes = message(op::STATFS, 0, &[]);
    bytes.push(0);
    assert_eq!(decode(&bytes).unwrap_err(), DecodeError::Length);
    let forget = wire::BatchForgetIn {
        count: u32::MAX,
        dummy: 0,
    };
    assert_eq!(
        decode(&message(op::BATCH_FORGET, 0, forget.as_bytes())).unwrap_err(),
        DecodeError::Short
    );
    assert_eq!(
        decode(&message(9999, 0, &[])).unwrap_err(),
        DecodeError::Unknown(9999)
    );
}

#[test]
fn the_short_init_of_an_old_kernel_is_decoded() {
    let body: Vec<u8> = [7_u32, 34, 4096, 5]
        .iter()
        .flat_map(|w| w.to_ne_bytes())
        .collect();
    let bytes = message(op::INIT, 0, &body);
    let Op::Init(init) = decode(&bytes).unwrap().op else {
        panic!("not an init");
    };
    assert_eq!((init.minor, init.flags, init.flags2), (34, 5, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        if let Ok(request) = decode(&bytes) {
            walk(&request);
        }
    }

    #[test]
    fn no_body_makes_decoding_panic(
        opcode in 0_u32..60,
        extlen in 0_u16..12,
        body in proptest::collection::vec(prop_oneof![Just(0_u8), 0_u8..40, any::<u8>()], 0..200),
    ) {
        let bytes = message(opcode, extlen, &body);
        if let Ok(request) = decode(&bytes) {
            prop_assert!(walk(&request) <= body.len());
        }
        // As in a ring entry: the operation's structure in a buffer of its own.
        let (header, _) = InHeader::read_from_prefix(&bytes).unwrap();
        let raw = RawRequest { header, op: &[0xff; 128], payload: &body };
        if let Ok(request) = Request::decode(raw) {
            walk(&request);
        }
    }
}
