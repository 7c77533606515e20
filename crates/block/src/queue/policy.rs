//! The policies and their settings.

use std::time::Duration;

use steadfs_iosched::{Cfq, Fair, FairOptions, Fifo, FifoOptions, FsyncTarget, Nanos, Scheduler};

use crate::Device;

/// A scheduling policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// Arrival order, with waited-for requests first.
    Fifo,
    /// Weighted shares for groups and processes (start-time fair queueing).
    #[default]
    Fair,
    /// The same in time slices, with CFQ's rules.
    Cfq,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Fifo, Self::Fair, Self::Cfq];

    /// Its name in options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Fair => "fair",
            Self::Cfq => "cfq",
        }
    }
}

/// Settings that can be changed while a volume is mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueSettings {
    /// The policy.
    pub policy: Policy,
    /// Most requests that the device has at a time; less if the device's own limit is lower.
    pub depth: usize,
    /// How long `fair` and `cfq` idle for the next request of an owner; `None`: 8 ms.
    pub slice_idle: Option<Duration>,
    /// Whether owners that become active after a pause are favoured (`fair`).
    pub low_latency: bool,
    /// One request at a time, and idling for every owner (`fair`, `cfq`).
    pub strict_guarantees: bool,
    /// Whether queued requests are boosted when a task waits for them.
    pub boost: bool,
    /// The time that an fsync may take beside background requests (`fair`).
    pub fsync_target: FsyncTarget,
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
            fsync_target: FsyncTarget::Auto,
        }
    }
}

impl QueueSettings {
    /// The policy for a device, with nothing queued.
    pub(super) fn scheduler(&self, device: &dyn Device) -> Box<dyn Scheduler> {
        let depth = self.depth_for(device);
        // Background requests leave slots of the device for waited-for ones.
        let most = (depth - depth / 4).max(1);
        let async_depth = device.background_depth().clamp(1, most);
        let options = |preset| self.fair_options(preset, depth, async_depth);
        match self.policy {
            Policy::Fifo => Box::new(Fifo::new(FifoOptions {
                background_depth: async_depth,
                ..FifoOptions::default()
            })),
            Policy::Fair => Box::new(Fair::new(options(Fair::preset()))),
            Policy::Cfq => Box::new(Cfq::new(options(Cfq::preset()))),
        }
    }

    fn fair_options(&self, preset: FairOptions, depth: usize, async_depth: usize) -> FairOptions {
        let idle = self.slice_idle.map_or(preset.slice_idle, |idle| {
            Nanos(u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX))
        });
        FairOptions {
            depth,
            async_depth,
            slice_idle: idle,
            low_latency: self.low_latency,
            strict_guarantees: self.strict_guarantees,
            fsync_target: self.fsync_target,
            ..preset
        }
    }

    pub(super) fn depth_for(&self, device: &dyn Device) -> usize {
        self.depth.min(device.depth()).max(1)
    }
}
