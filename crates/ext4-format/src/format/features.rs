//! Which features a volume gets: the defaults of its kind, edited by the user's list.

use steadfs_vfs::options::nearest;

use super::{FormatError, FormatOptions, Kind};
use crate::disk::{Compat, Features, Incompat, RoCompat};

/// Features of every kind (`base_features` in mke2fs.conf).
const BASE: &str = "sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr";
const EXT3: &str = "has_journal";
const EXT4: &str = "has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize";

/// Features that format can make.
const MADE: Features = Features {
    compat: Compat(
        Compat::HAS_JOURNAL.0
            | Compat::RESIZE_INODE.0
            | Compat::DIR_INDEX.0
            | Compat::EXT_ATTR.0
            | Compat::SPARSE_SUPER2.0
            | Compat::FAST_COMMIT.0
            | Compat::STABLE_INODES.0
            | Compat::ORPHAN_FILE.0,
    ),
    incompat: Incompat(
        Incompat::FILETYPE.0
            | Incompat::META_BG.0
            | Incompat::EXTENTS.0
            | Incompat::BIT64.0
            | Incompat::MMP.0
            | Incompat::FLEX_BG.0
            | Incompat::EA_INODE.0
            | Incompat::CSUM_SEED.0
            | Incompat::INLINE_DATA.0
            | Incompat::ENCRYPT.0
            | Incompat::CASEFOLD.0
            | Incompat::LARGE_DIR.0,
    ),
    ro_compat: RoCompat(
        RoCompat::SPARSE_SUPER.0
            | RoCompat::LARGE_FILE.0
            | RoCompat::HUGE_FILE.0
            | RoCompat::GDT_CSUM.0
            | RoCompat::DIR_NLINK.0
            | RoCompat::EXTRA_ISIZE.0
            | RoCompat::QUOTA.0
            | RoCompat::BIGALLOC.0
            | RoCompat::METADATA_CSUM.0
            | RoCompat::PROJECT.0
            | RoCompat::VERITY.0,
    ),
};

/// Further features of mke2fs.
const OTHERS: Features = Features {
    compat: Compat(0),
    incompat: Incompat::JOURNAL_DEV,
    ro_compat: RoCompat(0),
};

impl FormatOptions {
    /// The names of the features that a list of `-O` may have.
    pub fn feature_names() -> Vec<String> {
        let sets = [MADE, OTHERS].into_iter();
        let names = sets.flat_map(Features::names);
        names.map(|name| name.into_owned()).collect()
    }
}

/// The features of a volume made with `opts`; [`check`] validates their combination.
pub(super) fn choose(opts: &FormatOptions) -> Result<Features, FormatError> {
    let mut features = edit(Features::default(), BASE)?;
    features = match opts.kind {
        Kind::Ext2 => features,
        Kind::Ext3 => edit(features, EXT3)?,
        Kind::Ext4 => edit(features, EXT4)?,
    };
    features = edit(features, &opts.features)?;
    if opts.journal || opts.journal_size.is_some() || opts.external_journal.is_some() {
        features.compat = features.compat.union(Compat::HAS_JOURNAL);
    }
    if opts.quota_types.is_some_and(|[_, _, project]| project) {
        features.ro_compat = features.ro_compat.union(RoCompat::PROJECT);
    }
    if opts.casefold {
        features.incompat = features.incompat.union(Incompat::CASEFOLD);
    }
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        // The two kinds of descriptor checksums exclude each other.
        features.ro_compat = features.ro_compat.without(RoCompat::GDT_CSUM);
    }
    Ok(features)
}

/// Refuses combinations of features that mke2fs refuses.
pub(super) fn check(features: Features) -> Result<(), FormatError> {
    let (compat, incompat, ro_compat) = (features.compat, features.incompat, features.ro_compat);
    let needs = |has: bool, name: &str, base: bool, other: &str| {
        if has && !base {
            let why = format!("{name} needs {other}; without it -O ^{name} is needed, too");
            return Err(FormatError::option("features", why));
        }
        Ok(())
    };
    needs(
        incompat.contains(Incompat::BIT64),
        "64bit",
        incompat.contains(Incompat::EXTENTS),
        "extent",
    )?;
    needs(
        ro_compat.contains(RoCompat::BIGALLOC),
        "bigalloc",
        incompat.contains(Incompat::EXTENTS),
        "extent",
    )?;
    needs(
        incompat.contains(Incompat::CSUM_SEED),
        "metadata_csum_seed",
        ro_compat.contains(RoCompat::METADATA_CSUM),
        "metadata_csum",
    )?;
    needs(
        compat.contains(Compat::RESIZE_INODE),
        "resize_inode",
        ro_compat.contains(RoCompat::SPARSE_SUPER),
        "sparse_super",
    )?;
    if compat.contains(Compat::RESIZE_INODE) && incompat.contains(Incompat::META_BG) {
        let why = "meta_bg needs no blocks reserved for growth: -O ^resize_inode is needed, too";
        return Err(FormatError::option("features", why));
    }
    needs(
        compat.contains(Compat::ORPHAN_FILE),
        "orphan_file",
        compat.contains(Compat::HAS_JOURNAL),
        "has_journal",
    )
}

