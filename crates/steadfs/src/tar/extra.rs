//! What pax records and GNU's long names say of a member.

use steadfs_base::Timestamp;

use super::acl::acl_of_text;
use super::read::{PIECES_MAX, Piece, RECORDS_MAX, decimal};
use super::{ACLS, LABEL, XATTR, pax};

/// Memory of an attribute besides its name and value, in bytes: 125 were measured.
const ATTRIBUTE_BYTES: u64 = 128;

type Result<T> = std::result::Result<T, String>;

/// The records that are known; others are passed over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extra {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u64>,
    pub gid: Option<u64>,
    pub mtime: Option<Timestamp>,
    pub atime: Option<Timestamp>,
    pub sparse: Sparse,
    /// Bytes of memory that the attributes take.
    pub held: u64,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Texts of access control lists, with the attribute that each is.
    acls: Vec<(&'static [u8], Vec<u8>)>,
    /// SELinux's label.
    label: Option<Vec<u8>>,
}

/// What the records say of a sparse file, in any of GNU tar's formats.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sparse {
    pub is_sparse: bool,
    /// Format 1.0: the map stands before the data.
    pub in_data: bool,
    pub name: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub map: Vec<Piece>,
    start: Option<u64>,
}

impl Extra {
    /// Adds records; later ones count.
    pub fn add(&mut self, mut records: &[u8]) -> Result<()> {
        while !records.is_empty() {
            let broken = || "pax records have no order".to_owned();
            let space = records
                .iter()
                .take(20)
                .position(|&b| b == b' ')
                .ok_or_else(broken)?;
            let len = decimal(&records[..space]).and_then(|len| usize::try_from(len).ok());
            let len = len
                .filter(|&len| len > space + 2 && len <= records.len())
                .ok_or_else(broken)?;
            let record = records[space + 1..len]
                .strip_suffix(b"\n")
                .ok_or_else(broken)?;
            let equals = record.iter().position(|&b| b == b'=').ok_or_else(broken)?;
            self.record(&record[..equals], &record[equals + 1..])?;
            records = &records[len..];
        }
        Ok(())
    }

    /// Forgets what records for all members cannot say of each.
    pub fn forget_file(&mut self) {
        self.path = None;
        self.link = None;
        self.size = None;
        self.sparse = Sparse::default();
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let wrong = || format!("the pax record {} is wrong", String::from_utf8_lossy(key));
        // An empty value takes a record of all members back.
        let number = || match value {
            b"" => Ok(None),
            text => decimal(text).map(Some).ok_or_else(wrong),
        };
        let time = || match value {
            b"" => Ok(None),
            text => pax::time_of_text(text).map(Some).ok_or_else(wrong),
        };
        let text = || (!value.is_empty()).then(|| value.to_vec());
        match key {
            b"path" => self.path = text(),
            b"linkpath" => self.link = text(),
            b"size" => self.size = number()?,
            b"uid" => self.uid = number()?,
            b"gid" => self.gid = number()?,
            b"mtime" => self.mtime = time()?,
            b"atime" => self.atime = time()?,
            _ if key.starts_with(b"GNU.sparse.") => {
                return self.sparse.record(&key[11..], value).ok_or_else(wrong)?;
            }
            _ => {
                if let Some(name) = key.strip_prefix(XATTR.as_bytes()) {
                    self.hold(name.len() + value.len())?;
                    self.xattrs.push((pax::xattr_name(name), value.to_vec()));
                } else if let Some((_, name)) = ACLS.iter().find(|(acl, _)| acl.as_bytes() == key) {
                    self.hold(value.len())?;
                    self.acls.push((name, value.to_vec()));
                } else if LABEL.0.as_bytes() == key {
                    self.hold(value.len())?;
                    self.label = text();
                }
            }
        }
        Ok(())
    }

    /// Counts an attribute. Several headers can belong to a member, and any number to all members.
    fn hold(&mut self, bytes: usize) -> Result<()> {
        self.held += bytes as u64 + ATTRIBUTE_BYTES;
        match self.held > RECORDS_MAX {
            true => Err(format!(
                "the attributes of one member need more than {} MiB of memory",
                RECORDS_MAX >> 20
            )),
            false => Ok(()),
        }
    }

