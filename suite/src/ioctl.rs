//! ioctl(2), called in a process of its own.

use std::path::Path;

use crate::command::succeed;

/// Calls an ioctl on a file or folder; returns the argument afterwards, or the error number.
///
/// # Panics
/// If the file cannot be opened for reading.
#[track_caller]
pub fn ioctl(file: &Path, command: u32, argument: &[u8]) -> Result<Vec<u8>, i32> {
    // The command number contains the size of the argument.
    let size = (command >> 16 & 0x3fff) as usize;
    let hex: String = argument.iter().map(|byte| format!("{byte:02x}")).collect();
    let program = "sysopen(my $f, $ARGV[0], 0) or die $!; my $a = pack('H*', $ARGV[2]); \
                   if (defined ioctl($f, $ARGV[1], $a)) { print unpack('H*', $a) } \
                   else { print 'E', $! + 0 }";
    let number = command.to_string();
    let args = [
        "-e".as_ref(),
        program.as_ref(),
        file.as_os_str(),
        number.as_ref(),
        hex.as_ref(),
    ];
    let output = succeed("perl", args).out;
    match output.strip_prefix('E') {
        Some(error) => Err(error.parse().unwrap()),
        // Perl's buffer is longer.
        None => Ok((0..2 * size)
            .step_by(2)
            .map(|at| u8::from_str_radix(&output[at..at + 2], 16).unwrap())
            .collect()),
    }
}