/// Applies a list as `-O` takes it: names separated by commas or blanks; `^` or `-` before a name removes it, `none`
/// removes all.
fn edit(mut features: Features, list: &str) -> Result<Features, FormatError> {
    let words = list.split(|c: char| c == ',' || c.is_whitespace());
    for word in words.filter(|word| !word.is_empty()) {
        let word = word.to_ascii_lowercase();
        if word == "none" || word == "clear" {
            features = Features::default();
            continue;
        }
        let (on, name) = match word.strip_prefix(['^', '-']) {
            Some(name) => (false, name),
            None => (true, word.strip_prefix('+').unwrap_or(&word)),
        };
        let bits = by_name(name)?;
        if on {
            if !within(bits, MADE) {
                return Err(FormatError::Unsupported(format!("feature {name}")));
            }
            features.compat = features.compat.union(bits.compat);
            features.incompat = features.incompat.union(bits.incompat);
            features.ro_compat = features.ro_compat.union(bits.ro_compat);
        } else {
            features.compat = features.compat.without(bits.compat);
            features.incompat = features.incompat.without(bits.incompat);
            features.ro_compat = features.ro_compat.without(bits.ro_compat);
        }
    }
    Ok(features)
}

fn within(bits: Features, set: Features) -> bool {
    set.compat.contains(bits.compat)
        && set.incompat.contains(bits.incompat)
        && set.ro_compat.contains(bits.ro_compat)
}

/// The feature called `name`, if mke2fs lets a user choose it.
fn by_name(name: &str) -> Result<Features, FormatError> {
    let name = match name {
        "extents" => "extent",
        "uninit_groups" => "uninit_bg",
        "fname_encoding" => "casefold",
        other => other,
    };
    let bits = Features {
        compat: Compat::by_name(name).unwrap_or_default(),
        incompat: Incompat::by_name(name).unwrap_or_default(),
        ro_compat: RoCompat::by_name(name).unwrap_or_default(),
    };
    if bits == Features::default() || !(within(bits, MADE) || within(bits, OTHERS)) {
        let made = MADE.names();
        let near = nearest(name, made.iter().map(AsRef::as_ref));
        let near = near.map(|near| format!("; did you mean {near}?"));
        let near = near.unwrap_or_default();
        let why = format!("{name} is not a feature of new volumes{near}");
        return Err(FormatError::option("features", why));
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Result<String, FormatError> {
        let features = edit(Features::default(), list)?;
        Ok(features.names().join(" "))
    }

    #[test]
    fn lists_are_edited_word_by_word() {
        assert_eq!(
            names("has_journal,extents ^has_journal +64BIT").unwrap(),
            "extent 64bit"
        );
        assert_eq!(names("extent,none,filetype").unwrap(), "filetype");
        assert_eq!(names("").unwrap(), "");
        assert_eq!(
            names("journal_dev").unwrap_err(),
            FormatError::Unsupported("feature journal_dev".into())
        );
        assert_eq!(names("^bigalloc,^meta_bg").unwrap(), "");
        let unknown = names("no_such").unwrap_err().to_string();
        assert!(unknown.contains("no_such"), "{unknown}");
        assert!(names("needs_recovery").is_err());
    }

    #[test]
    fn features_that_need_others() {
        for (list, missing) in [
            ("64bit", "extent"),
            ("bigalloc", "extent"),
            ("metadata_csum_seed", "metadata_csum"),
            ("resize_inode", "sparse_super"),
            ("orphan_file", "has_journal"),
            ("sparse_super,resize_inode,meta_bg", "^resize_inode"),
        ] {
            let features = edit(Features::default(), list).unwrap();
            let error = check(features).unwrap_err().to_string();
            assert!(error.contains(missing), "{error}");
        }
    }
}
