//! POSIX access control lists as text, and as the value of their extended attribute.

/// Version of the value (linux/posix_acl_xattr.h).
const VERSION: u32 = 2;
/// No user or group.
const NO_ID: u32 = u32::MAX;

/// The value of entries such as `u=7,u1001=5,g=5,m=7,o=0`. What is wrong in the text is wrong in the value.
pub fn encode(text: &str) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in text.split(',').filter(|entry| !entry.is_empty()) {
        let (who, perm) = entry.split_once('=').unwrap();
        let id = who.get(1..).filter(|id| !id.is_empty());
        let tag: u16 = match (&who[..1], id.is_some()) {
            ("u", false) => 0x01,
            ("u", true) => 0x02,
            ("g", false) => 0x04,
            ("g", true) => 0x08,
            ("m", _) => 0x10,
            ("o", _) => 0x20,
            _ => 0x40,
        };
        let id = id.map_or(NO_ID, |id| id.parse().unwrap());
        value.extend(tag.to_le_bytes());
        value.extend(perm.parse::<u16>().unwrap().to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

#[test]
fn the_value_of_an_acl_is_the_kernels() {
    let value = encode("u=7,u1001=5,m=7");
    let expected = [
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 5, 0, 233, 3, 0, 0, 16, 0, 7, 0, 255,
        255, 255, 255,
    ];
    assert_eq!(value, expected);
}