    /// The extended attributes in order of their names, and those that cannot be kept.
    #[allow(clippy::type_complexity, reason = "two lists")]
    pub fn xattrs(&mut self) -> (Vec<(Vec<u8>, Vec<u8>)>, Vec<(String, &'static str)>) {
        // The last one of a name counts.
        let mut all = std::collections::BTreeMap::new();
        let mut lost = Vec::new();
        for (name, text) in std::mem::take(&mut self.acls) {
            if text.is_empty() {
                // As GNU tar writes of a directory without a default list; it also takes back a record of all members.
                all.remove(name);
                lost.retain(|(lost, _): &(String, _)| lost.as_bytes() != name);
                continue;
            }
            match acl_of_text(&text) {
                Ok(value) => drop(all.insert(name.to_vec(), value)),
                Err(why) => lost.push((String::from_utf8_lossy(name).into_owned(), why)),
            }
        }
        if let Some(mut label) = self.label.take() {
            // As setfilecon(3) writes it.
            if !label.ends_with(b"\0") {
                label.push(0);
            }
            all.insert(LABEL.1.to_vec(), label);
        }
        all.extend(std::mem::take(&mut self.xattrs));
        lost.retain(|(name, _)| !all.contains_key(name.as_bytes()));
        (all.into_iter().collect(), lost)
    }
}

impl Sparse {
    /// A record of a sparse file; `None` for a wrong value.
    fn record(&mut self, key: &[u8], value: &[u8]) -> Option<Result<()>> {
        self.is_sparse = true;
        match key {
            b"major" => self.in_data = decimal(value)? >= 1,
            b"minor" | b"numblocks" => drop(decimal(value)?),
            b"name" => self.name = Some(value.to_vec()),
            b"realsize" | b"size" => self.size = Some(decimal(value)?),
            b"offset" => self.start = Some(decimal(value)?),
            b"numbytes" => self.map.push((self.start.take()?, decimal(value)?)),
            b"map" if value.is_empty() => {}
            b"map" => {
                let mut numbers = value.split(|&b| b == b',');
                while let Some(start) = numbers.next() {
                    self.map.push((decimal(start)?, decimal(numbers.next()?)?));
                }
            }
            _ => {}
        }
        match self.map.len() > PIECES_MAX {
            true => Some(Err(format!(
                "a sparse file has more than {PIECES_MAX} pieces"
            ))),
            false => Some(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra(records: &[(&str, &str)]) -> Result<Extra> {
        let mut bytes = Vec::new();
        for (key, value) in records {
            pax::push(&mut bytes, key.as_bytes(), value.as_bytes());
        }
        let mut extra = Extra::default();
        extra.add(&bytes).map(|()| extra)
    }

    #[test]
    fn records_are_read_as_they_are_written() {
        let mut found = extra(&[
            ("path", "a\n=b"),
            ("uid", "4000000000"),
            ("mtime", "-1.25"),
            ("SCHILY.xattr.user.a%3Db%25", "old"),
            ("SCHILY.xattr.user.a%3Db%25", "new"),
            ("SCHILY.acl.access", "user::rw-,group::r--,other::---"),
            ("SCHILY.acl.default", "user:some:rw-"),
            ("comment", "x"),
        ])
        .unwrap();
        assert_eq!(found.path.as_deref(), Some(&b"a\n=b"[..]));
        assert_eq!(found.uid, Some(4_000_000_000));
        let time = Timestamp {
            secs: -2,
            nanos: 750_000_000,
        };
        assert_eq!(found.mtime, Some(time));
        let (xattrs, lost) = found.xattrs();
        assert_eq!(xattrs[0].0, b"system.posix_acl_access");
        assert_eq!(xattrs[1], (b"user.a=b%".to_vec(), b"new".to_vec()));
        assert_eq!(lost[0].0, "system.posix_acl_default");
    }

    #[test]
    fn labels_of_tar_selinux_are_attributes() {
        let labels = |records: &[(&str, &str)]| extra(records).unwrap().xattrs().0;
        let rht = "RHT.security.selinux";
        let of = |value: &[u8]| vec![(b"security.selinux".to_vec(), value.to_vec())];
        assert_eq!(labels(&[(rht, "u:r:t:s0")]), of(b"u:r:t:s0\0"));
        assert_eq!(labels(&[(rht, "u:r:t:s0\0")]), of(b"u:r:t:s0\0"));
        assert_eq!(labels(&[(rht, "u:r:t:s0"), (rht, "")]), []);
        let both = [(rht, "a"), ("SCHILY.xattr.security.selinux", "b\0")];
        assert_eq!(labels(&both), of(b"b\0"));
    }

    #[test]
    fn an_empty_access_control_list_is_none() {
        let mut found = extra(&[
            ("SCHILY.acl.access", "user::rw-,group::r--,other::---"),
            ("SCHILY.acl.default", "user:some:rw-"),
            ("SCHILY.acl.access", ""),
            ("SCHILY.acl.default", ""),
            ("SCHILY.xattr.user.empty", ""),
        ])
        .unwrap();
        let (xattrs, lost) = found.xattrs();
        assert_eq!(xattrs, [(b"user.empty".to_vec(), Vec::new())]);
        assert!(lost.is_empty(), "{lost:?}");
    }

    #[test]
    fn broken_records_are_errors() {
        for broken in [
            "5 a=b\n",
            "7 a=b\n",
            "6 a=b",
            "x a=b\n",
            "99999999999999999999999 a=b\n",
            "3 \n",
            "6 abc\n",
        ] {
            let mut extra = Extra::default();
            assert!(extra.add(broken.as_bytes()).is_err(), "{broken:?}");
        }
        assert!(extra(&[("size", "-1")]).is_err());
        assert!(extra(&[("mtime", "now")]).is_err());
        assert!(extra(&[("GNU.sparse.map", "1,2,3")]).is_err());
    }

    #[test]
    fn maps_of_older_formats_are_lists_of_pairs() {
        let map = |records| extra(records).unwrap().sparse.map;
        assert_eq!(map(&[("GNU.sparse.map", "0,1,8,2")]), [(0, 1), (8, 2)]);
        let pairs = [
            ("GNU.sparse.offset", "4"),
            ("GNU.sparse.numbytes", "5"),
            ("GNU.sparse.offset", "10"),
            ("GNU.sparse.numbytes", "0"),
        ];
        assert_eq!(map(&pairs), [(4, 5), (10, 0)]);
    }
}
