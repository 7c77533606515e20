
# Values of options and paths on volumes, which the program knows.
function __steadfs_values
    set -l words (commandline -opc) (commandline -ct)
    command $words[1] completions fish --values -- $words 2>/dev/null
end
complete -c steadfs -a '(__steadfs_values)'
