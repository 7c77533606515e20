use super::*;

fn v2(change: impl FnOnce(&mut [u8; CONTEXT_SIZE_MAX])) -> Result<Context> {
    let mut bytes = [0; CONTEXT_SIZE_MAX];
    bytes[..4].copy_from_slice(&[2, 1, 4, 3]);
    bytes[8..24].fill(7);
    bytes[24..].fill(9);
    change(&mut bytes);
    Context::parse(&bytes)
}

#[test]
fn contexts_of_both_versions() {
    let context = v2(|_| {}).unwrap();
    assert_eq!(context.policy.key, KeyName::Identifier([7; 16]));
    assert_eq!((context.nonce, context.policy.padding()), ([9; 16], 32));
    assert_eq!(Context::parse(&context.to_bytes()).unwrap(), context);
    let mut v1 = [5; CONTEXT_SIZE_V1];
    v1[..4].copy_from_slice(&[1, 9, 9, flag::DIRECT_KEY]);
    let context = Context::parse(&v1).unwrap();
    assert_eq!(context.to_bytes(), v1);
    assert_eq!(context.policy.key, KeyName::Descriptor([5; 8]));
    assert_eq!(context.policy.contents, Mode::Adiantum);
    assert_eq!(context.policy.padding(), 4);
}

#[test]
fn contexts_that_linux_does_not_make_are_refused() {
    let corrupt = |result| matches!(result, Err(FsError::Corrupt(_)));
    assert!(corrupt(v2(|bytes| bytes[0] = 1)));
    assert!(corrupt(v2(|bytes| bytes[0] = 3)));
    assert!(corrupt(v2(|bytes| bytes[6] = 1)));
    assert!(corrupt(Context::parse(&[])));
    let unknown = |result| matches!(result, Err(FsError::Invalid(_)));
    // SM4; two modes that do not belong together; shared keys in XTS; two kinds of vectors; units of 256 bytes.
    assert!(unknown(v2(|bytes| bytes[1] = 7)));
    assert!(unknown(v2(|bytes| bytes[2] = 9)));
    assert!(unknown(v2(|bytes| bytes[3] = flag::DIRECT_KEY)));
    assert!(unknown(v2(
        |bytes| bytes[3] = flag::IV_INO_LBLK_64 | flag::IV_INO_LBLK_32
    )));
    assert!(unknown(v2(|bytes| bytes[3] = 0x20)));
    assert!(unknown(v2(|bytes| bytes[4] = 8)));
    assert!(v2(|bytes| bytes[3] = flag::IV_INO_LBLK_32).is_ok());
    assert!(v2(|bytes| bytes[4] = 9).is_ok());
}

#[test]
fn names_of_keys_as_text() {
    for text in ["0123456789abcdef", "0123456789abcdef0123456789abcdef"] {
        assert_eq!(KeyName::parse(text).unwrap().to_string(), text);
    }
    for text in [
        "",
        "0",
        "0123456789abcde",
        "0123456789abcdefg",
        "0123456789abcdef01",
    ] {
        assert_eq!(KeyName::parse(text), None, "{text}");
    }
}
