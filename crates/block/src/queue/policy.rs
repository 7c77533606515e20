//! Which policy orders the queue, and how.

use std::time::Duration;

use steadfs_iosched::{Fair, FairOptions, Fifo, FifoOptions, Nanos, Scheduler};

use crate::Device;

/// A policy's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// Arrival order, with what somebody waits for ahead.
    Fifo,
    /// Weighted shares for groups and processes.
    #[default]
    Fair,
    /// The same in time slices, with CFQ's rules.
    Cfq,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Fifo, Self::Fair, Self::Cfq];

    /// As options name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Fair => "fair",
            Self::Cfq => "cfq",
        }
    }
}

/// What a mounted volume's owner may choose about its queue, at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueSettings {
    /// The order.
    pub policy: Policy,
    /// How many requests the device has at a time, if the device does not want fewer.
    pub depth: usize,
    /// How long `fair` and `cfq` keep the device for somebody who is expected; `None`: 8 ms.
    pub slice_idle: Option<Duration>,
    /// Whether owners that come after a pause are favoured (`fair`).
    pub low_latency: bool,
    /// One request at a time, and everybody is waited for (`fair`, `cfq`).
    pub strict_guarantees: bool,
    /// Whether waiting for a queued request raises it.
    pub boost: bool,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            depth: 32,
            slice_idle: None,
            low_latency: true,
            strict_guarantees: false,
            boost: true,
        }
    }
}

impl QueueSettings {
    /// The policy for a device, with nothing queued.
    pub(super) fn scheduler(&self, device: &dyn Device) -> Box<dyn Scheduler> {
        let depth = self.depth_for(device);
        // Background requests leave room in the device for those that somebody waits for.
        let most = (depth - depth / 4).max(1);
        let async_depth = device.background_depth().clamp(1, most);
        let preset = match self.policy {
            Policy::Fifo => {
                return Box::new(Fifo::new(FifoOptions {
                    background_depth: async_depth,
                    ..FifoOptions::default()
                }));
            }
            Policy::Fair => FairOptions::default(),
            Policy::Cfq => FairOptions::cfq(),
        };
        let idle = self.slice_idle.map_or(preset.slice_idle, |idle| {
            Nanos(u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX))
        });
        Box::new(Fair::new(FairOptions {
            depth,
            async_depth,
            slice_idle: idle,
            low_latency: self.low_latency && preset.low_latency,
            strict_guarantees: self.strict_guarantees,
            ..preset
        }))
    }

    pub(super) fn depth_for(&self, device: &dyn Device) -> usize {
        self.depth.min(device.depth()).max(1)
    }
}
