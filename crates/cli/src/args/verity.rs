//! Arguments about verity files.

use std::ffi::OsString;

use steadfs::VerityOptions;

use super::offline::Open;

/// Make files verity files, or print their digests.
///
/// The content of a verity file (fs-verity) never changes again, and is verified against a hash tree whenever it is read. The
/// volume needs the feature verity, which `format -O verity` gives it.
#[derive(Debug, clap::Args)]
pub struct Verity {
    #[command(subcommand)]
    pub action: VerityAction,
}

#[derive(Debug, clap::Subcommand)]
pub enum VerityAction {
    /// Make a file a verity file.
    Enable(Enable),
    /// Print the digests that identify the contents of verity files.
    Measure {
        /// Files of a mount, or IMAGE:/PATH on images.
        #[arg(value_name = "FILE|IMAGE:/PATH", required = true)]
        places: Vec<OsString>,
        #[command(flatten)]
        open: Open,
    },
}

/// The file, and the options of fsverity(1).
#[derive(Debug, clap::Args)]
pub struct Enable {
    /// A file of a mount, which no program has open for writing, or IMAGE:/PATH on an image.
    #[arg(value_name = "FILE|IMAGE:/PATH")]
    pub place: OsString,
    /// The hash algorithm: sha256 or sha512.
    #[arg(long, value_name = "NAME", default_value = "sha256", value_parser = algorithm)]
    pub hash_alg: u32,
    /// The size of the blocks that are hashed: a power of two from 1024 to the size of the volume's blocks; without it 4096, or
    /// the size of the volume's blocks if that is smaller.
    #[arg(long, value_name = "BYTES")]
    pub block_size: Option<u32>,
    /// Hash this before each block: up to 64 hexadecimal digits.
    #[arg(long, value_name = "DIGITS", value_parser = salt)]
    pub salt: Option<Salt>,
    #[command(flatten)]
    pub open: Open,
}

/// The bytes of a salt.
#[derive(Clone, Debug)]
pub struct Salt(Vec<u8>);

impl Enable {
    /// The options on a volume with blocks of this size.
    pub fn options(&self, volume_block: u64) -> VerityOptions {
        let usual = VerityOptions::default().block_size;
        let largest = u32::try_from(volume_block).unwrap_or(usual);
        VerityOptions {
            algorithm: self.hash_alg,
            block_size: self.block_size.unwrap_or(usual.min(largest)),
            salt: self
                .salt
                .as_ref()
                .map(|salt| salt.0.clone())
                .unwrap_or_default(),
        }
    }
}

fn algorithm(name: &str) -> Result<u32, &'static str> {
    VerityOptions::algorithm_named(name).ok_or("the algorithms are sha256 and sha512")
}

fn salt(digits: &str) -> Result<Salt, &'static str> {
    let salt = VerityOptions::parse_salt(digits).map(Salt);
    salt.ok_or("needs an even number of hexadecimal digits, at most 64")
}
