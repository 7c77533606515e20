//! The completion script of a shell: what clap generates of commands and options, and a function that asks the program for
//! values.

use clap::Command;
use clap_complete::Shell;

const BASH: &str = include_str!("completions/values.bash");
const ZSH: &str = include_str!("completions/values.zsh");
const FISH: &str = include_str!("completions/values.fish");

/// Where the function of zsh begins, and where it is called in a file of `fpath` or sourced.
const ZSH_BEGIN: &str = "\n_steadfs() {\n";
const ZSH_CALL: &str = "\nif [ \"$funcstack[1]\" = \"_steadfs\" ]; then\n";

/// The script.
pub fn script(shell: Shell, mut command: Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "steadfs", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + BASH,
        // A value of an option is asked for by the option's own line.
        Shell::Fish => script.replace(" -r\n", " -r -a '(__steadfs_values)'\n") + FISH,
        Shell::Zsh => {
            let first = format!("{ZSH_BEGIN}    _steadfs_values && return\n");
            let with_call = script.replacen(ZSH_BEGIN, &first, 1);
            with_call.replacen(ZSH_CALL, &format!("{ZSH}{ZSH_CALL}"), 1)
        }
        // Their scripts have commands and options only.
        _ => script,
    }
}
