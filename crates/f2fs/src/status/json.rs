//! `.steadfs/f2fs/stats.json`: the counters of `status`, for programs.

use crate::checkpoint::daemon::{BATCHES, CLASSES};
use crate::fs::F2fs;

fn pair([all, background]: [u64; 2]) -> String {
    format!("{{\"all\":{all},\"background\":{background}}}")
}

impl F2fs {
    /// The JSON object. Times are in milliseconds.
    pub(crate) fn stats_json(&self) -> String {
        let (runs, blocks, waiting) = self.discards.counts();
        let counts = self.space.counts();
        format!(
            "{{\"user_blocks\":{},\"valid_blocks\":{},\"valid_nodes\":{},\"checkpoint\":{},\
             \"fsync\":{},\"gc\":{},\"discard\":{{\"runs\":{runs},\"blocks\":{blocks},\
             \"waiting_segments\":{waiting}}}}}",
            counts.user_blocks,
            counts.valid_blocks,
            counts.valid_nodes,
            self.checkpoints_json(),
            self.syncs_json(),
            self.cleaning_json(),
        )
    }

    fn checkpoints_json(&self) -> String {
        let (calls, background) = self.checkpoints.calls();
        let last = self.checkpoints.last_steps();
        let last = last.map_or(0, |steps| steps.total().as_millis());
        let merge = self.daemon.stats();
        let ends = CLASSES.iter().map(u64::to_string);
        let waits = ends.chain(["null".to_owned()]).zip(merge.waits);
        let waits: Vec<_> = waits.map(|(end, n)| format!("[{end},{n}]")).collect();
        let ends = BATCHES.iter().map(u64::to_string);
        let sizes = ends.chain(["null".to_owned()]).zip(merge.batches);
        let sizes: Vec<_> = sizes.map(|(most, n)| format!("[{most},{n}]")).collect();
        format!(
            "{{\"calls\":{calls},\"background_calls\":{background},\"written\":{},\"last_ms\":{last},\
             \"merge\":{{\"queued\":{},\"issued\":{},\"total\":{},\"cur_time\":{},\"peak_time\":{},\
             \"largest\":{},\"batch_waits\":{},\"batch_waited_us\":{},\"waits\":[{}],\"batches\":[{}]}}}}",
            self.checkpoints.written(),
            merge.queued,
            merge.issued,
            merge.total,
            merge.cur_time,
            merge.peak_time,
            merge.largest,
            merge.batch_waits,
            merge.batch_waited_us,
            waits.join(","),
            sizes.join(",")
        )
    }

    fn syncs_json(&self) -> String {
        let reasons = self.syncs.reasons();
        let reasons = reasons
            .into_iter()
            .map(|(reason, n)| format!("\"{}\":{n}", reason.name()));
        let reasons: Vec<String> = reasons.collect();
        format!(
            "{{\"without_checkpoint\":{},\"checkpoint_for\":{{{}}}}}",
            self.syncs.own(),
            reasons.join(",")
        )
    }

    fn cleaning_json(&self) -> String {
        let stats = self.gc.stats();
        let [foreground, background] = stats.calls;
        format!(
            "{{\"foreground_calls\":{foreground},\"background_calls\":{background},\
             \"data_segments\":{},\"node_segments\":{},\"data_blocks\":{},\"node_blocks\":{},\
             \"skipped_in_use\":{},\"skipped_busy\":{},\"victims\":{},\"in_vain\":{},\"garbage\":{},\
             \"candidates\":{},\"checkpoints\":{}}}",
            pair(stats.data_segments),
            pair(stats.node_segments),
            pair(stats.data_blocks),
            pair(stats.node_blocks),
            stats.skipped_in_use,
            stats.skipped_busy,
            stats.victims,
            stats.in_vain,
            stats.garbage,
            stats.scanned,
            stats.checkpoints,
        )
    }
}
