//! fio: streams and random 4 KiB, through the page cache as applications do it.

use std::process::Command;

use serde_json::Value;

use crate::Result;
use crate::command::{output, program};
use crate::stage::Stage;

/// A stream is written (until it is durable), read from the device, and read again from memory.
pub fn stream(stage: &mut Stage) -> Result<()> {
    let size = format!("--size={}M", stage.size().stream);
    let write = ["--rw=write", "--bs=1M", &size, "--end_fsync=1"];
    let read = ["--rw=read", "--bs=1M", &size, "--invalidate=0"];
    let written = fio(stage, &write)?;
    stage.record("streaming write", rate(&written, "write")?);
    stage.cold()?;
    for row in ["streaming read, cold", "streaming read, warm"] {
        let said = fio(stage, &read)?;
        stage.record(row, rate(&said, "read")?);
    }
    Ok(())
}

/// 4 KiB anywhere in a file that is there: written with fsync, then read from the device.
pub fn random(stage: &mut Stage) -> Result<()> {
    let size = format!("--size={}M", stage.size().stream);
    let time = format!("--runtime={}", stage.size().seconds);
    fio(stage, &["--rw=write", "--bs=1M", &size, "--end_fsync=1"])?;
    stage.cold()?;
    for (every, row) in [
        ("--fsync=1", "random write, fsync every 1"),
        ("--fsync=32", "random write, fsync every 32"),
    ] {
        let said = fio(stage, &["--rw=randwrite", "--bs=4k", &size, &time, every])?;
        stage.record(row, operations(&said, "write")?);
    }
    stage.cold()?;
    let said = fio(stage, &["--rw=randread", "--bs=4k", &size, &time])?;
    stage.record("random read, cold", operations(&said, "read")?);
    Ok(())
}

/// Processes that each append 4 KiB to a file of their own and sync it, again and again: how well they share commits.
pub fn appenders(stage: &mut Stage) -> Result<()> {
    let time = format!("--runtime={}", stage.size().seconds);
    for (jobs, row) in [
        ("--numjobs=2", "append + fsync, 2 processes"),
        ("--numjobs=4", "append + fsync, 4 processes"),
        ("--numjobs=8", "append + fsync, 8 processes"),
    ] {
        let mut fio = plain_job(stage);
        fio.args(["--rw=write", "--bs=4k", "--size=1G", "--fsync=1", &time]);
        fio.args([jobs, "--group_reporting"]);
        let said = report(&output(&mut fio)?)?;
        stage.record(row, operations(&said, "write")?);
    }
    Ok(())
}

/// Runs one job to its end.
fn fio(stage: &Stage, options: &[&str]) -> Result<Value> {
    report(&output(&mut job(stage, options))?)
}

/// A job on the file `stream` of the volume.
pub fn job(stage: &Stage, options: &[&str]) -> Command {
    let mut fio = plain_job(stage);
    fio.arg("--filename=stream");
    fio.args(options);
    fio
}

/// A job on files of its own.
fn plain_job(stage: &Stage) -> Command {
    let mut fio = program("fio");
    fio.current_dir(stage.root());
    fio.args(["--name=bench", "--ioengine=psync"]);
    // Blocks are allocated by the writes themselves, and the same numbers are drawn for everybody.
    fio.args(["--fallocate=none", "--randrepeat=1", "--output-format=json"]);
    fio
}

/// What a job said; notes may come before its report.
pub fn report(said: &str) -> Result<Value> {
    let report = said.find('{').map_or("", |at| &said[at..]);
    Ok(serde_json::from_str(report)?)
}

/// MiB a second, the final fsync included.
pub fn rate(report: &Value, way: &str) -> Result<f64> {
    let bytes = figure(report, way, "io_bytes")?;
    let milliseconds = figure(report, way, "runtime")?;
    Ok(bytes / f64::from(1 << 20) / (milliseconds / 1000.0))
}

/// Operations a second.
fn operations(report: &Value, way: &str) -> Result<f64> {
    figure(report, way, "iops")
}

fn figure(report: &Value, way: &str, what: &str) -> Result<f64> {
    report["jobs"][0][way][what]
        .as_f64()
        .ok_or_else(|| format!("fio reports no {way}.{what}").into())
}
