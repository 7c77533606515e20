//! A device in memory whose initial content is a shared image.

use steadfs_block::{Bio, Device, Done, Geometry, IoError, Op};
use steadfs_lab::device::Image;
use steadfs_rt::{Mutex, Rank};

/// A device in memory; every write is durable at once.
pub struct ImageDevice {
    geometry: Geometry,
    state: Mutex<State>,
}

struct State {
    image: Image,
    writes: u64,
    strays: Vec<String>,
}

impl ImageDevice {
    /// A device with the content of `image`.
    pub fn new(image: Image) -> Self {
        Self {
            geometry: Geometry {
                size: image.size(),
                logical_block: 512,
                read_only: false,
                discard_granularity: Some(4096),
                discard_zeroes: true,
                fua: true,
                max_transfer: 1 << 20,
            },
            state: Mutex::new(
                Rank::DeviceInner,
                State {
                    image,
                    writes: 0,
                    strays: Vec::new(),
                },
            ),
        }
    }

    /// The current content.
    pub fn content(&self) -> Image {
        self.state.lock().image.clone()
    }

    /// Number of requests that changed the content.
    pub fn writes(&self) -> u64 {
        self.state.lock().writes
    }

    /// Requests that are outside the device or malformed.
    pub fn strays(&self) -> Vec<String> {
        self.state.lock().strays.clone()
    }

    fn transfer(&self, bio: &mut Bio) -> Result<(), IoError> {
        let mut state = self.state.lock();
        if let Err(error) = self.geometry.check(bio) {
            state.strays.push(error.to_string());
            return Err(error);
        }
        state.writes += u64::from(!matches!(bio.op, Op::Read | Op::Flush));
        let mut at = bio.offset;
        match bio.op {
            Op::Flush => {}
            Op::Read => {
                for buf in &mut bio.bufs {
                    state.image.read(at, buf.make_mut());
                    at += buf.len() as u64;
                }
            }
            Op::Write => {
                for buf in &bio.bufs {
                    state.image.write(at, buf);
                    at += buf.len() as u64;
                }
            }
            Op::Discard | Op::WriteZeroes => {
                let zeros = [0; 4096];
                while at < bio.end() {
                    let n = usize::try_from(bio.end() - at).map_or(4096, |left| left.min(4096));
                    state.image.write(at, &zeros[..n]);
                    at += n as u64;
                }
            }
        }
        Ok(())
    }
}

impl Device for ImageDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn start(&self, mut bio: Bio, done: Done) {
        let result = self.transfer(&mut bio);
        done(bio, result);
    }
}
