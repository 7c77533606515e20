//! Device parameters: read from a file, every value checked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::table::{self, Value, Values};

/// Why a parameter file is not usable.
#[derive(Debug, Error)]
pub enum ParameterError {
    /// It cannot be read, and no built-in device has this name.
    #[error("{}: {error} (built-in devices: {})", path.display(), names())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// A value is wrong; the text names the key.
    #[error("{origin}: {why}")]
    Wrong {
        /// The file or built-in device.
        origin: String,
        /// The error.
        why: String,
    },
}

/// The built-in devices: name and file.
pub const BUILT_IN: [(&str, &str); 5] = [
    ("sdhc-2013", include_str!("../../devices/sdhc-2013.toml")),
    (
        "sdhc-2013-by-command",
        include_str!("../../devices/sdhc-2013-by-command.toml"),
    ),
    ("ufs-2016", include_str!("../../devices/ufs-2016.toml")),
    ("ufs-2021", include_str!("../../devices/ufs-2021.toml")),
    ("nvme-2019", include_str!("../../devices/nvme-2019.toml")),
];

fn names() -> String {
    BUILT_IN.map(|(name, _)| name).join(", ")
}

/// Parameters of a device, and of the host that it was measured in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Its name.
    pub name: String,
    /// Command and data transfer.
    pub interface: Interface,
    /// The flash memory.
    pub flash: Flash,
    /// Its volatile cache.
    pub cache: Cache,
    /// Erase units, if modelled.
    pub erase: Option<Erase>,
    /// The host.
    pub host: Host,
}

/// Command and data transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Number of concurrent commands.
    pub queue_depth: usize,
    /// Overhead of each command.
    pub command: Duration,
    /// Bus bandwidth in MiB/s, each way.
    pub transfer_mib_s: u64,
    /// Maximum transfer of one command, in bytes.
    pub max_transfer: u32,
}

/// The flash memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flash {
    /// Pages that are programmed or read concurrently.
    pub units: usize,
    /// Bytes programmed at a time in one unit.
    pub page: u64,
    /// Time to read a page.
    pub read: Duration,
    /// Time to program a page.
    pub program: Duration,
    /// Each program takes up to this many percent longer, at random.
    pub jitter_percent: u64,
}

/// The volatile cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Size in bytes; 0: no cache, a write ends when it is programmed.
    pub size: u64,
    /// Time of a flush without the programs of cached data.
    pub flush: Duration,
    /// Additional time per MiB written since the last flush.
    pub flush_per_mib: Duration,
    /// Whether a flush in progress blocks other commands.
    pub flush_blocks: bool,
    /// Whether single writes can be made durable (FUA).
    pub fua: bool,
    /// Time of a FUA write without its program.
    pub fua_extra: Duration,
}

/// Erase units: a unit that is not open must be opened before a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erase {
    /// Size in bytes.
    pub unit: u64,
    /// Number of units open at a time.
    pub open: usize,
    /// Time to open a unit, which merges the content of another one.
    pub opening: Duration,
    /// Time of a write that does not continue the last write of its open unit.
    pub jump: Duration,
}

/// The host of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Time from a wake-up until the task runs.
    pub wake: Duration,
}

impl Parameters {
    /// The parameters of a built-in device.
    pub fn built_in(name: &str) -> Option<Self> {
        let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(name, text).expect("a test parses every built-in file"))
    }

    /// A built-in device by name, or the device of a file.
    ///
    /// # Errors
    /// The file cannot be read or has an error.
    pub fn find(name: &Path) -> Result<Self, ParameterError> {
        if let Some(found) = name.to_str().and_then(Self::built_in) {
            return Ok(found);
        }
        let text = std::fs::read_to_string(name).map_err(|error| ParameterError::Unreadable {
            path: name.to_owned(),
            error,
        })?;
        Self::parse(&name.display().to_string(), &text)
    }

    /// Parses a parameter file.
    ///
    /// # Errors
    /// The error, with its key.
    pub fn parse(origin: &str, text: &str) -> Result<Self, ParameterError> {
        let wrong = |why| ParameterError::Wrong {
            origin: origin.to_owned(),
            why,
        };
        let values = table::read(text).map_err(wrong)?;
        Reader { values }.device().map_err(wrong)
    }
}

/// Takes values by key; remaining values at the end are unknown keys.
struct Reader {
    values: Values,
}

const MINUTE_US: u64 = 60_000_000;

