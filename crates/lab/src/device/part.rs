//! A part of a simulated device, as a device with a cache of its own.

use std::ops::Range;

use steadfs_block::{Bio, Device, Done, Geometry, IoError};

use super::SimDevice;

/// See the module. Faults and the log are those of the whole device, where its offsets count.
pub struct SimPart {
    whole: SimDevice,
    range: Range<u64>,
    geometry: Geometry,
}

impl SimPart {
    /// The bytes in `range` of a device.
    pub fn new(whole: &SimDevice, range: Range<u64>) -> Self {
        let geometry = Geometry {
            size: range.end - range.start,
            ..whole.geometry().clone()
        };
        Self {
            whole: whole.clone(),
            range,
            geometry,
        }
    }
}

impl Device for SimPart {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn start(&self, mut bio: Bio, done: Done) {
        if let Err(error) = self.geometry.check(&bio) {
            done(bio, Err(error));
            return;
        }
        let offset = bio.offset;
        bio.offset += self.range.start;
        let back: Done = Box::new(move |mut bio: Bio, result: Result<(), IoError>| {
            bio.offset = offset;
            done(bio, result.map_err(|error| IoError { offset, ..error }));
        });
        self.whole.start_within(self.range.clone(), bio, back);
    }
}
