//! fio: streams and random 4 KiB blocks, through the page cache as in applications.

use std::process::Command;

use serde_json::Value;

use crate::Result;
use crate::activity_run::ActivityRun;
use crate::command::{output, program};

/// A stream is written (until it is durable), read from the device, and read again from memory.
pub fn stream(run: &mut ActivityRun) -> Result<()> {
    let size = format!("--size={}M", run.size().stream);
    let write = ["--rw=write", "--bs=1M", &size, "--end_fsync=1"];
    let read = ["--rw=read", "--bs=1M", &size, "--invalidate=0"];
    let written = fio(run, &write)?;
    run.record("streaming write", rate(&written, "write")?);
    run.cold()?;
    for row in ["streaming read, cold", "streaming read, warm"] {
        let result = fio(run, &read)?;
        run.record(row, rate(&result, "read")?);
    }
    Ok(())
}

/// Random 4 KiB blocks in an existing file: written with fsync, then read from the device.
pub fn random(run: &mut ActivityRun) -> Result<()> {
    let size = format!("--size={}M", run.size().stream);
    let time = format!("--runtime={}", run.size().seconds);
    fio(run, &["--rw=write", "--bs=1M", &size, "--end_fsync=1"])?;
    run.cold()?;
    for (every, row) in [
        ("--fsync=1", "random write, fsync every 1"),
        ("--fsync=32", "random write, fsync every 32"),
    ] {
        let result = fio(run, &["--rw=randwrite", "--bs=4k", &size, &time, every])?;
        run.record(row, operations(&result, "write")?);
    }
    run.cold()?;
    let result = fio(run, &["--rw=randread", "--bs=4k", &size, &time])?;
    run.record("random read, cold", operations(&result, "read")?);
    Ok(())
}

/// Each process appends 4 KiB to its own file and syncs it, repeatedly: how well they share commits.
pub fn appenders(run: &mut ActivityRun) -> Result<()> {
    let time = format!("--runtime={}", run.size().seconds);
    for (jobs, row) in [
        ("--numjobs=2", "append + fsync, 2 processes"),
        ("--numjobs=4", "append + fsync, 4 processes"),
        ("--numjobs=8", "append + fsync, 8 processes"),
    ] {
        let mut fio = plain_job(run);
        fio.args(["--rw=write", "--bs=4k", "--size=1G", "--fsync=1", &time]);
        fio.args([jobs, "--group_reporting"]);
        let result = report(&output(&mut fio)?)?;
        run.record(row, operations(&result, "write")?);
    }
    Ok(())
}

/// Runs one job to its end.
fn fio(run: &ActivityRun, options: &[&str]) -> Result<Value> {
    report(&output(&mut job(run, options))?)
}

/// A job on the file `stream` of the volume.
pub fn job(run: &ActivityRun, options: &[&str]) -> Command {
    let mut fio = plain_job(run);
    fio.arg("--filename=stream");
    fio.args(options);
    fio
}

/// A job on files of its own.
fn plain_job(run: &ActivityRun) -> Command {
    let mut fio = program("fio");
    fio.current_dir(run.root());
    fio.args(["--name=bench", "--ioengine=psync"]);
    // The writes themselves allocate blocks, and the random numbers are the same for each subject.
    fio.args(["--fallocate=none", "--randrepeat=1", "--output-format=json"]);
    fio
}

/// A job's report; notes may precede it.
pub fn report(result: &str) -> Result<Value> {
    let report = result.find('{').map_or("", |at| &result[at..]);
    Ok(serde_json::from_str(report)?)
}

/// MiB per second, the final fsync included.
pub fn rate(report: &Value, way: &str) -> Result<f64> {
    let bytes = figure(report, way, "io_bytes")?;
    let milliseconds = figure(report, way, "runtime")?;
    Ok(bytes / f64::from(1 << 20) / (milliseconds / 1000.0))
}

/// Operations per second.
fn operations(report: &Value, way: &str) -> Result<f64> {
    figure(report, way, "iops")
}

fn figure(report: &Value, way: &str, what: &str) -> Result<f64> {
    report["jobs"][0][way][what]
        .as_f64()
        .ok_or_else(|| format!("fio reports no {way}.{what}").into())
}