impl Reader {
    fn device(mut self) -> Result<Parameters, String> {
        let name = self.text("name")?;
        let interface = Interface {
            queue_depth: self.size("interface.queue_depth", 1, 1024)?,
            command: self.micros("interface.command_us")?,
            transfer_mib_s: self.number("interface.transfer_mib_s", 1, 1 << 20)?,
            max_transfer: self.kib("interface.max_transfer_kib", 4, 16_384)? as u32,
        };
        let flash = Flash {
            units: self.size("flash.units", 1, 4096)?,
            page: self.kib("flash.page_kib", 4, 1024)?,
            read: self.micros("flash.read_us")?,
            program: self.micros("flash.program_us")?,
            jitter_percent: self.number("flash.jitter_percent", 0, 1000)?,
        };
        let cache = Cache {
            size: self.kib("cache.size_kib", 0, 1 << 20)?,
            flush: self.micros("cache.flush_us")?,
            flush_per_mib: self.micros("cache.flush_us_per_mib")?,
            flush_blocks: self.flag("cache.flush_blocks")?,
            fua: self.flag("cache.fua")?,
            fua_extra: self.micros("cache.fua_extra_us")?,
        };
        if cache.size > 0 && cache.size < flash.page {
            return Err("cache.size_kib: 0, or at least flash.page_kib".to_owned());
        }
        let erase = if self.values.keys().any(|key| key.starts_with("erase.")) {
            Some(Erase {
                unit: self.kib("erase.unit_kib", 16, 1 << 20)?,
                open: self.size("erase.open", 1, 1024)?,
                opening: self.micros("erase.opening_us")?,
                jump: self.micros("erase.jump_us")?,
            })
        } else {
            None
        };
        let host = Host {
            wake: self.micros("host.wake_us")?,
        };
        match self.values.keys().next() {
            Some(key) => Err(format!("{key}: unknown parameter")),
            None => Ok(Parameters {
                name,
                interface,
                flash,
                cache,
                erase,
                host,
            }),
        }
    }

    fn take(&mut self, key: &str) -> Result<Value, String> {
        let value = self.values.remove(key);
        value.ok_or_else(|| format!("{key} is missing"))
    }

    fn number(&mut self, key: &str, least: u64, most: u64) -> Result<u64, String> {
        match self.take(key)? {
            Value::Number(n) if (least..=most).contains(&n) => Ok(n),
            Value::Number(n) => Err(format!("{key}: {n} is not from {least} to {most}")),
            other => Err(format!("{key}: needs a whole number, not {}", other.kind())),
        }
    }

    fn size(&mut self, key: &str, least: u64, most: u64) -> Result<usize, String> {
        let n = self.number(key, least, most)?;
        Ok(usize::try_from(n).expect("the limits are small"))
    }

    /// A size in KiB, in bytes; whole blocks of 4 KiB.
    fn kib(&mut self, key: &str, least: u64, most: u64) -> Result<u64, String> {
        let n = self.number(key, least, most)?;
        match n.is_multiple_of(4) {
            true => Ok(n << 10),
            false => Err(format!("{key}: {n} is not a multiple of 4")),
        }
    }

    fn micros(&mut self, key: &str) -> Result<Duration, String> {
        self.number(key, 0, MINUTE_US).map(Duration::from_micros)
    }

    fn flag(&mut self, key: &str) -> Result<bool, String> {
        match self.take(key)? {
            Value::Flag(flag) => Ok(flag),
            other => Err(format!("{key}: needs true or false, not {}", other.kind())),
        }
    }

    fn text(&mut self, key: &str) -> Result<String, String> {
        match self.take(key)? {
            Value::Text(text) => Ok(text),
            other => Err(format!("{key}: needs a string, not {}", other.kind())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_device_parses_under_its_name() {
        for (name, text) in BUILT_IN {
            let parsed = Parameters::parse(name, text).unwrap();
            assert_eq!(parsed.name, name);
            assert_eq!(Parameters::find(Path::new(name)).unwrap(), parsed);
        }
    }

    #[test]
    fn parse_errors_name_the_line() {
        let (_, good) = BUILT_IN[3];
        for (from, to, said) in [
            ("queue_depth = 32", "", "interface.queue_depth is missing"),
            (
                "queue_depth = 32",
                "queue_depth = 0",
                "interface.queue_depth: 0",
            ),
            ("fua = true", "fua = 1", "cache.fua: needs true or false"),
            ("fua = true", "fua = true\nfu = 1", "cache.fu: unknown"),
            ("name = ", "nom = ", "name is missing"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = Parameters::parse("x.toml", &good.replacen(from, to, 1)).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains(said) && error.starts_with("x.toml"),
                "{error}"
            );
        }
        let missing = Parameters::find(Path::new("/nonexistent.toml")).unwrap_err();
        assert!(missing.to_string().contains("ufs-2021"), "{missing}");
    }
}
